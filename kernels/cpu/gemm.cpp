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
constexpr std::int64_t kBlockFloats = 96 << 10;          // rows of x packed at a time: 384 KiB, below half of most L2s

std::int64_t panels_of(std::int64_t n) { return (n + kLanes - 1) / kLanes; }

/// Packs n rows of k floats; row(i) is where row i begins.
template <class Row>
void pack_rows(std::int64_t n, std::int64_t k, float* panels, const Row& row) {
  const KernelTable& isa = table();
  run_ranges(panels_of(n), 1, threads_for(8.0 * static_cast<double>(n * k)), [&](std::int64_t begin, std::int64_t end) {
    for (std::int64_t panel = begin; panel < end; ++panel) {
      const float* rows[kLanes];
      const std::int64_t count = std::min(kLanes, n - panel * kLanes);
      for (std::int64_t j = 0; j < count; ++j) rows[j] = row(panel * kLanes + j);
      isa.pack_panel(rows, count, k, panels + panel * kLanes * k);
    }
  });
}

}  // namespace

void PackedMatrix::Free::operator()(float* p) const { std::free(p); }

std::size_t PackedMatrix::bytes() const {
  return static_cast<std::size_t>(panels_of(n_) * kLanes * k_) * sizeof(float);
}

void PackedMatrix::resize(std::int64_t n, std::int64_t k) {
  n_ = n;
  k_ = k;
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

void PackedMatrix::pack(const float* w, std::int64_t n, std::int64_t k, std::int64_t ldw) {
  TROUPE_CHECK(n > 0 && k > 0 && (ldw == 0 || ldw >= k), "PackedMatrix: sizes must be positive and rows apart");
  resize(n, k);
  const std::int64_t stride = ldw == 0 ? k : ldw;
  pack_rows(n, k, panels_.get(), [&](std::int64_t i) { return w + i * stride; });
}

void PackedMatrix::pack(const Part* parts, std::int64_t count, std::int64_t k) {
  std::int64_t n = 0;
  for (std::int64_t i = 0; i < count; ++i) n += parts[i].n;
  TROUPE_CHECK(n > 0 && k > 0, "PackedMatrix: sizes must be positive");
  resize(n, k);
  pack_rows(n, k, panels_.get(), [&](std::int64_t i) {
    const Part* part = parts;
    for (; i >= part->n; ++part) i -= part->n;
    return part->w + i * k;
  });
}

void matmul(const float* x, std::int64_t m, const PackedMatrix& w, float* y, std::int64_t ldy, std::int64_t ldx) {
  TROUPE_CHECK(!w.empty(), "matmul: the weights are not packed");
  const std::int64_t n = w.rows();
  const std::int64_t k = w.cols();
  if (m == 0) return;
  const KernelTable& isa = table();
  MatmulPart whole{x, m, ldx == 0 ? k : ldx, w.data(), n, k, 0, panels_of(n), y, ldy == 0 ? n : ldy, nullptr, 0};
  whole.block_rows = std::max(isa.tile_rows, kBlockFloats / k / isa.tile_rows * isa.tile_rows);
  auto run = [&isa](MatmulPart part) {
    if (part.m > 1) part.scratch = scratch(Scratch::kRows, std::min(part.block_rows, part.m) * part.k);
    isa.matmul(part);
  };
  const int threads = threads_for(2.0 * static_cast<double>(m) * static_cast<double>(n) * static_cast<double>(k));
  if (m >= n && m >= threads * isa.tile_rows) {  // tall: every thread packs its own rows and reads all weights
    run_ranges(m, isa.tile_rows, threads, [&](std::int64_t begin, std::int64_t end) {
      MatmulPart part = whole;
      part.x += begin * whole.ldx;
      part.y += begin * whole.ldy;
      part.m = end - begin;
      run(part);
    });
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

}  // namespace troupe::kernels
