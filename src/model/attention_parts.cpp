// Grouped-query and latent attention.
#include <ATen/ops/cat.h>
#include <ATen/ops/full.h>
#include <ATen/ops/empty.h>

#include <cmath>

#include "base/check.h"
#include "model/blocks.h"
#include "tensor/attention.h"
#include "tensor/autograd.h"
#include "tensor/parts.h"

namespace troupe::model {

namespace {

at::Tensor constant(std::int64_t n, double value) {
  return at::full({n}, value, at::TensorOptions().dtype(at::kFloat));
}

tensor::HeadNorm head_norm(const Context& context, const AttentionSpec& spec, Role role, const NormSpec& norm,
                           double multiplier) {
  if (!spec.qk_norm) return {};
  if (!spec.qk_norm_weights) return {constant(spec.head_dim, multiplier), norm.eps, 0};
  return {context.value(role), norm.eps, norm.weight_offset};
}

/// q|k|v rows, with the gate of every query head (undefined: none).
struct Projected {
  at::Tensor qkv, gate;
};

Projected project_heads(const Context& context, const AttentionSpec& spec, const at::Tensor& x) {
  at::Tensor qkv = context.project(x, {Role::kQ, Role::kK, Role::kV});
  if (spec.biases)
    qkv = qkv + at::cat({context.value(Role::kQBias), context.value(Role::kKBias), context.value(Role::kVBias)});
  if (spec.gate == AttentionGate::kOwn) return {qkv, context.project(x, {Role::kOutGate})};
  if (spec.gate == AttentionGate::kNone) return {qkv, {}};
  const std::int64_t query = spec.heads * spec.head_dim;
  const at::Tensor both = qkv.narrow(1, 0, 2 * query).reshape({-1, spec.heads, 2, spec.head_dim});
  const at::Tensor rest = qkv.narrow(1, 2 * query, 2 * spec.kv_heads * spec.head_dim);
  return {at::cat({both.select(2, 0).flatten(1), rest}, 1), both.select(2, 1).flatten(1)};
}

at::Tensor attend_pages(const Context& context, const at::Tensor& qkv, const tensor::HeadLayout& layout, float scale) {
  const Sight& sight = context.sight;
  const kernels::Precision precision = context.precision;
  if (sight.cache == nullptr)
    return tensor::choose(context.backends.attention, "attention", precision == kernels::Precision::kFloat32 ? 1e-4 : 2e-2,
                          [&](tensor::Where where) { return tensor::attention(qkv, layout, scale, sight.segments, precision, where); },
                          [&] { return tensor::aten::attention(qkv, layout, scale, sight.segments, precision); });
  TROUPE_CHECK(sight.cache->precision() == precision, "the cache was made for another precision");
  std::vector<kernels::KvPage> pages;
  for (const KvSegment& s : sight.batch->segments)
    for (const std::int32_t page : s.pages) pages.push_back(sight.cache->page(context.place, page));
  std::vector<tensor::PagedSegment> segments;
  const kernels::KvPage* first = pages.data();
  for (const KvSegment& s : sight.batch->segments) {
    segments.push_back({s.begin, s.end, s.cached, {first, s.pages.size()}});
    first += s.pages.size();
  }
  return tensor::paged_attention(qkv, layout, scale, segments, precision);
}

}  // namespace

at::Tensor grouped_query_attention(const Context& context, const AttentionSpec& spec, const at::Tensor& x) {
  const tensor::HeadLayout layout{spec.heads, spec.kv_heads, spec.head_dim};
  Projected heads = project_heads(context, spec, x);
  const tensor::RopeRows rope = spec.rope < 0 ? tensor::RopeRows{} : context.ropes[static_cast<std::size_t>(spec.rope)];
  const at::Tensor qkv = tensor::normalise_and_rotate(
      std::move(heads.qkv), layout, head_norm(context, spec, Role::kQNorm, spec.q_norm, spec.q_multiplier),
      head_norm(context, spec, Role::kKNorm, spec.k_norm, 1), rope, tensor::where_of(context.backends.norm));
  at::Tensor out;
  if (uses_head_pages(spec)) {
    out = attend_pages(context, qkv, layout, static_cast<float>(spec.scale));
  } else {
    const std::int64_t query = spec.heads * spec.head_dim;
    const std::int64_t key = spec.kv_heads * spec.head_dim;
    out = attend_rows(context, qkv.narrow(1, 0, query).contiguous(), qkv.narrow(1, query, 2 * key).contiguous(),
                      context.value(Role::kSinks),
                      {spec.heads, spec.kv_heads, spec.head_dim, spec.head_dim, key, spec.scale, spec.window});
  }
  if (spec.out_norm_eps > 0) out = tensor::normalise(out, spec.head_dim, spec.out_norm_eps);
  if (heads.gate.defined()) out = out * tensor::sigmoid(heads.gate);
  out = context.project(out, {Role::kOut});
  return spec.biases ? out + context.value(Role::kOutBias) : out;
}

at::Tensor latent_attention(const Context& context, const AttentionSpec& spec, const at::Tensor& x) {
  const LatentSpec& l = spec.latent;
  const std::int64_t key = l.nope_dim + l.rope_dim;
  const tensor::RopeRows& rope = context.ropes[static_cast<std::size_t>(spec.rope)];
  at::Tensor q = l.q_rank == 0 ? context.project(x, {Role::kQ})
                               : context.project(context.norm(context.project(x, {Role::kQDown}), Role::kQDownNorm,
                                                              spec.q_norm),
                                                 {Role::kQUp});
  q = tensor::rotate_pairs(q, spec.heads, rope);
  const at::Tensor down = context.project(x, {Role::kKvDown});
  const at::Tensor latent =
      context.norm(down.narrow(1, 0, l.kv_rank).contiguous(), Role::kKvDownNorm, spec.k_norm);
  const at::Tensor shared_key =
      tensor::rotate_pairs(down.narrow(1, l.kv_rank, l.rope_dim).contiguous(), 1, rope);

  // The halves of kv_b, per head: its keys go into the query, its values behind the weighted sum.
  const at::Tensor up = context.value(Role::kKvUp).view({spec.heads, l.nope_dim + l.value_dim, l.kv_rank});
  const at::Tensor by_head = q.view({-1, spec.heads, key});
  const at::Tensor absorbed =
      tensor::group_linear(by_head.narrow(2, 0, l.nope_dim).flatten(1), up.narrow(1, 0, l.nope_dim).transpose(1, 2),
                           context.slots.group(Role::kKvUp), tensor::where_of(context.backends.matmul));
  const at::Tensor query = at::cat({absorbed.view({-1, spec.heads, l.kv_rank}), by_head.narrow(2, l.nope_dim, l.rope_dim)}, 2)
                               .flatten(1);
  const at::Tensor out =
      attend_rows(context, query.contiguous(), at::cat({latent, shared_key}, 1), {},
                  {spec.heads, 1, l.kv_rank + l.rope_dim, l.kv_rank, 0, spec.scale, spec.window});
  return context.project(
      tensor::group_linear(out, up.narrow(1, l.nope_dim, l.value_dim), context.slots.group(Role::kOut),
                           tensor::where_of(context.backends.matmul)),
      {Role::kOut});
}

}  // namespace troupe::model
