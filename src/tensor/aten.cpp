#include "tensor/aten.h"

#include <ATen/ATen.h>

#include <optional>
#include <stdexcept>
#include <string>
#include <vector>

namespace troupe::tensor {

namespace aten {

at::Tensor linear(const at::Tensor& x, std::span<const at::Tensor> weights, kernels::Precision precision) {
  const at::ScalarType type = precision == kernels::Precision::kBfloat16 ? at::kBFloat16 : at::kFloat;
  const at::Tensor rows = x.to(type);
  std::vector<at::Tensor> parts;
  for (const at::Tensor& weight : weights) parts.push_back(at::linear(rows, weight.to(type)).to(at::kFloat));
  return parts.size() == 1 ? parts.front() : at::cat(parts, 1);
}

at::Tensor rmsnorm(const at::Tensor& x, const at::Tensor& weight, double eps, double offset) {
  const at::Tensor scale = at::rsqrt(x.square().mean(-1, true) + eps);
  return x * scale * (offset == 0 ? weight : weight + offset);
}

at::Tensor swiglu(const at::Tensor& gate_up) {
  const std::int64_t width = gate_up.size(1) / 2;
  return at::silu(gate_up.narrow(1, 0, width)) * gate_up.narrow(1, width, width);
}

at::Tensor attention(const at::Tensor& rows_of_heads, const HeadLayout& layout, float scale, std::span<const RowSegment> segments,
                     kernels::Precision precision) {
  const at::Tensor qkv = precision == kernels::Precision::kBfloat16 ? rows_of_heads.to(at::kBFloat16) : rows_of_heads;
  const std::int64_t query = layout.heads * layout.head_dim, key = layout.kv_heads * layout.head_dim;
  const auto heads = [&](std::int64_t first, std::int64_t columns, std::int64_t begin, std::int64_t end) {  // [1, heads, rows, head_dim]
    return qkv.narrow(0, begin, end - begin).narrow(1, first, columns).reshape({1, end - begin, columns / layout.head_dim, layout.head_dim}).transpose(1, 2);
  };
  std::vector<at::Tensor> rows;
  for (const RowSegment& s : segments) {
    const at::Tensor q = heads(0, query, s.begin, s.end);
    at::Tensor k = heads(query, key, s.begin, s.end), v = heads(query + key, key, s.begin, s.end);
    std::optional<at::Tensor> mask;
    if (const std::int64_t before = s.prefix_end - s.prefix_begin; before > 0) {
      k = at::cat({heads(query, key, s.prefix_begin, s.prefix_end), k}, 2);
      v = at::cat({heads(query + key, key, s.prefix_begin, s.prefix_end), v}, 2);
      mask = at::ones({s.end - s.begin, before + s.end - s.begin}, at::kBool).tril(before);
    }
    const at::Tensor out = at::scaled_dot_product_attention(q, k, v, mask, 0.0, !mask, static_cast<double>(scale), true);
    rows.push_back(out.transpose(1, 2).reshape({s.end - s.begin, query}));
  }
  return at::cat(rows, 0).to(at::kFloat);
}

} // namespace aten

void expect_close(const char* operation, const at::Tensor& ours, const at::Tensor& theirs, double tolerance) {
  const auto largest = [](const at::Tensor& t) { return t.numel() == 0 ? 0.0 : t.abs().max().item<double>(); };
  const double difference = largest(ours - theirs), allowed = tolerance * largest(theirs);
  const bool both_broken = !ours.isfinite().all().item<bool>() && !theirs.isfinite().all().item<bool>();
  if (difference <= allowed || both_broken) return;
  throw std::runtime_error(std::string("kernels.") + operation + " = \"check\": the two differ by up to " + std::to_string(difference) +
                           ", allowed is " + std::to_string(allowed));
}

} // namespace troupe::tensor
