#include "kernels/delta_net.h"

#include "base/check.h"
#include "kernels/cpu/parallel.h"
#include "kernels/cpu/table.h"
#include "kernels/pointwise.h"

namespace troupe::kernels {

void causal_conv(const CausalConv& a) {
  const double operations = static_cast<double>(a.rows * a.channels * (a.taps + 32));
  run_ranges(a.rows, 1, threads_for(operations), [&](std::int64_t begin, std::int64_t end) {
    for (std::int64_t t = begin; t < end; ++t) {
      float* y = a.y + t * a.channels;
      for (std::int64_t c = 0; c < a.channels; ++c) y[c] = 0;
      for (std::int64_t j = 0; j < a.taps; ++j) {
        const std::int64_t source = t - a.taps + 1 + j;
        if (source < 0 && a.history == nullptr) continue;
        const float* x = source < 0 ? a.history + (source + a.taps - 1) * a.channels : a.x + source * a.channels;
        for (std::int64_t c = 0; c < a.channels; ++c) y[c] += a.weight[c * a.taps + j] * x[c];
      }
      pointwise(Pointwise::kSilu, y, y, a.channels);
    }
  });
}

void delta_rule(const DeltaRule& a) {
  TROUPE_CHECK(a.key_heads > 0 && a.value_heads % a.key_heads == 0, "delta_rule: key heads must divide value heads");
  const double operations = 6.0 * static_cast<double>(a.rows * a.value_heads * a.key_dim * a.value_dim);
  const std::int64_t floats = delta_scratch_floats(a.key_dim);
  run_tasks(static_cast<std::size_t>(a.value_heads), threads_for(operations), [&](std::size_t head) {
    table().delta({&a, static_cast<std::int64_t>(head), scratch(Scratch::kTask, floats)});
  });
}

}  // namespace troupe::kernels
