#include "kernels/gemm.h"

#include <sys/mman.h>

#include <algorithm>
#include <cstdlib>
#include <new>

#include "base/check.h"
#include "kernels/cpu/parallel.h"
#include "kernels/cpu/table.h"

namespace troupe::kernels {
namespace {

constexpr std::size_t kHugePage = std::size_t{2} << 20;  // packed weights are read front to back: fewer TLB misses
constexpr std::int64_t kTallRows = 96;            // of x for one thread: reading all weights for them is cheap
constexpr std::int64_t kPackedXFloats = 1 << 19;  // of x packed at a time for dW, where that is a block or more

std::int64_t panels_of(std::int64_t n) { return (n + kLanes - 1) / kLanes; }

const ProductTable& product(Precision precision) { return table().products[static_cast<std::size_t>(precision)]; }

/// Packs n rows of k floats; row(i) is where row i begins.
template <class Row>
void pack_rows(std::int64_t n, std::int64_t k, Precision precision, float* panels, const Row& row) {
  const ProductTable& isa = product(precision);
  const std::int64_t floats = panel_floats(k, precision);
  run_ranges(panels_of(n), 1, threads_for(8.0 * static_cast<double>(n * k)), [&](std::int64_t begin, std::int64_t end) {
    for (std::int64_t panel = begin; panel < end; ++panel) {
      const float* rows[kLanes];
      const std::int64_t count = std::min(kLanes, n - panel * kLanes);
      for (std::int64_t j = 0; j < count; ++j) rows[j] = row(panel * kLanes + j);
      isa.pack_panel(rows, count, k, panels + panel * floats);
    }
  });
}

/// k rows of n columns to be packed as panels of columns; the rows lie at row(i)[0..n).
template <class Row>
void pack_columns(const ProductTable& isa, std::int64_t n, std::int64_t k, Precision precision,
                  std::int64_t panel_begin, std::int64_t panel_end, float* panels, const Row& row) {
  const std::int64_t floats = panel_floats(k, precision);
  const std::int64_t block_floats = panel_floats(kPairBlock, precision);
  for (std::int64_t first = 0; first < k; first += kPairBlock) {  // what is read at a time lies together
    const float* rows[kPairBlock];
    const std::int64_t count = std::min(kPairBlock, k - first);
    for (std::int64_t i = 0; i < count; ++i) rows[i] = row(first + i);
    for (std::int64_t panel = panel_begin; panel < panel_end; ++panel) {
      isa.pack_columns(rows, count, panel * kLanes, std::min(kLanes, n - panel * kLanes),
                       panels + panel * floats + first / kPairBlock * block_floats);
    }
  }
}

std::int64_t rows_of(const PackedMatrix::Part* parts, std::int64_t count) {
  std::int64_t n = 0;
  for (std::int64_t i = 0; i < count; ++i) n += parts[i].n;
  return n;
}

const float* stacked_row(const PackedMatrix::Part* part, std::int64_t i, std::int64_t k) {
  for (; i >= part->n; ++part) i -= part->n;
  return part->w + i * k;
}

}  // namespace

void PackedMatrix::Free::operator()(float* p) const { std::free(p); }

std::size_t PackedMatrix::bytes() const {
  return static_cast<std::size_t>(panels_of(n_) * panel_floats(k_, precision_)) * sizeof(float);
}

void PackedMatrix::resize(std::int64_t n, std::int64_t k, Precision precision) {
  TROUPE_CHECK(n > 0 && k > 0, "PackedMatrix: sizes must be positive");
  n_ = n;
  k_ = k;
  precision_ = precision;
  const std::size_t needed = bytes();
  if (needed <= capacity_) return;
  const std::size_t alignment = needed >= kHugePage ? kHugePage : 64;
  const std::size_t size = (needed + alignment - 1) / alignment * alignment;
  auto* memory = static_cast<float*>(std::aligned_alloc(alignment, size));
  if (memory == nullptr) throw std::bad_alloc();
  if (alignment == kHugePage) madvise(memory, size, MADV_HUGEPAGE);
  panels_.reset(memory);
  capacity_ = size;
}

void PackedMatrix::pack(const float* w, std::int64_t n, std::int64_t k, std::int64_t ldw, Precision precision) {
  TROUPE_CHECK(ldw == 0 || ldw >= k, "PackedMatrix: rows must lie apart");
  resize(n, k, precision);
  const std::int64_t stride = ldw == 0 ? k : ldw;
  pack_rows(n, k, precision, panels_.get(), [&](std::int64_t i) { return w + i * stride; });
}

void PackedMatrix::pack(const Part* parts, std::int64_t count, std::int64_t k, Precision precision) {
  const std::int64_t n = rows_of(parts, count);
  resize(n, k, precision);
  pack_rows(n, k, precision, panels_.get(), [&](std::int64_t i) { return stacked_row(parts, i, k); });
}

void PackedMatrix::pack_transposed(const Part* parts, std::int64_t count, std::int64_t k, Precision precision) {
  const std::int64_t n = rows_of(parts, count);
  resize(k, n, precision);
  const ProductTable& isa = product(precision);
  run_ranges(panels_of(k), 2, threads_for(8.0 * static_cast<double>(n * k)), [&](std::int64_t begin, std::int64_t end) {
    pack_columns(isa, k, n, precision, begin, end, panels_.get(),
                 [&](std::int64_t i) { return stacked_row(parts, i, k); });
  });
}

std::int64_t chain_begin(std::int64_t k, Precision precision, int q, int chains) {
  if (precision == Precision::kFloat32) return k * q / chains;
  const std::int64_t blocks = (k + kPairBlock - 1) / kPairBlock;
  return std::min(k, blocks * q / chains * kPairBlock);
}

void matmul(const float* x, std::int64_t m, const PackedMatrix& w, float* y, std::int64_t ldy, std::int64_t ldx,
            int chains) {
  TROUPE_CHECK(!w.empty(), "matmul: the weights are not packed");
  TROUPE_CHECK(chains == 1 || chains == 2 || chains == 4, "matmul: 1, 2 or 4 chains");
  const std::int64_t n = w.rows();
  const std::int64_t k = w.cols();
  if (m == 0) return;
  const ProductTable& isa = product(w.precision());
  MatmulPart whole{x, m, ldx == 0 ? k : ldx, w.data(), n, k, {}, 0, panels_of(n), y, ldy == 0 ? n : ldy, nullptr, 0};
  for (int q = 0; q <= kChains; ++q)
    whole.bounds[q] = q < chains ? chain_begin(k, w.precision(), q, chains) : k;  // those that lack are empty
  whole.block_rows = std::max(isa.tile_rows, isa.block_numbers / k / isa.tile_rows * isa.tile_rows);
  auto run = [&](MatmulPart part) {
    const std::int64_t rows = std::min(part.block_rows, part.m) + kLanes;  // tiles may be filled up
    const std::int64_t pieces = kPieceRows * (part.k + 3 * kPiecePanels * kLanes);
    part.scratch = scratch(Scratch::kRows, std::max(rows * padded(part.k), part.k > kLongK ? pieces : 0));
    isa.matmul(part);
  };
  // Reading a weight counts too: with few rows it is what takes the time.
  const int threads = threads_for(2.0 * static_cast<double>(m + 2) * static_cast<double>(n) * static_cast<double>(k));
  // Tall: every thread packs its own rows and reads all weights. Else each packs all rows and reads its own weights.
  if (m >= threads * kTallRows || (m >= n && m >= threads * isa.tile_rows)) {
    const auto rows = [&](std::int64_t begin, std::int64_t end) {
      MatmulPart part = whole;
      part.x += begin * whole.ldx;
      part.y += begin * whole.ldy;
      part.m = end - begin;
      run(part);
    };
    run_shared_ranges(m, isa.tile_rows, threads, rows, kTallRows);
    return;
  }
  const std::int64_t panels = panels_of(n);
  run_ranges(panels, panels >= 4 * threads ? 2 : 1, threads, [&](std::int64_t begin, std::int64_t end) {
    MatmulPart part = whole;
    part.panel_begin = begin;
    part.panel_end = end;
    run(part);
  });
}

namespace {

/// Rows [first, first + rows) of x as panels, block by block.
void pack_rows_of_x(const WeightGradient& args, std::int64_t ldx, std::int64_t first, std::int64_t rows,
                    float* packed) {
  const ProductTable& isa = product(args.precision);
  const std::int64_t block_rows = gradient_rows(args.precision);
  const std::int64_t panels = panels_of(args.k);
  const std::int64_t block_floats = panels * panel_floats(block_rows, args.precision);
  const std::int64_t blocks = (rows + block_rows - 1) / block_rows;
  const int threads = threads_for(8.0 * static_cast<double>(rows * args.k));
  run_shared_ranges(blocks * panels, 2, threads, [&](std::int64_t begin, std::int64_t end) {
    while (begin < end) {
      const std::int64_t block = begin / panels;
      const std::int64_t last = std::min(end, (block + 1) * panels);
      const float* x = args.x + (first + block * block_rows) * ldx;
      pack_columns(isa, args.k, std::min(block_rows, rows - block * block_rows), args.precision, begin - block * panels,
                   last - block * panels, packed + block * block_floats, [&](std::int64_t i) { return x + i * ldx; });
      begin = last;
    }
  });
}

}  // namespace

void weight_gradient(const WeightGradient& args) {
  const std::int64_t ldy = args.ldy == 0 ? args.n : args.ldy;
  const std::int64_t ldx = args.ldx == 0 ? args.k : args.ldx;
  if (args.m == 0 && !args.add) std::fill_n(args.dw, args.n * args.k, 0.0f);
  const ProductTable& isa = product(args.precision);
  const std::int64_t block_rows = gradient_rows(args.precision);
  const std::int64_t block_floats = panels_of(args.k) * panel_floats(block_rows, args.precision);
  const std::int64_t step = std::max<std::int64_t>(1, kPackedXFloats / block_floats) * block_rows;
  for (std::int64_t first = 0; first < args.m; first += step) {
    const std::int64_t rows = std::min(step, args.m - first);
    float* panels = scratch(Scratch::kPanels, (rows + block_rows - 1) / block_rows * block_floats);
    pack_rows_of_x(args, ldx, first, rows, panels);
    const double operations = 2.0 * static_cast<double>(rows) * static_cast<double>(args.n * args.k);
    run_shared_ranges(args.n, isa.tile_rows, threads_for(operations), [&](std::int64_t begin, std::int64_t end) {
      float* tiles = scratch(Scratch::kRows, kGradientColumns * block_rows);
      for (std::int64_t row = 0; row < rows; row += block_rows) {
        isa.gradient({args.dy + (first + row) * ldy, ldy, std::min(block_rows, rows - row),
                      panels + row / block_rows * block_floats, args.k, begin, end, args.dw,
                      args.add || first + row > 0, tiles});
      }
    });
  }
}

}  // namespace troupe::kernels
