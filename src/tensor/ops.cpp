#include "tensor/ops.h"

#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/from_blob.h>
#include <ATen/ops/zeros.h>
#include <torch/csrc/autograd/custom_function.h>

#include <cstring>
#include <optional>

#include "base/check.h"
#include "kernels/norms.h"
#include "kernels/offload.h"
#include "kernels/rmsnorm.h"
#include "kernels/rope.h"
#include "kernels/swiglu.h"
#include "tensor/workspace.h"

namespace troupe::tensor {

namespace {

using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

void keep(AutogradContext* ctx, Where where) { ctx->saved_data["where"] = static_cast<std::int64_t>(where); }
Where kept_where(AutogradContext* ctx) { return static_cast<Where>(ctx->saved_data["where"].toInt()); }

/// The weight as the kernel multiplies it.
at::Tensor shifted(const at::Tensor& weight, double offset) { return offset == 0 ? weight : weight.add(offset); }

at::Tensor rmsnorm_rows(const at::Tensor& x, const at::Tensor& weight, double eps, double offset, Where where, at::Tensor* inv_rms) {
  const at::Tensor w = shifted(weight, offset);
  at::Tensor y = inv_rms != nullptr ? at::empty_like(x) : unrecorded_rows(x.size(0), x.size(1));
  kernels::RmsNormForward args;
  args.x = x.data_ptr<float>();
  args.weight = w.data_ptr<float>();
  args.y = y.data_ptr<float>();
  args.rows = x.size(0);
  args.cols = x.size(1);
  args.eps = static_cast<float>(eps);
  if (inv_rms != nullptr) {
    *inv_rms = at::empty({x.size(0)}, x.options());
    args.inv_rms = inv_rms->data_ptr<float>();
  }
  done(kernels::run(where, args));
  return y;
}

struct RmsNormFunction : torch::autograd::Function<RmsNormFunction> {
  static at::Tensor forward(AutogradContext* ctx, const at::Tensor& x, const at::Tensor& weight, double eps,
                            double offset, Where where) {
    at::Tensor inv_rms;
    at::Tensor y = rmsnorm_rows(x, weight, eps, offset, where, &inv_rms);
    ctx->save_for_backward({x, weight, inv_rms});
    ctx->saved_data["offset"] = offset;
    keep(ctx, where);
    return y;
  }

  static variable_list backward(AutogradContext* ctx, const variable_list& gradients) {
    const variable_list saved = ctx->get_saved_variables();
    const at::Tensor& x = saved[0];
    const at::Tensor dy = gradients[0].contiguous();
    const at::Tensor w = shifted(saved[1], ctx->saved_data["offset"].toDouble());
    at::Tensor dx = at::empty_like(x);
    at::Tensor dweight = at::empty_like(w);
    kernels::RmsNormBackward args;
    args.x = x.data_ptr<float>();
    args.weight = w.data_ptr<float>();
    args.inv_rms = saved[2].data_ptr<float>();
    args.dy = dy.data_ptr<float>();
    args.dx = dx.data_ptr<float>();
    args.dweight = dweight.data_ptr<float>();
    args.rows = x.size(0);
    args.cols = x.size(1);
    done(kernels::run(kept_where(ctx), args));
    return {dx, dweight, at::Tensor(), at::Tensor(), at::Tensor()};
  }
};

at::Tensor swiglu_rows(const at::Tensor& gate_up, bool recorded, Where where) {
  const std::int64_t width = gate_up.size(1) / 2;
  at::Tensor y =
      recorded ? at::empty({gate_up.size(0), width}, gate_up.options()) : unrecorded_rows(gate_up.size(0), width);
  kernels::SwigluForward args;
  args.gate = gate_up.data_ptr<float>();
  args.up = args.gate + width;
  args.y = y.data_ptr<float>();
  args.rows = gate_up.size(0);
  args.cols = width;
  args.in_stride = 2 * width;
  done(kernels::run(where, args));
  return y;
}

struct SwigluFunction : torch::autograd::Function<SwigluFunction> {
  static at::Tensor forward(AutogradContext* ctx, const at::Tensor& gate_up, Where where) {
    ctx->save_for_backward({gate_up});
    keep(ctx, where);
    return swiglu_rows(gate_up, true, where);
  }

