#include "tensor/experts.h"

#include <ATen/ATen.h>
#include <torch/csrc/autograd/custom_function.h>
#include <torch/custom_class.h>

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
    at::Tensor h = multiply(x.index_select(0, index_tensor(pairs[e], chosen)), {&up[e], {}}, true, Where::kHost);
    if (up_bias.defined()) h.add_(up_bias[expert]);
    at::Tensor y = multiply(gated_unit(h, w.unit), {&down[e], {}}, true, Where::kHost);
    if (w.down_bias.defined()) y.add_(w.down_bias[expert]);
    if (w.norm.defined()) y = weighted_norm(y, w.norm, w.norm_eps);
    out.index_copy_(0, index_tensor(pairs[e]), y);
  }
  return out;
}

/// bias[e] is added to the rows of expert e, which lie together.
void add_by_expert(const at::Tensor& rows, const at::Tensor& bias, std::span<const std::int32_t> ends) {
  for (std::size_t e = 0, begin = 0; e < ends.size(); begin = static_cast<std::size_t>(ends[e++]))
    rows.slice(0, static_cast<std::int64_t>(begin), ends[e]).add_(bias[static_cast<std::int64_t>(e)]);
}

kernels::GroupedProduct grouped(const float* x, float* y, std::span<const std::int32_t> ends, const std::vector<kernels::Factor>& factors) {
  return {x, y, ends, factors[0].packed, factors[0].device};  // each group's stand behind the first one's
}

/// As expert_rows, all experts in one product each: the same bits. kBoth: what is compared lies on the host.
at::Tensor expert_rows_together(const at::Tensor& x, std::span<const std::int32_t> choices, std::int64_t chosen,
                                const ExpertWeights& w, PackedGroup& packed_gate_up, PackedGroup& packed_down, Where where) {
  const auto up = packed_gate_up.factors(gate_up_rows(w, w.gate_up), where, false);
  const auto down = packed_down.factors(down_rows(w, w.down), where, false);
  std::vector<std::int64_t> order;
  std::vector<std::int32_t> ends;
  for (const auto& pairs : pairs_by_expert(choices, static_cast<std::int64_t>(up.size()))) {
    order.insert(order.end(), pairs.begin(), pairs.end());
    ends.push_back(static_cast<std::int32_t>(order.size()));
  }
  const auto rows = static_cast<std::int64_t>(order.size());
  const std::int64_t width = up[0].rows() / 2;
  const at::Tensor gathered = x.index_select(0, index_tensor(order, chosen));
  const Scratch between(where, rows * width);
  if (w.gate_up_bias.defined()) {
    const at::Tensor h = at::empty({rows, 2 * width}, x.options());
    done(kernels::run(where, grouped(gathered.data_ptr<float>(), h.data_ptr<float>(), ends, up)));
    add_by_expert(h, bias_rows(w, w.gate_up_bias), ends);
    gated_unit(h.data_ptr<float>(), between.data(), rows, width, w.unit, where);
  } else {
    const Scratch h(where, rows * 2 * width);
    done(kernels::run(where, grouped(gathered.data_ptr<float>(), h.data(), ends, up)));
    gated_unit(h.data(), between.data(), rows, width, w.unit, where);
  }
  at::Tensor y = at::empty({rows, down[0].rows()}, x.options());
  done(kernels::run(where, grouped(between.data(), y.data_ptr<float>(), ends, down)));
  if (w.down_bias.defined()) add_by_expert(y, w.down_bias, ends);
  if (w.norm.defined()) y = weighted_norm(y, w.norm, w.norm_eps);
  return at::empty_like(y).index_copy_(0, index_tensor(order), y);
}

/// Sum over the slots of weight * row, slot by slot.
at::Tensor combine(const at::Tensor& rows, const at::Tensor& weights) {
  const std::int64_t chosen = weights.size(1);
  const at::Tensor by_slot = rows.view({weights.size(0), chosen, -1});
  at::Tensor y = by_slot.select(1, 0) * weights.narrow(1, 0, 1);
  for (std::int64_t j = 1; j < chosen; ++j) y.add_(by_slot.select(1, j) * weights.narrow(1, j, 1));
  return y;
}

/// The packed matrices of a layer's experts.
struct PackedExperts {
  std::shared_ptr<PackedGroup> gate_up, down;
};

