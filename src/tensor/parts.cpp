#include "tensor/parts.h"

#include <ATen/ATen.h>

#include <array>
#include <vector>

#include "base/check.h"
#include "kernels/offload.h"
#include "kernels/pointwise.h"
#include "kernels/streams.h"
#include "tensor/recorded.h"

namespace troupe::tensor {

namespace {

at::Tensor pointwise(kernels::Pointwise function, const at::Tensor& x) {
  const at::Tensor in = x.contiguous();
  at::Tensor y = at::empty_like(in);
  kernels::pointwise(function, in.data_ptr<float>(), y.data_ptr<float>(), in.numel());
  return y;
}

at::Tensor rotated(const at::Tensor& x, std::int64_t heads, const RopeRows& rope, bool inverse) {
  at::Tensor y = x.contiguous().clone();
  kernels::RopePairs args;
  args.x = y.data_ptr<float>();
  args.cos = rope.cos.data_ptr<float>();
  args.sin = rope.sin.data_ptr<float>();
  args.rows = x.size(0);
  args.heads = heads;
  args.head_dim = x.size(1) / heads;
  args.pairs = rope.cos.size(1);
  args.inverse = inverse;
  kernels::rope_pairs(args);
  return y;
}

at::Tensor hyper_mix_formula(std::span<const at::Tensor> in, std::int64_t n, std::int64_t iterations, double eps) {
  const at::Tensor& m = in[0];
  const at::Tensor& base = in[1];
  const at::Tensor& scale = in[2];
  const auto part = [&](std::int64_t i, std::int64_t begin, std::int64_t width) {
    return m.narrow(1, begin, width) * scale[i] + base.narrow(0, begin, width);
  };
  at::Tensor c = part(2, 2 * n, n * n).view({-1, n, n}).softmax(-1) + eps;
  c = c / (c.sum(1, true) + eps);
  for (std::int64_t i = 1; i < iterations; ++i) {
    c = c / (c.sum(2, true) + eps);
    c = c / (c.sum(1, true) + eps);
  }
  return at::cat({part(0, 0, n).sigmoid() + eps, 2 * part(1, n, n).sigmoid(), c.view({-1, n * n})}, 1);
}

}  // namespace

at::Tensor sigmoid(const at::Tensor& x) {
  return recorded(pointwise(kernels::Pointwise::kSigmoid, x), {x}, [](auto in) { return in[0].sigmoid(); });
}
at::Tensor softplus(const at::Tensor& x) {
  return recorded(pointwise(kernels::Pointwise::kSoftplus, x), {x}, [](auto in) { return at::softplus(in[0]); });
}
at::Tensor silu(const at::Tensor& x) {
  return recorded(pointwise(kernels::Pointwise::kSilu, x), {x}, [](auto in) { return at::silu(in[0]); });
}
at::Tensor exponential(const at::Tensor& x) {
  return recorded(pointwise(kernels::Pointwise::kExp, x), {x}, [](auto in) { return in[0].exp(); });
}

at::Tensor gated_unit_formula(const at::Tensor& gate_up, const GatedUnit& unit) {
  const auto halves = gate_up.chunk(2, 1);
  at::Tensor gate = halves[0];
  at::Tensor up = halves[1];
  if (unit.limit > 0) {
    gate = gate.clamp_max(unit.limit);
    up = up.clamp(-unit.limit, unit.limit);
  }
  return (up + unit.up_offset) * gate * (gate * unit.alpha).sigmoid();
}

void gated_unit(const float* gate_up, float* y, std::int64_t rows, std::int64_t cols, const GatedUnit& unit, Where where) {
  if (unit.plain()) return done(kernels::run(where, kernels::SwigluForward{gate_up, gate_up + cols, y, rows, cols, 2 * cols}));
  kernels::GatedUnit args;
  args.gate_up = gate_up;
  args.y = y;
  args.rows = rows;
  args.cols = cols;
  args.limit = static_cast<float>(unit.limit);
  args.alpha = static_cast<float>(unit.alpha);
  args.up_offset = static_cast<float>(unit.up_offset);
  done(kernels::run(where, args));
}

at::Tensor gated_unit(const at::Tensor& gate_up, const GatedUnit& unit, Where where) {
  if (unit.plain()) return swiglu(gate_up, where);
  at::Tensor y = at::empty({gate_up.size(0), gate_up.size(1) / 2}, gate_up.options());
  gated_unit(gate_up.data_ptr<float>(), y.data_ptr<float>(), y.size(0), y.size(1), unit, where);
  return recorded(y, {gate_up}, [unit](auto in) { return gated_unit_formula(in[0], unit); });
}

at::Tensor rotate_pairs(const at::Tensor& x, std::int64_t heads, const RopeRows& rope, bool inverse) {
  TROUPE_CHECK(x.dim() == 2 && x.size(1) % heads == 0, "rows of heads");
  return recorded(rotated(x, heads, rope, inverse), {x}, [heads, rope, inverse](auto in) {
    const std::int64_t turned = 2 * rope.cos.size(1);
    const at::Tensor all = in[0].view({in[0].size(0), heads, -1});
    const std::int64_t still = all.size(2) - turned;
    const at::Tensor pairs = all.narrow(2, still, turned).reshape({in[0].size(0), heads, -1, 2});
    const at::Tensor c = rope.cos.unsqueeze(1);
    const at::Tensor s = inverse ? rope.sin.unsqueeze(1).neg() : rope.sin.unsqueeze(1);
    const at::Tensor a = pairs.select(3, 0);
    const at::Tensor b = pairs.select(3, 1);
    const at::Tensor out = at::stack({a * c - b * s, b * c + a * s}, 3).flatten(2);
    return at::cat({all.narrow(2, 0, still), out}, 2).flatten(1);
  });
}

at::Tensor normalise(const at::Tensor& x, std::int64_t width, double eps) {
  const at::Tensor rows = x.contiguous().view({-1, width});
  return rmsnorm(rows, at::ones({width}, x.options().requires_grad(false)), eps, 0).view(x.sizes());
}

at::Tensor hyper_mix(const at::Tensor& mix, const at::Tensor& base, const at::Tensor& scale, std::int64_t streams,
                     std::int64_t iterations, double eps) {
  at::Tensor out = at::empty_like(mix);
  kernels::HyperMix args;
  args.mix = mix.data_ptr<float>();
  args.base = base.data_ptr<float>();
  args.scale = scale.data_ptr<float>();
  args.out = out.data_ptr<float>();
  args.rows = mix.size(0);
  args.streams = streams;
  args.iterations = iterations;
  args.eps = static_cast<float>(eps);
  kernels::hyper_mix(args);
  return recorded(out, {mix, base, scale},
                  [streams, iterations, eps](auto in) { return hyper_mix_formula(in, streams, iterations, eps); });
}

}  // namespace troupe::tensor