  static variable_list backward(AutogradContext* ctx, const variable_list& gradients) {
    const at::Tensor gate_up = ctx->get_saved_variables()[0];
    const at::Tensor dy = gradients[0].contiguous();
    at::Tensor result = at::empty_like(gate_up);
    const std::int64_t width = dy.size(1);
    kernels::SwigluBackward args;
    args.gate = gate_up.data_ptr<float>();
    args.up = args.gate + width;
    args.dy = dy.data_ptr<float>();
    args.dgate = result.data_ptr<float>();
    args.dup = args.dgate + width;
    args.rows = dy.size(0);
    args.cols = width;
    args.in_stride = 2 * width;
    args.out_stride = 2 * width;
    done(kernels::run(kept_where(ctx), args));
    return {result, at::Tensor()};
  }
};

at::Tensor gather_rows(const at::Tensor& weight, const at::Tensor& ids) {
  const std::int64_t width = weight.size(1);
  at::Tensor rows = at::empty({ids.numel(), width}, weight.options());
  const auto* id = ids.data_ptr<std::int32_t>();
  for (std::int64_t i = 0; i < ids.numel(); ++i) {
    TROUPE_CHECK(id[i] >= 0 && id[i] < weight.size(0), "a token id lies outside the vocabulary");
    std::memcpy(rows.data_ptr<float>() + i * width, weight.data_ptr<float>() + id[i] * width,
                sizeof(float) * static_cast<std::size_t>(width));
  }
  return rows;
}

struct EmbeddingFunction : torch::autograd::Function<EmbeddingFunction> {
  static at::Tensor forward(AutogradContext* ctx, const at::Tensor& weight, const at::Tensor& ids) {
    ctx->save_for_backward({ids});
    ctx->saved_data["rows"] = weight.size(0);
    return gather_rows(weight, ids);
  }

  static variable_list backward(AutogradContext* ctx, const variable_list& gradients) {
    const at::Tensor ids = ctx->get_saved_variables()[0];
    const at::Tensor dy = gradients[0].contiguous();
    const std::int64_t width = dy.size(1);
    at::Tensor dweight = at::zeros({ctx->saved_data["rows"].toInt(), width}, dy.options());
    const auto* id = ids.data_ptr<std::int32_t>();
    const float* from = dy.data_ptr<float>();
    for (std::int64_t i = 0; i < ids.numel(); ++i) {
      float* to = dweight.data_ptr<float>() + id[i] * width;
      for (std::int64_t c = 0; c < width; ++c) to[c] += from[i * width + c];
    }
    return {dweight, at::Tensor()};
  }
};

/// Which columns of a fused row one kind of heads takes.
struct HeadRange {
  std::int64_t first = 0;  ///< Floats before it.
  std::int64_t heads = 0;
};

void normalise(const float* x, float* y, float* inv_rms, std::int64_t rows, const HeadLayout& layout, HeadRange range,
               const at::Tensor& weight, double eps, Where where) {
  kernels::RmsNormForward args;
  args.x = x + range.first;
  args.y = y + range.first;
  args.weight = weight.data_ptr<float>();
  args.inv_rms = inv_rms;
  args.rows = rows;
  args.cols = layout.head_dim;
  args.heads = range.heads;
  args.x_stride = layout.row();
  args.y_stride = layout.row();
  args.eps = static_cast<float>(eps);
  done(kernels::run(where, args));
}

/// Query and key heads lie side by side, so one call turns both.
void rotate(float* qkv, std::int64_t rows, const HeadLayout& layout, const at::Tensor& cos, const at::Tensor& sin,
            bool inverse) {
  if (!cos.defined()) return;
  kernels::Rope args;
  args.x = qkv;
  args.cos = cos.data_ptr<float>();
  args.sin = sin.data_ptr<float>();
  args.rows = rows;
  args.heads = layout.heads + layout.kv_heads;
  args.head_dim = layout.head_dim;
  args.stride = layout.row();
  args.rotary = 2 * cos.size(1);
  args.inverse = inverse;
  kernels::rope(args);
}

struct HeadsFunction : torch::autograd::Function<HeadsFunction> {
  using Maybe = std::optional<at::Tensor>;

