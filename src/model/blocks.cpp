#include "model/blocks.h"

#include <ATen/ops/cat.h>
#include <ATen/ops/empty.h>

#include "tensor/autograd.h"
#include "tensor/parts.h"

namespace troupe::model {

Slots::Slots() {
  index.fill(-1);
  for (auto& one : packed) one = std::make_shared<tensor::PackedWeights>();
  for (auto& one : groups) one = std::make_shared<tensor::PackedGroup>();
}

void Slots::invalidate() const {
  for (const auto& one : packed) one->invalidate();
  for (const auto& one : groups) one->invalidate();
}

void Slots::set_precision(kernels::Precision precision) const {
  for (const auto& one : packed) one->set_precision(precision);
  for (const auto& one : groups) one->set_precision(precision);
}

namespace {
constexpr double kRounding = 1e-4, kRoundingBfloat16 = 2e-2;  // of the largest element; LibTorch rounds a bfloat16 result once more
}

at::Tensor Context::value(Role role) const {
  return has(role) ? parameters[static_cast<std::size_t>(slots[role])].value : at::Tensor();
}

at::Tensor Context::project(const at::Tensor& x, std::initializer_list<Role> roles) const {
  std::array<at::Tensor, 3> weights;
  std::size_t count = 0;
  for (const Role role : roles) weights[count++] = value(role);
  const auto& packed = slots.pack(*roles.begin());
  const std::span<const at::Tensor> used(weights.data(), count);
  const double tolerance = packed->precision() == kernels::Precision::kFloat32 ? kRounding : kRoundingBfloat16;
  return tensor::choose(backends.matmul, "matmul", tolerance, [&](tensor::Where where) { return tensor::linear(x, used, packed, where); },
                        [&] { return tensor::aten::linear(x, used, packed->precision()); });
}

at::Tensor Context::norm(const at::Tensor& x, Role role, const NormSpec& spec) const {
  return tensor::choose(backends.norm, "norm", kRounding,
                        [&](tensor::Where where) { return tensor::rmsnorm(x, value(role), spec.eps, spec.weight_offset, where); },
                        [&] { return tensor::aten::rmsnorm(x, value(role), spec.eps, spec.weight_offset); });
}

tensor::RopeRows rope_rows(RopeTable& table, std::span<const std::int32_t> positions) {
  tensor::RopeRows rows;
  for (at::Tensor* part : {&rows.cos, &rows.sin})
    *part = at::empty({static_cast<std::int64_t>(positions.size()), table.pairs()},
                      at::TensorOptions().dtype(at::kFloat));
  table.gather(positions, rows.cos.data_ptr<float>(), rows.sin.data_ptr<float>());
  return rows;
}

tensor::RopeRows Context::rope_at(int rope, std::span<const std::int32_t> positions) const {
  return rope_rows(tables[static_cast<std::size_t>(rope)], positions);
}

namespace {

at::Tensor attention_part(const Context& context, const AttentionSpec& spec, const at::Tensor& x) {
  switch (spec.kind) {
    case AttentionKind::kGroupedQuery:
      return grouped_query_attention(context, spec, x);
    case AttentionKind::kLatent:
      return latent_attention(context, spec, x);
    case AttentionKind::kDeltaNet:
      return delta_net(context, spec, x);
    case AttentionKind::kCompressed:
      return compressed_attention(context, spec, x);
  }
  return {};
}

at::Tensor activate(const Context& context, const at::Tensor& gate_up) {
  return tensor::choose(context.backends.activation, "activation", kRounding, [&](tensor::Where where) { return tensor::swiglu(gate_up, where); },
                        [&] { return tensor::aten::swiglu(gate_up); });
}

at::Tensor ffn_part(const Context& context, const FfnSpec& spec, const at::Tensor& x) {
  switch (spec.kind) {
    case FfnKind::kSwiGlu:
      return context.project(activate(context, context.project(x, {Role::kFfnGate, Role::kFfnUp})), {Role::kFfnDown});
    case FfnKind::kExperts:
      return expert_ffn(context, spec.experts, x);
  }
  return {};
}

at::Tensor add_change(at::Tensor h, const at::Tensor& change) {
  return tensor::grad_enabled() ? h.add(change) : tensor::add_in_place(std::move(h), change.contiguous());
}

at::Tensor pre_norm_layer(const Context& context, const LayerSpec& layer, at::Tensor h) {
  h = add_change(h, attention_part(context, layer.attention, context.norm(h, Role::kAttentionNorm, layer.attention_norm)));
  return add_change(h, ffn_part(context, layer.ffn, context.norm(h, Role::kFfnNorm, layer.ffn_norm)));
}

/// alpha h + beta change, with beta = sigmoid(g / t) and alpha = sqrt(max(sigmoid(-g / t) (1 + beta), 1e-3)).
at::Tensor gated_add(const Context& context, Role gate, double temperature, const at::Tensor& h,
                     const at::Tensor& change) {
  const at::Tensor w = context.value(gate) / temperature;
  const at::Tensor beta = tensor::sigmoid(w);
  const at::Tensor alpha = (tensor::sigmoid(w.neg()) * (beta + 1)).clamp_min(1e-3).sqrt();
  return h * alpha + change * beta;
}

at::Tensor gated_layer(const Context& context, const LayerSpec& layer, at::Tensor h) {
  const std::int64_t width = context.model.width;
  const auto behind = [&](const at::Tensor& x) { return tensor::normalise(x, width, layer.post_norm_eps); };
  at::Tensor f = attention_part(context, layer.attention, context.norm(h, Role::kAttentionNorm, layer.attention_norm));
  h = gated_add(context, Role::kAttentionResidual, layer.gate_temperature, h, behind(f));
  f = ffn_part(context, layer.ffn, context.norm(h, Role::kFfnNorm, layer.ffn_norm));
  f = behind(f * (context.value(Role::kFfnPostNorm) + 1));
  return gated_add(context, Role::kFfnResidual, layer.gate_temperature, h, f);
}

/// Where the parameters of one site of hyper-connections are.
struct Site {
  Role fn, base, scale;
};

/// Sum over the streams of weights[:, first + j * step] * stream j.
at::Tensor mixed(const at::Tensor& h, const at::Tensor& weights, std::int64_t first, std::int64_t step,
                 std::int64_t streams) {
  const std::int64_t width = h.size(1) / streams;
  at::Tensor y = h.narrow(1, 0, width) * weights.narrow(1, first, 1);
  for (std::int64_t j = 1; j < streams; ++j)
    y = y + h.narrow(1, j * width, width) * weights.narrow(1, first + j * step, 1);
  return y;
}

/// Mixes the streams to f's input, and f's output with the streams.
template <class F>
at::Tensor hyper_site(const Context& context, const Site& site, const at::Tensor& h, F&& f) {
  const HyperSpec& hyper = context.model.hyper;
  const std::int64_t n = hyper.streams;
  const at::Tensor mix = tensor::hyper_mix(
      context.project(tensor::normalise(h, h.size(1), context.model.final_norm.eps), {site.fn}),
      context.value(site.base), context.value(site.scale), n, hyper.iterations, hyper.eps);
  const at::Tensor out = f(mixed(h, mix, 0, 1, n));
  std::vector<at::Tensor> streams;
  for (std::int64_t i = 0; i < n; ++i)
    streams.push_back(out * mix.narrow(1, n + i, 1) + mixed(h, mix, 2 * n + i, n, n));
  return at::cat(streams, 1);
}

at::Tensor hyper_layer(const Context& context, const LayerSpec& layer, at::Tensor h) {
  h = hyper_site(context, {Role::kHyperAttentionFn, Role::kHyperAttentionBase, Role::kHyperAttentionScale}, h,
                 [&](const at::Tensor& y) {
                   return attention_part(context, layer.attention,
                                         context.norm(y, Role::kAttentionNorm, layer.attention_norm));
                 });
  return hyper_site(context, {Role::kHyperFfnFn, Role::kHyperFfnBase, Role::kHyperFfnScale}, h,
                    [&](const at::Tensor& y) {
                      return ffn_part(context, layer.ffn, context.norm(y, Role::kFfnNorm, layer.ffn_norm));
                    });
}

}  // namespace

at::Tensor decoder_layer(const Context& context, const LayerSpec& layer, at::Tensor h) {
  switch (layer.residual) {
    case ResidualKind::kPreNorm:
      return pre_norm_layer(context, layer, std::move(h));
    case ResidualKind::kGated:
      return gated_layer(context, layer, std::move(h));
    case ResidualKind::kHyper:
      return hyper_layer(context, layer, std::move(h));
  }
  return h;
}

at::Tensor merge_streams(const Context& context, const at::Tensor& h) {
  if (!context.has(Role::kHyperHeadFn)) return h;
  const at::Tensor mix =
      context.project(tensor::normalise(h, h.size(1), context.model.final_norm.eps), {Role::kHyperHeadFn});
  const at::Tensor pre =
      tensor::sigmoid(mix * context.value(Role::kHyperHeadScale) + context.value(Role::kHyperHeadBase)) +
      context.model.hyper.eps;
  return mixed(h, pre, 0, 1, context.model.hyper.streams);
}

}  // namespace troupe::model
