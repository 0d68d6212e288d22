#include "kernels/sampling.h"

#include "base/check.h"
#include "kernels/cpu/parallel.h"
#include "kernels/cpu/table.h"

namespace troupe::kernels {
namespace {

constexpr double kOperationsPerLogit = 30;

/// Floats of the weights of a row and of their sums by 16.
std::int64_t scratch_floats(std::int64_t vocab) { return (vocab + kLanes - 1) / kLanes * (kLanes + 1); }

}  // namespace

void sample_rows(SampleRow* rows, std::int64_t count, std::int64_t vocab) {
  if (count == 0) return;
  TROUPE_CHECK(vocab > 0, "sample_rows: the vocabulary is empty");
  for (std::int64_t i = 0; i < count; ++i)
    TROUPE_CHECK(rows[i].temperature >= 0, "sample_rows: a temperature must not be negative");
  const KernelTable& isa = table();
  run_ranges(count, 1, threads_for(kOperationsPerLogit * static_cast<double>(count * vocab)),
             [&](std::int64_t begin, std::int64_t end) {
               isa.sample(rows + begin, end - begin, vocab, scratch(Scratch::kTask, scratch_floats(vocab)));
             });
}

double softmax_weights(const float* logits, std::int64_t vocab, float temperature, float* weights) {
  TROUPE_CHECK(vocab > 0 && temperature > 0, "softmax_weights: vocabulary and temperature must be positive");
  return table().softmax_weights(logits, vocab, temperature, weights, scratch(Scratch::kTask, scratch_floats(vocab)));
}

}  // namespace troupe::kernels