  static at::Tensor forward(AutogradContext* ctx, const at::Tensor& qkv, const Maybe& maybe_q_weight,
                            const Maybe& maybe_k_weight, const Maybe& maybe_cos, const Maybe& maybe_sin,
                            const HeadLayout& layout, double q_eps, double k_eps, Where where) {
    const std::int64_t rows = qkv.size(0);
    const at::Tensor q_weight = maybe_q_weight.value_or(at::Tensor());
    const at::Tensor k_weight = maybe_k_weight.value_or(at::Tensor());
    const at::Tensor cos = maybe_cos.value_or(at::Tensor());
    const at::Tensor sin = maybe_sin.value_or(at::Tensor());
    const bool normed = q_weight.defined();
    at::Tensor y = qkv.clone();
    at::Tensor q_inv, k_inv;
    if (normed) {
      q_inv = at::empty({rows, layout.heads}, qkv.options());
      k_inv = at::empty({rows, layout.kv_heads}, qkv.options());
      const float* x = qkv.data_ptr<float>();
      normalise(x, y.data_ptr<float>(), q_inv.data_ptr<float>(), rows, layout, {0, layout.heads}, q_weight, q_eps, where);
      normalise(x, y.data_ptr<float>(), k_inv.data_ptr<float>(), rows, layout,
                {layout.heads * layout.head_dim, layout.kv_heads}, k_weight, k_eps, where);
    }
    rotate(y.data_ptr<float>(), rows, layout, cos, sin, false);
    ctx->save_for_backward({normed ? qkv : at::Tensor(), q_weight, k_weight, cos, sin, q_inv, k_inv});
    ctx->saved_data["layout"] = std::vector<std::int64_t>{layout.heads, layout.kv_heads, layout.head_dim};
    keep(ctx, where);
    return y;
  }

  static variable_list backward(AutogradContext* ctx, const variable_list& gradients) {
    const variable_list saved = ctx->get_saved_variables();
    const auto sizes = ctx->saved_data["layout"].toIntVector();
    const HeadLayout layout{sizes[0], sizes[1], sizes[2]};
    at::Tensor dx = gradients[0].clone();
    rotate(dx.data_ptr<float>(), dx.size(0), layout, saved[3], saved[4], true);
    const Where where = kept_where(ctx);
    variable_list result(9);
    if (saved[0].defined()) {
      result[1] = unnormalise(saved[0], dx, layout, {0, layout.heads}, saved[1], saved[5], where);
      result[2] =
          unnormalise(saved[0], dx, layout, {layout.heads * layout.head_dim, layout.kv_heads}, saved[2], saved[6], where);
    }
    result[0] = dx;
    return result;
  }

