#include "tensor/experts.h"

#include <ATen/ATen.h>

#include <algorithm>
#include <array>

#include "base/check.h"
#include "tensor/linear.h"
#include "tensor/recorded.h"

namespace troupe::tensor {

namespace {

/// Gate and up in turn -> the gate's first, along `dim`.
at::Tensor halves(const at::Tensor& x, std::int64_t dim) {
  return at::cat({x.slice(dim, 0, std::nullopt, 2), x.slice(dim, 1, std::nullopt, 2)}, dim);
}

/// [E, 2I, D] and [E, D, I], whatever the layout.
at::Tensor gate_up_rows(const ExpertWeights& w, const at::Tensor& gate_up) {
  return w.layout == ExpertLayout::kRows ? gate_up : halves(gate_up, 2).transpose(1, 2);
}
at::Tensor down_rows(const ExpertWeights& w, const at::Tensor& down) {
  return w.layout == ExpertLayout::kRows ? down : down.transpose(1, 2);
}
at::Tensor bias_rows(const ExpertWeights& w, const at::Tensor& bias) {
  return w.layout == ExpertLayout::kRows ? bias : halves(bias, 1);
}

/// The (row, slot) pairs of every expert, rows ascending: pair = row * chosen + slot.
std::vector<std::vector<std::int64_t>> pairs_by_expert(std::span<const std::int32_t> choices, std::int64_t count) {
  std::vector<std::vector<std::int64_t>> pairs(static_cast<std::size_t>(count));
  for (std::size_t i = 0; i < choices.size(); ++i) {
    TROUPE_CHECK(choices[i] >= 0 && choices[i] < count, "an expert that does not exist");
    pairs[static_cast<std::size_t>(choices[i])].push_back(static_cast<std::int64_t>(i));
  }
  return pairs;
}

at::Tensor index_tensor(const std::vector<std::int64_t>& values, std::int64_t divide_by = 1) {
  at::Tensor index = at::empty({static_cast<std::int64_t>(values.size())}, at::kLong);
  for (std::size_t i = 0; i < values.size(); ++i) index.data_ptr<std::int64_t>()[i] = values[i] / divide_by;
  return index;
}

at::Tensor weighted_norm(const at::Tensor& y, const at::Tensor& weight, double eps) {
  return normalise(y * (weight + 1), y.size(1), eps);
}

/// Every pair's result, [T * chosen, D].
at::Tensor expert_rows(const at::Tensor& x, std::span<const std::int32_t> choices, std::int64_t chosen,
                       const ExpertWeights& w, PackedGroup& packed_gate_up, PackedGroup& packed_down) {
  const auto& up = packed_gate_up.get(gate_up_rows(w, w.gate_up));
  const auto& down = packed_down.get(down_rows(w, w.down));
  const at::Tensor up_bias = w.gate_up_bias.defined() ? bias_rows(w, w.gate_up_bias) : at::Tensor();
  at::Tensor out = at::empty({x.size(0) * chosen, down.front().rows()}, x.options());
  const auto pairs = pairs_by_expert(choices, static_cast<std::int64_t>(up.size()));
  for (std::size_t e = 0; e < pairs.size(); ++e) {
    if (pairs[e].empty()) continue;
    const auto expert = static_cast<std::int64_t>(e);
    at::Tensor h = multiply(x.index_select(0, index_tensor(pairs[e], chosen)), up[e], true);
    if (up_bias.defined()) h.add_(up_bias[expert]);
    at::Tensor y = multiply(gated_unit(h, w.unit), down[e], true);
    if (w.down_bias.defined()) y.add_(w.down_bias[expert]);
    if (w.norm.defined()) y = weighted_norm(y, w.norm, w.norm_eps);
    out.index_copy_(0, index_tensor(pairs[e]), y);
  }
  return out;
}

/// Sum over the slots of weight * row, slot by slot.
at::Tensor combine(const at::Tensor& rows, const at::Tensor& weights) {
  const std::int64_t chosen = weights.size(1);
  const at::Tensor by_slot = rows.view({weights.size(0), chosen, -1});
  at::Tensor y = by_slot.select(1, 0) * weights.narrow(1, 0, 1);
  for (std::int64_t j = 1; j < chosen; ++j) y.add_(by_slot.select(1, j) * weights.narrow(1, j, 1));
  return y;
}

/// In order: x, weights, gate_up, down, then whatever else is there.
at::Tensor experts_formula(std::span<const at::Tensor> in, const ExpertWeights& w,
                           std::span<const std::int32_t> choices) {
  const at::Tensor& x = in[0];
  const at::Tensor weights = in[1].reshape({-1, 1});
  std::size_t next = 4;
  const at::Tensor up_bias = w.gate_up_bias.defined() ? bias_rows(w, in[next++]) : at::Tensor();
  const at::Tensor down_bias = w.down_bias.defined() ? in[next++] : at::Tensor();
  const at::Tensor norm = w.norm.defined() ? in[next++] : at::Tensor();
  const auto up = gate_up_rows(w, in[2]).unbind(0);
  const auto down = down_rows(w, in[3]).unbind(0);
  const auto pairs = pairs_by_expert(choices, static_cast<std::int64_t>(up.size()));
  at::Tensor y = at::zeros({x.size(0), down[0].size(0)}, x.options());
  for (std::size_t e = 0; e < pairs.size(); ++e) {
    if (pairs[e].empty()) continue;
    const auto expert = static_cast<std::int64_t>(e);
    const at::Tensor rows = index_tensor(pairs[e], in[1].size(1));
    at::Tensor h = x.index_select(0, rows).mm(up[e].t());
    if (up_bias.defined()) h = h + up_bias[expert];
    at::Tensor out = gated_unit_formula(h, w.unit).mm(down[e].t());
    if (down_bias.defined()) out = out + down_bias[expert];
    if (norm.defined()) {
      out = out * (norm + 1);
      out = out * (out.square().mean(1, true) + w.norm_eps).rsqrt();
    }
    y = y.index_add(0, rows, out * weights.index_select(0, index_tensor(pairs[e])));
  }
  return y;
}

at::Tensor scores_formula(const at::Tensor& logits, kernels::RouterScore score) {
  switch (score) {
    case kernels::RouterScore::kSoftmax:
      return logits.softmax(-1);
    case kernels::RouterScore::kSigmoid:
      return logits.sigmoid();
    case kernels::RouterScore::kSqrtSoftplus:
      return at::softplus(logits).sqrt();
    case kernels::RouterScore::kSoftmaxOfChosen:
      break;
  }
  return logits;
}

at::Tensor route_formula(const at::Tensor& logits, const at::Tensor& index, const kernels::Router& rule) {
  at::Tensor w = scores_formula(logits, rule.score).gather(1, index);
  if (rule.score == kernels::RouterScore::kSoftmaxOfChosen)
    w = w.softmax(-1);
  else if (rule.normalise)
    w = w / (w.sum(-1, true) + static_cast<double>(rule.guard));
  return w * static_cast<double>(rule.scale);
}

}  // namespace

Routing route(const at::Tensor& logits, const at::Tensor& correction, std::span<const std::int32_t> fixed,
              const kernels::Router& rule) {
  kernels::Router args = rule;
  args.rows = logits.size(0);
  args.experts = logits.size(1);
  auto choices = std::make_shared<std::vector<std::int32_t>>(static_cast<std::size_t>(args.rows * args.chosen));
  at::Tensor weights = at::empty({args.rows, args.chosen}, logits.options());
  args.logits = logits.data_ptr<float>();
  args.correction = correction.defined() ? correction.data_ptr<float>() : nullptr;
  args.fixed = fixed.empty() ? nullptr : fixed.data();
  args.choices = choices->data();
  args.weights = weights.data_ptr<float>();
  kernels::route(args);
  at::Tensor kept = recorded(weights, {logits}, [choices, rule](auto in) {
    at::Tensor index = at::empty({in[0].size(0), rule.chosen}, at::kLong);
    std::copy(choices->begin(), choices->end(), index.data_ptr<std::int64_t>());
    return route_formula(in[0], index, rule);
  });
  return {choices, kept};
}

const std::vector<kernels::PackedMatrix>& PackedGroup::get(const at::Tensor& weights) {
  if (fresh_) return matrices_;
  const at::Tensor plain = weights.detach();
  matrices_.resize(static_cast<std::size_t>(plain.size(0)));
  for (std::int64_t i = 0; i < plain.size(0); ++i) {
    const at::Tensor one = plain[i].contiguous();
    matrices_[static_cast<std::size_t>(i)].pack(one.data_ptr<float>(), one.size(0), one.size(1));
  }
  fresh_ = true;
  return matrices_;
}

at::Tensor experts(const at::Tensor& x, const Routing& routing, const ExpertWeights& weights,
                   const std::shared_ptr<PackedGroup>& packed_gate_up,
                   const std::shared_ptr<PackedGroup>& packed_down) {
  const std::int64_t chosen = routing.weights.size(1);
  at::Tensor value;
  {
    const at::NoGradGuard off;
    value = combine(expert_rows(x, *routing.choices, chosen, weights, *packed_gate_up, *packed_down), routing.weights);
  }
  std::vector<at::Tensor> inputs = {x, routing.weights, weights.gate_up, weights.down};
  for (const at::Tensor& more : {weights.gate_up_bias, weights.down_bias, weights.norm})
    if (more.defined()) inputs.push_back(more);
  ExpertWeights shape = weights;  // only which of them are there, and the rules
  return recorded(value, std::move(inputs), [shape, choices = routing.choices](auto in) {
    return experts_formula(in, shape, *choices);
  });
}

at::Tensor group_linear(const at::Tensor& x, const at::Tensor& weights, const std::shared_ptr<PackedGroup>& packed) {
  const std::int64_t groups = weights.size(0);
  const std::int64_t n = weights.size(1);
  const std::int64_t k = weights.size(2);
  const at::Tensor rows = x.contiguous();
  TROUPE_CHECK(rows.dim() == 2 && rows.size(1) == groups * k, "rows of groups as wide as their weights");
  at::Tensor y = at::empty({rows.size(0), groups * n}, rows.options());
  const auto& matrices = packed->get(weights);
  for (std::int64_t g = 0; g < groups; ++g)
    kernels::matmul(rows.data_ptr<float>() + g * k, rows.size(0), matrices[static_cast<std::size_t>(g)],
                    y.data_ptr<float>() + g * n, groups * n, groups * k);
  return recorded(y, {rows, weights}, [groups](auto in) {
    const at::Tensor by_group = in[0].view({in[0].size(0), groups, -1}).transpose(0, 1);
    return at::bmm(by_group, in[1].transpose(1, 2)).transpose(0, 1).flatten(1);
  });
}

}  // namespace troupe::tensor
