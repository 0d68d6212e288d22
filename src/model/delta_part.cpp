// Gated DeltaNet. Source: research/models.md 5.3.
#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>

#include <algorithm>

#include "kernels/delta_net.h"
#include "model/blocks.h"
#include "tensor/aten.h"
#include "tensor/delta.h"
#include "tensor/parts.h"

namespace troupe::model {

namespace {

/// The last taps - 1 rows of history and new rows together become the history.
void push_history(float* history, std::int64_t kept, const float* rows, std::int64_t count, std::int64_t channels) {
  const std::int64_t old = std::max<std::int64_t>(kept - count, 0);
  std::copy_n(history + (kept - old) * channels, old * channels, history);
  std::copy_n(rows + (count - (kept - old)) * channels, (kept - old) * channels, history + old * channels);
}

/// Convolution and recurrence over the states of a cache. A state is [history | S of every value head].
at::Tensor run_states(const Context& context, const DeltaSpec& d, const at::Tensor& x, const at::Tensor& decay,
                      const at::Tensor& beta) {
  const Sight& sight = context.sight;
  const std::int64_t channels = x.size(1);
  const at::Tensor mixed = at::empty_like(x);
  at::Tensor out = at::empty({x.size(0), d.value_heads * d.value_dim}, x.options());
  const float* weight = context.value(Role::kDeltaConv).data_ptr<float>();
  for (const KvSegment& s : sight.batch->segments) {
    float* history = sight.cache->state(context.place, s.state);
    const std::int64_t rows = s.end - s.begin;
    const float* in = x.data_ptr<float>() + s.begin * channels;
    float* after = mixed.data_ptr<float>() + s.begin * channels;
    kernels::causal_conv({in, history, weight, after, rows, channels, d.taps});
    push_history(history, d.taps - 1, in, rows, channels);
    kernels::delta_rule({after, decay.data_ptr<float>() + s.begin * d.value_heads,
                         beta.data_ptr<float>() + s.begin * d.value_heads, out.data_ptr<float>() + s.begin * out.size(1),
                         history + (d.taps - 1) * channels, rows, d.key_heads, d.value_heads, d.key_dim, d.value_dim});
  }
  return out;
}

}  // namespace

at::Tensor delta_net(const Context& context, const AttentionSpec& spec, const at::Tensor& x) {
  const DeltaSpec& d = spec.delta;
  const at::Tensor mixed = context.project(x, {Role::kDeltaQkv});
  const at::Tensor z = context.project(x, {Role::kDeltaZ});
  const at::Tensor beta = tensor::sigmoid(context.project(x, {Role::kDeltaBeta}));
  const at::Tensor time =
      tensor::softplus(context.project(x, {Role::kDeltaDecay}) + context.value(Role::kDeltaTimeBias));
  const at::Tensor decay = time * tensor::exponential(context.value(Role::kDeltaDecayLog)).neg();
  at::Tensor out;
  if (context.sight.cache != nullptr) {
    out = run_states(context, d, mixed, decay, beta);
  } else {
    const auto& segments = context.sight.segments;
    const at::Tensor rows = tensor::causal_conv(mixed, context.value(Role::kDeltaConv), segments,
                                                tensor::where_of(context.backends.recurrence));
    const auto by = [&](tensor::DeltaForm form, tensor::Where where) {
      return tensor::delta_rule(rows, decay, beta, {d.key_heads, d.value_heads, d.key_dim, d.value_dim}, segments, form, where);
    };
    out = tensor::choose(context.backends.recurrence, "recurrence", 1e-4,
                         [&](tensor::Where where) { return by(tensor::DeltaForm::kRecurrent, where); },
                         [&] { return by(tensor::DeltaForm::kChunked, tensor::Where::kHost); });
  }
  const at::Tensor heads = context.norm(out.view({-1, d.value_dim}), Role::kDeltaNorm, {spec.q_norm.eps, 0});
  return context.project(heads.view(z.sizes()) * tensor::silu(z), {Role::kDeltaOut});
}

}  // namespace troupe::model
