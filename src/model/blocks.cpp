#include "model/blocks.h"

#include "tensor/autograd.h"

namespace troupe::model {

namespace {

template <std::size_t N>
at::Tensor project(const LayerContext& layer, const at::Tensor& x, const std::array<int, N>& slots,
                   const std::shared_ptr<tensor::PackedWeights>& packed) {
  std::array<at::Tensor, N> weights;
  for (std::size_t i = 0; i < N; ++i) weights[i] = layer.parameters[static_cast<std::size_t>(slots[i])].value;
  return tensor::linear(x, weights, packed);
}

at::Tensor norm(const LayerContext& layer, const at::Tensor& x, const NormSpec& spec, int slot) {
  return tensor::rmsnorm(x, layer.parameters[static_cast<std::size_t>(slot)].value, spec.eps, spec.weight_offset);
}

tensor::HeadNorm head_norm(const LayerContext& layer, const NormSpec& spec, int slot) {
  if (slot < 0) return {};
  return {layer.parameters[static_cast<std::size_t>(slot)].value, spec.eps, spec.weight_offset};
}

at::Tensor grouped_query_attention(const LayerContext& layer, const at::Tensor& x) {
  const AttentionSpec& spec = layer.spec.attention;
  const LayerSlots& slots = layer.slots;
  const tensor::HeadLayout layout{spec.heads, spec.kv_heads, spec.head_dim};
  at::Tensor qkv = project(layer, x, slots.qkv, slots.packed_qkv);
  qkv = tensor::normalise_and_rotate(std::move(qkv), layout, head_norm(layer, spec.q_norm, slots.q_norm),
                                     head_norm(layer, spec.k_norm, slots.k_norm), layer.rope);
  const at::Tensor out = layer.attend(qkv, layout, static_cast<float>(spec.scale));
  return project(layer, out, std::array{slots.attention_out}, slots.packed_out);
}

at::Tensor attention_part(const LayerContext& layer, const at::Tensor& x) {
  switch (layer.spec.attention.kind) {
    case AttentionKind::kGroupedQuery:
      return grouped_query_attention(layer, x);
  }
  return {};
}

at::Tensor swiglu_ffn(const LayerContext& layer, const at::Tensor& x) {
  const at::Tensor gate_up = project(layer, x, layer.slots.gate_up, layer.slots.packed_gate_up);
  return project(layer, tensor::swiglu(gate_up), std::array{layer.slots.down}, layer.slots.packed_down);
}

at::Tensor ffn_part(const LayerContext& layer, const at::Tensor& x) {
  switch (layer.spec.ffn.kind) {
    case FfnKind::kSwiGlu:
      return swiglu_ffn(layer, x);
  }
  return {};
}

at::Tensor add(at::Tensor h, const at::Tensor& change) {
  return tensor::grad_enabled() ? h.add(change) : tensor::add_in_place(std::move(h), change);
}

}  // namespace

at::Tensor decoder_layer(const LayerContext& layer, at::Tensor h) {
  switch (layer.spec.residual) {
    case ResidualKind::kPreNorm:
      h = add(h, attention_part(layer, norm(layer, h, layer.spec.attention_norm, layer.slots.attention_norm)));
      return add(h, ffn_part(layer, norm(layer, h, layer.spec.ffn_norm, layer.slots.ffn_norm)));
  }
  return h;
}

}  // namespace troupe::model
