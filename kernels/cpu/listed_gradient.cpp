#include <algorithm>
#include <memory>
#include <vector>

#include "base/check.h"
#include "kernels/cpu/parallel.h"
#include "kernels/cpu/table.h"
#include "kernels/listed_attention.h"

namespace troupe::kernels {
namespace {

constexpr std::int64_t kSlices = 16;       ///< Tasks at most for one kv head's rows; fixed: sums depend on it.
constexpr std::int64_t kPairsABlock = 256;  ///< (query, head) pairs whose keys are packed once.

/// Queries [row, row + rows) of a segment.
struct Block {
  const ListedGradSegment* segment;
  std::int64_t row, rows;
};

std::vector<Block> blocks_of(const ListedShape& shape, const ListedGrad& g, const ListedGradSegment* segments,
                             std::int64_t count) {
  const std::int64_t most = g.chosen_max > 0 ? 1 : std::max<std::int64_t>(1, kPairsABlock * shape.kv_heads / shape.heads);
  std::vector<Block> blocks;
  for (std::int64_t i = 0; i < count; ++i)
    for (std::int64_t row = 0; row < segments[i].rows; row += most)
      blocks.push_back({&segments[i], row, std::min(most, segments[i].rows - row)});
  return blocks;
}

/// Where the gradients of listed rows and sinks of one slice are summed.
struct Sums {
  float *kv, *entries, *sinks;
};

/// The rows that a block's queries see, tokens first.
void list_rows(const ListedShape& shape, const ListedGrad& g, const Block& block, const Sums& sums,
               std::vector<ListedRow>& list) {
  const ListedGradSegment& s = *block.segment;
  const std::int64_t end = s.prefix_rows + block.row + block.rows;
  const std::int64_t first_end = s.prefix_rows + block.row + 1;
  list.clear();
  for (std::int64_t token = shape.window > 0 ? std::max<std::int64_t>(0, first_end - shape.window) : 0; token < end; ++token) {
    const std::int64_t at = (token < s.prefix_rows ? s.prefix_begin + token : s.begin + token - s.prefix_rows) * g.row;
    list.push_back({g.kv + at, sums.kv + at});
  }
  for (std::int64_t i = 0; i < g.chosen_max; ++i) {
    const std::int32_t entry = g.chosen[(s.begin + block.row) * g.chosen_max + i];
    if (entry < 0) break;
    const std::int64_t at = (s.first_entry + entry) * g.row;
    list.push_back({g.entries + at, sums.entries + at});
  }
}

void run_block(const ListedShape& shape, const ListedGrad& g, const Block& block, const Sums& sums, std::int64_t kv_head,
               std::vector<ListedRow>& list) {
  list_rows(shape, g, block, sums, list);
  const auto keys = static_cast<std::int64_t>(list.size());
  const std::int64_t row = block.segment->begin + block.row;
  const bool exact = block.rows == 1;  // its list is what the query sees
  const std::int64_t q = row * shape.heads * shape.key_dim;
  table().listed_grad({&shape, g.q + q, g.dout + row * shape.heads * shape.value_dim, g.dq + q, block.rows, list.data(),
                       keys, keys - block.rows + 1, exact ? 0 : shape.window, kv_head, sums.sinks,
                       scratch(Scratch::kTask, listed_grad_scratch_floats(shape, block.rows, keys))});
}

double operations_of(const ListedShape& shape, const ListedGrad& g, const std::vector<Block>& blocks) {
  double keys = 0;
  for (const Block& block : blocks) {
    const std::int64_t all = block.segment->prefix_rows + block.row + block.rows;
    const std::int64_t tokens = shape.window > 0 ? std::min(shape.window + block.rows, all) : all;
    keys += static_cast<double>(block.rows * (tokens + g.chosen_max));
  }
  return keys * static_cast<double>(shape.heads * (3 * shape.key_dim + 2 * shape.value_dim));
}

}  // namespace

void listed_attention_backward(const ListedShape& shape, const ListedGrad& g, const ListedGradSegment* segments,
                               std::int64_t count) {
  TROUPE_CHECK(shape.kv_heads > 0 && shape.heads % shape.kv_heads == 0, "listed_attention: kv_heads must divide heads");
  const std::vector<Block> blocks = blocks_of(shape, g, segments, count);
  const auto all = static_cast<std::int64_t>(blocks.size());
  const std::int64_t slices = std::clamp<std::int64_t>(kSlices / shape.kv_heads, 1, std::max<std::int64_t>(all, 1));
  const std::int64_t kv = g.rows * g.row, entries = g.entry_rows * g.row, floats = kv + entries + shape.heads;
  const int threads = threads_for(operations_of(shape, g, blocks));
  const auto others = std::make_unique_for_overwrite<float[]>(static_cast<std::size_t>((slices - 1) * floats));
  std::vector<float> sinks(static_cast<std::size_t>(shape.heads));
  float* const own_sinks = g.dsinks == nullptr ? sinks.data() : g.dsinks;
  const auto sums_of = [&](std::int64_t slice) {
    float* other = others.get() + (slice - 1) * floats;
    return slice == 0 ? Sums{g.dkv, g.dentries, own_sinks} : Sums{other, other + kv, other + kv + entries};
  };
  std::fill_n(own_sinks, shape.heads, 0.0F);
  run_ranges(kv, kLanes, threads, [&](std::int64_t begin, std::int64_t end) { std::fill(g.dkv + begin, g.dkv + end, 0.0F); });
  if (entries > 0) std::fill_n(g.dentries, entries, 0.0F);
  run_ranges((slices - 1) * floats, kLanes, threads,
             [&](std::int64_t begin, std::int64_t end) { std::fill(others.get() + begin, others.get() + end, 0.0F); });
  run_tasks(static_cast<std::size_t>(slices * shape.kv_heads), threads, [&](std::size_t task) {
    const std::int64_t slice = static_cast<std::int64_t>(task) / shape.kv_heads;
    std::vector<ListedRow> list;
    for (std::int64_t i = slice; i < all; i += slices)
      run_block(shape, g, blocks[static_cast<std::size_t>(i)], sums_of(slice), static_cast<std::int64_t>(task) % shape.kv_heads, list);
  });
  const auto add_slices = [&](float* Sums::*part, std::int64_t n) {
    run_ranges(n, kLanes, threads, [&](std::int64_t begin, std::int64_t end) {
      for (std::int64_t slice = 1; slice < slices; ++slice)
        table().add(sums_of(slice).*part + begin, sums_of(0).*part + begin, end - begin);
    });
  };
  add_slices(&Sums::kv, kv);
  add_slices(&Sums::entries, entries);
  add_slices(&Sums::sinks, shape.heads);
}

}  // namespace troupe::kernels
