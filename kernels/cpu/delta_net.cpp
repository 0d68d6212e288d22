#include "kernels/delta_net.h"

#include <algorithm>
#include <vector>

#include "base/check.h"
#include "kernels/cpu/parallel.h"
#include "kernels/cpu/table.h"

namespace troupe::kernels {
namespace {

void check_heads(std::int64_t key_heads, std::int64_t value_heads) {
  TROUPE_CHECK(key_heads > 0 && value_heads % key_heads == 0, "delta_rule: key heads must divide value heads");
}

/// `each` per element of a state and row.
template <class Sequence>
double operations_of(const Sequence& a, double each) {
  return each * static_cast<double>(a.rows * a.value_heads) * static_cast<double>(a.key_dim * a.value_dim);
}

/// body(sequence, head) for every head of every sequence, the longest sequences first.
template <class Sequence, class Heads, class Body>
void run_heads(const Sequence* sequences, std::int64_t count, double operations, const Heads& heads, const Body& body) {
  struct Task {
    const Sequence* sequence;
    std::int64_t head;
  };
  std::vector<Task> tasks;
  for (std::int64_t i = 0; i < count; ++i) {
    check_heads(sequences[i].key_heads, sequences[i].value_heads);
    for (std::int64_t head = 0; sequences[i].rows > 0 && head < heads(sequences[i]); ++head)
      tasks.push_back({&sequences[i], head});
  }
  std::stable_sort(tasks.begin(), tasks.end(),
                   [](const Task& a, const Task& b) { return a.sequence->rows > b.sequence->rows; });
  run_tasks(tasks.size(), threads_for(operations), [&](std::size_t i) { body(*tasks[i].sequence, tasks[i].head); });
}

/// A convolution or its gradient; `each`: what it keeps per tap.
template <class Args>
void run_channels(const Args& args, const CausalConv& a, std::int64_t each, void (*channels)(const ConvTask<Args>&)) {
  TROUPE_CHECK(a.taps <= kConvTaps, "causal_conv: more than 32 taps");
  const double operations = static_cast<double>(each * a.rows * a.channels * (a.taps + 32));
  run_ranges(a.channels, kLanes, threads_for(operations), [&](std::int64_t begin, std::int64_t end) {
    channels({&args, begin, end, scratch(Scratch::kTask, each * a.taps * kConvChannels)});
  });
}

}  // namespace

void causal_conv(const CausalConv& a) {
  run_channels(a, a, 1, table().conv);
}

void causal_conv_backward(const CausalConvGrad& a) {
  run_channels(a, a.forward, 3, table().conv_grad);
}

void delta_rule(const DeltaRule& a) {
  check_heads(a.key_heads, a.value_heads);
  const std::int64_t floats = delta_scratch_floats(a.key_dim);
  run_tasks(static_cast<std::size_t>(a.value_heads), threads_for(operations_of(a, 7)), [&](std::size_t head) {
    table().delta({&a, static_cast<std::int64_t>(head), 1, scratch(Scratch::kTask, floats)});
  });
}

void delta_rule_chunked(const DeltaRule* sequences, std::int64_t count) {
  double operations = 0;
  std::int64_t key_heads = 0;
  for (std::int64_t i = 0; i < count; ++i) {
    operations += operations_of(sequences[i], 12);
    key_heads += sequences[i].key_heads;
  }
  const bool enough = key_heads >= threads_for(operations);  // else a value head each
  const auto together = [enough](const DeltaRule& a) { return enough ? a.value_heads / a.key_heads : 1; };
  run_heads(sequences, count, operations, [&](const DeltaRule& a) { return a.value_heads / together(a); },
            [&](const DeltaRule& a, std::int64_t i) {
              const std::int64_t heads = together(a), floats = delta_chunk_floats(a.key_dim, a.value_dim, heads, 0);
              table().delta_chunks({&a, i * heads, heads, scratch(Scratch::kTask, floats)});
            });
}

void delta_rule_backward(const DeltaRuleGrad* sequences, std::int64_t count) {
  double operations = 0;
  for (std::int64_t i = 0; i < count; ++i) operations += operations_of(sequences[i], 40);
  run_heads(sequences, count, operations, [](const DeltaRuleGrad& a) { return a.key_heads; },
            [](const DeltaRuleGrad& a, std::int64_t key_head) {
              const std::int64_t chunks = (a.rows + kDeltaChunk - 1) / kDeltaChunk;
              const std::int64_t heads = a.value_heads / a.key_heads;
              const std::int64_t floats = delta_chunk_floats(a.key_dim, a.value_dim, heads * (chunks + 1), heads * chunks);
              table().delta_grad({&a, key_head, scratch(Scratch::kTask, floats)});
            });
}

}  // namespace troupe::kernels