  /// The gradient in `dx`, of the normalised heads, becomes that of the heads before; returns the weight's.
  static at::Tensor unnormalise(const at::Tensor& x, const at::Tensor& dx, const HeadLayout& layout, HeadRange range,
                                const at::Tensor& weight, const at::Tensor& inv_rms, Where where) {
    at::Tensor dweight = at::empty_like(weight);
    kernels::RmsNormBackward args;
    args.x = x.data_ptr<float>() + range.first;
    args.weight = weight.data_ptr<float>();
    args.inv_rms = inv_rms.data_ptr<float>();
    args.dy = dx.data_ptr<float>() + range.first;
    args.dx = dx.data_ptr<float>() + range.first;
    args.dweight = dweight.data_ptr<float>();
    args.rows = x.size(0);
    args.cols = layout.head_dim;
    args.heads = range.heads;
    args.x_stride = args.dy_stride = args.dx_stride = layout.row();
    done(kernels::run(where, args));
    return dweight;
  }
};

}  // namespace

at::Tensor rmsnorm(const at::Tensor& x, const at::Tensor& weight, double eps, double offset, Where where) {
  TROUPE_CHECK(x.dim() == 2 && x.is_contiguous() && weight.numel() == x.size(1),
               "the norm's weight must be as wide as its input");
  if (!at::GradMode::is_enabled()) return rmsnorm_rows(x, weight, eps, offset, where, nullptr);
  return RmsNormFunction::apply(x, weight, eps, offset, where);
}

at::Tensor add_in_place(at::Tensor y, const at::Tensor& x) {
  TROUPE_CHECK(y.sizes() == x.sizes() && y.is_contiguous() && x.is_contiguous(), "a sum of equal shapes");
  kernels::add(x.data_ptr<float>(), y.data_ptr<float>(), y.numel());
  return y;
}

at::Tensor swiglu(const at::Tensor& gate_up, Where where) {
  TROUPE_CHECK(gate_up.dim() == 2 && gate_up.is_contiguous() && gate_up.size(1) % 2 == 0,
               "rows of gate and up, side by side");
  if (!at::GradMode::is_enabled()) return swiglu_rows(gate_up, false, where);
  return SwigluFunction::apply(gate_up, where);
}

at::Tensor embedding(const at::Tensor& weight, std::span<const std::int32_t> ids) {
  at::Tensor index = at::empty({static_cast<std::int64_t>(ids.size())}, at::TensorOptions().dtype(at::kInt));
  if (!ids.empty()) std::memcpy(index.data_ptr<std::int32_t>(), ids.data(), ids.size_bytes());
  if (!at::GradMode::is_enabled()) return gather_rows(weight, index);
  return EmbeddingFunction::apply(weight, index);
}

at::Tensor normalise_and_rotate(at::Tensor qkv, const HeadLayout& layout, const HeadNorm& q_norm,
                                const HeadNorm& k_norm, const RopeRows& rope, Where where) {
  TROUPE_CHECK(qkv.dim() == 2 && qkv.is_contiguous() && qkv.size(1) == layout.row(),
               "fused rows of query, key and value heads");
  TROUPE_CHECK(q_norm.weight.defined() == k_norm.weight.defined(),
               "query and key heads are normalised together or not at all");
  const at::Tensor q_weight = q_norm.weight.defined() ? shifted(q_norm.weight, q_norm.offset) : at::Tensor();
  const at::Tensor k_weight = k_norm.weight.defined() ? shifted(k_norm.weight, k_norm.offset) : at::Tensor();
  if (at::GradMode::is_enabled()) {
    const auto maybe = [](const at::Tensor& tensor) { return tensor.defined() ? std::optional(tensor) : std::nullopt; };
    return HeadsFunction::apply(qkv, maybe(q_weight), maybe(k_weight), maybe(rope.cos), maybe(rope.sin), layout,
                                q_norm.eps, k_norm.eps, where);
  }
  float* rows = qkv.data_ptr<float>();
  if (q_weight.defined()) {
    normalise(rows, rows, nullptr, qkv.size(0), layout, {0, layout.heads}, q_weight, q_norm.eps, where);
    normalise(rows, rows, nullptr, qkv.size(0), layout, {layout.heads * layout.head_dim, layout.kv_heads}, k_weight,
              k_norm.eps, where);
  }
  rotate(rows, qkv.size(0), layout, rope.cos, rope.sin, false);
  return qkv;
}

}  // namespace troupe::tensor