/// In order: x, weights, gate_up, down, then whatever else is there.
at::Tensor experts_formula(std::span<const at::Tensor> in, const ExpertWeights& w, const PackedExperts& packed,
                           std::span<const std::int32_t> choices, Where where) {
  const at::Tensor& x = in[0];
  const at::Tensor weights = in[1].reshape({-1, 1});
  std::size_t next = 4;
  const at::Tensor up_bias = w.gate_up_bias.defined() ? bias_rows(w, in[next++]) : at::Tensor();
  const at::Tensor down_bias = w.down_bias.defined() ? in[next++] : at::Tensor();
  const at::Tensor norm = w.norm.defined() ? in[next++] : at::Tensor();
  const at::Tensor all_up = gate_up_rows(w, in[2]);
  const at::Tensor all_down = down_rows(w, in[3]);
  const auto up = all_up.unbind(0);
  const auto down = all_down.unbind(0);
  const auto up_packed = packed.gate_up->factors(all_up, where, false);
  const auto up_turned = packed.gate_up->factors(all_up, where, true);
  const auto down_packed = packed.down->factors(all_down, where, false);
  const auto down_turned = packed.down->factors(all_down, where, true);
  const auto pairs = pairs_by_expert(choices, static_cast<std::int64_t>(up.size()));
  at::Tensor y = at::zeros({x.size(0), down[0].size(0)}, x.options());
  for (std::size_t e = 0; e < pairs.size(); ++e) {
    if (pairs[e].empty()) continue;
    const auto expert = static_cast<std::int64_t>(e);
    const at::Tensor rows = index_tensor(pairs[e], in[1].size(1));
    at::Tensor h = product(x.index_select(0, rows), up[e], up_packed[e], up_turned[e], where);
    if (up_bias.defined()) h = h + up_bias[expert];
    at::Tensor out = product(gated_unit_formula(h, w.unit), down[e], down_packed[e], down_turned[e], where);
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
              const kernels::Router& rule, Where where) {
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
  done(kernels::run(where, args));
  at::Tensor kept = recorded(weights, {logits}, [choices, rule](auto in) {
    at::Tensor index = at::empty({in[0].size(0), rule.chosen}, at::kLong);
    std::copy(choices->begin(), choices->end(), index.data_ptr<std::int64_t>());
    return route_formula(in[0], index, rule);
  });
  return {choices, kept};
}

namespace {

/// Packs every matrix of a group: pack(matrix, its part, k).
template <class F>
void pack_group(const at::Tensor& weights, PackedGroup::Matrices& matrices, F&& pack) {
  const at::Tensor plain = weights.detach();
  matrices.resize(static_cast<std::size_t>(plain.size(0)));
  for (std::int64_t i = 0; i < plain.size(0); ++i) {
    const at::Tensor one = plain[i].contiguous();
    pack(matrices[static_cast<std::size_t>(i)], kernels::PackedMatrix::Part{one.data_ptr<float>(), one.size(0)},
         one.size(1));
  }
}

}  // namespace

void PackedGroup::set_precision(kernels::Precision precision) {
  precision_ = precision;
  invalidate();
}

const PackedGroup::Matrices& PackedGroup::get(const at::Tensor& weights) {
  if (!fresh_) {
    pack_group(weights, matrices_,
               [&](auto& matrix, const auto& part, std::int64_t k) { matrix.pack(&part, 1, k, precision_); });
  }
  fresh_ = true;
  return matrices_;
}

const PackedGroup::Matrices& PackedGroup::turned(const at::Tensor& weights) {
  if (!turned_fresh_) {
    pack_group(weights, turned_, [&](auto& matrix, const auto& part, std::int64_t k) {
      matrix.pack_transposed(&part, 1, k, precision_);
    });
  }
  turned_fresh_ = true;
  return turned_;
}

std::vector<kernels::Factor> PackedGroup::factors(const at::Tensor& weights, Where where, bool transposed) {
  const Matrices* packed = where == Where::kDevice ? nullptr : transposed ? &turned(weights) : &get(weights);
  const float* data = where == Where::kHost ? nullptr : on_device_.get({&weights, 1});
  const std::int64_t n = weights.size(1), k = weights.size(2);
  std::vector<kernels::Factor> factors(static_cast<std::size_t>(weights.size(0)));
  for (std::size_t i = 0; i < factors.size(); ++i) {
    if (packed != nullptr) factors[i].packed = &(*packed)[i];
    if (data == nullptr) continue;
    factors[i].device = {data + static_cast<std::int64_t>(i) * n * k, transposed ? k : n, transposed ? n : k, 0, transposed, precision_};
  }
  return factors;
}

at::Tensor experts(const at::Tensor& x, const Routing& routing, const ExpertWeights& weights,
                   const std::shared_ptr<PackedGroup>& packed_gate_up,
                   const std::shared_ptr<PackedGroup>& packed_down, Where where) {
  const std::int64_t chosen = routing.weights.size(1);
  at::Tensor value;
  {
    const at::NoGradGuard off;
    const at::Tensor rows =
        where == Where::kHost
            ? expert_rows(x, *routing.choices, chosen, weights, *packed_gate_up, *packed_down)
            : expert_rows_together(x, *routing.choices, chosen, weights, *packed_gate_up, *packed_down, where);
    value = combine(rows, routing.weights);
  }
  std::vector<at::Tensor> inputs = {x, routing.weights, weights.gate_up, weights.down};
  for (const at::Tensor& more : {weights.gate_up_bias, weights.down_bias, weights.norm})
    if (more.defined()) inputs.push_back(more);
  ExpertWeights shape = weights;  // only which of them are there, and the rules
  const PackedExperts packed{packed_gate_up, packed_down};
  return recorded(value, std::move(inputs), [shape, packed, where, choices = routing.choices](auto in) {
    return experts_formula(in, shape, packed, *choices, where);
  });
}

namespace {

using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

struct HeldGroup : torch::CustomClassHolder {
  HeldGroup(std::shared_ptr<PackedGroup> g, Where w) : group(std::move(g)), where(w) {}
  std::shared_ptr<PackedGroup> group;
  Where where;
};

/// out[:, g] = in[:, g] times matrix g.
at::Tensor multiply_groups(const at::Tensor& in, const std::vector<kernels::Factor>& factors, Where where) {
  const auto groups = static_cast<std::int64_t>(factors.size());
  const std::int64_t n = factors[0].rows();
  const std::int64_t k = factors[0].cols();
  at::Tensor out = at::empty({in.size(0), groups * n}, in.options());
  for (std::int64_t g = 0; g < groups; ++g)
    done(kernels::run(where, kernels::Product{in.data_ptr<float>() + g * k, out.data_ptr<float>() + g * n, in.size(0),
                                              factors[static_cast<std::size_t>(g)], groups * k, groups * n}));
  return out;
}

struct GroupLinearFunction : torch::autograd::Function<GroupLinearFunction> {
  static at::Tensor forward(AutogradContext* ctx, const at::Tensor& x, const at::Tensor& weights,
                            const std::shared_ptr<PackedGroup>& packed, Where where) {
    ctx->save_for_backward({x, weights});
    ctx->saved_data["group"] = c10::IValue::make_capsule(c10::make_intrusive<HeldGroup>(packed, where));
    return multiply_groups(x, packed->factors(weights, where, false), where);
  }

  static variable_list backward(AutogradContext* ctx, const variable_list& gradients) {
    const variable_list saved = ctx->get_saved_variables();
    const auto capsule = ctx->saved_data["group"].toCapsule();
    const auto& held = static_cast<const HeldGroup&>(*capsule);
    const at::Tensor dy = gradients[0].contiguous();
    const at::Tensor& x = saved[0];
    variable_list result(4);
    const auto turned = held.group->factors(saved[1], held.where, true);
    if (ctx->needs_input_grad(0)) result[0] = multiply_groups(dy, turned, held.where);
    if (!ctx->needs_input_grad(1)) return result;
    const std::int64_t n = saved[1].size(1);
    const std::int64_t k = saved[1].size(2);
    result[1] = at::empty({saved[1].size(0), n, k}, x.options());
    for (std::int64_t g = 0; g < saved[1].size(0); ++g)
      done(kernels::run(held.where, kernels::WeightGradient{
                                        dy.data_ptr<float>() + g * n, x.data_ptr<float>() + g * k,
                                        result[1].data_ptr<float>() + g * n * k, x.size(0), n, k, dy.size(1), x.size(1), false,
                                        turned[0].precision()}));
    return result;
  }
};

}  // namespace

at::Tensor group_linear(const at::Tensor& x, const at::Tensor& weights, const std::shared_ptr<PackedGroup>& packed,
                        Where where) {
  const at::Tensor rows = x.contiguous();
  TROUPE_CHECK(rows.dim() == 2 && rows.size(1) == weights.size(0) * weights.size(2),
               "rows of groups as wide as their weights");
  if (!at::GradMode::is_enabled()) return multiply_groups(rows, packed->factors(weights, where, false), where);
  return GroupLinearFunction::apply(rows, weights, packed, where);
}

}  // namespace troupe::tensor
