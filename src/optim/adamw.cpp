#include "optim/adamw.h"

#include <algorithm>
#include <cmath>
#include <set>

#include "kernels/offload.h"

namespace troupe::optim {
namespace {

constexpr std::string_view kMean = "exp_avg.";
constexpr std::string_view kSquare = "exp_avg_sq.";

Status check_range(std::string_view field, double value, bool fits, std::string_view range) {
  if (fits) return {};
  return fail(ErrorCode::kInvalidConfig, "optim." + std::string(field) + " = " + std::to_string(value) + " must be " + std::string(range));
}

} // namespace

bool glob_match(std::string_view pattern, std::string_view name) {
  std::size_t p = 0, n = 0, star = std::string_view::npos, retry = 0;
  while (n < name.size()) {
    if (p < pattern.size() && pattern[p] == '*') {
      star = p++;
      retry = n;
    } else if (p < pattern.size() && (pattern[p] == '?' || pattern[p] == name[n])) {
      ++p, ++n;
    } else if (star != std::string_view::npos) {
      p = star + 1; // let the last star take one more character
      n = ++retry;
    } else {
      return false;
    }
  }
  return pattern.find_first_not_of('*', p) == std::string_view::npos;
}

Status validate(const AdamWOptions& o) {
  TROUPE_TRY_STATUS(check_range("lr", o.lr, o.lr >= 0 && std::isfinite(o.lr), "0 or more"));
  TROUPE_TRY_STATUS(check_range("beta1", o.beta1, o.beta1 >= 0 && o.beta1 < 1, "in [0, 1)"));
  TROUPE_TRY_STATUS(check_range("beta2", o.beta2, o.beta2 >= 0 && o.beta2 < 1, "in [0, 1)"));
  TROUPE_TRY_STATUS(check_range("eps", o.eps, o.eps > 0 && std::isfinite(o.eps), "above 0"));
  TROUPE_TRY_STATUS(check_range("weight_decay", o.weight_decay, o.weight_decay >= 0 && std::isfinite(o.weight_decay), "0 or more"));
  TROUPE_TRY_STATUS(check_range("clip_norm", o.max_grad_norm, o.max_grad_norm >= 0, "0 (off) or more"));
  for (const GroupRule& rule : o.groups) {
    const std::string field = "group(\"" + rule.pattern + "\").";
    TROUPE_TRY_STATUS(check_range(field + "lr_scale", rule.lr_scale, rule.lr_scale >= 0 && std::isfinite(rule.lr_scale), "0 or more"));
    const double decay = rule.weight_decay.value_or(0);
    TROUPE_TRY_STATUS(check_range(field + "weight_decay", decay, decay >= 0 && std::isfinite(decay), "0 or more"));
  }
  return {};
}

Result<AdamW> AdamW::create(const AdamWOptions& options, std::span<const ParameterInfo> parameters) {
  TROUPE_TRY_STATUS(validate(options));
  AdamW adamw(options);
  std::set<std::string_view> names;
  std::vector<bool> used(options.groups.size());
  for (const ParameterInfo& parameter : parameters) {
    if (!names.insert(parameter.name).second) return fail(ErrorCode::kAlreadyExists, "parameter " + parameter.name + " is there twice");
    Group group{options.lr, options.weight_decay};
    bool decided = false;
    for (std::size_t r = 0; r < options.groups.size(); ++r) {
      const GroupRule& rule = options.groups[r];
      if (!glob_match(rule.pattern, parameter.name)) continue;
      used[r] = true; // a rule that an earlier one hides is no mistake of spelling
      if (decided) continue;
      decided = true;
      group = {options.lr * rule.lr_scale, rule.weight_decay.value_or(options.weight_decay)};
    }
    const auto count = static_cast<std::size_t>(parameter.count);
    adamw.slots_.push_back({parameter.name, group, std::vector<float>(count), std::vector<float>(count)});
  }
  for (std::size_t r = 0; r < used.size(); ++r)
    if (!used[r])
      return fail(ErrorCode::kInvalidConfig, "optim.group: no parameter is named like \"" + options.groups[r].pattern +
                                                 "\"; names look like \"" + (parameters.empty() ? "" : parameters.front().name) + "\"");
  return adamw;
}

Status AdamW::step(std::span<const ParameterStep> parameters, double lr_factor, double gradient_scale) {
  if (parameters.size() != slots_.size())
    return fail(ErrorCode::kInvalidArgument, "a step over " + std::to_string(parameters.size()) + " parameters of " + std::to_string(slots_.size()));
  for (std::size_t i = 0; i < slots_.size(); ++i) {
    const ParameterStep& p = parameters[i];
    if (p.value.size() != slots_[i].exp_avg.size() || (!p.gradient.empty() && p.gradient.size() != p.value.size()))
      return fail(ErrorCode::kInvalidArgument, "parameter " + slots_[i].name + " has " + std::to_string(slots_[i].exp_avg.size()) +
                                                   " elements, its value " + std::to_string(p.value.size()) + ", its gradient " +
                                                   std::to_string(p.gradient.size()));
  }
  ++steps_;
  for (std::size_t i = 0; i < slots_.size(); ++i) {
    Slot& slot = slots_[i];
    if (parameters[i].gradient.empty()) continue;
    kernels::AdamW args;
    args.param = parameters[i].value.data();
    args.grad = parameters[i].gradient.data();
    args.m = slot.exp_avg.data();
    args.v = slot.exp_avg_sq.data();
    args.n = static_cast<std::int64_t>(slot.exp_avg.size());
    args.lr = slot.group.lr * lr_factor;
    args.beta1 = options_.beta1;
    args.beta2 = options_.beta2;
    args.eps = options_.eps;
    args.weight_decay = slot.group.weight_decay;
    args.step = steps_;
    args.grad_scale = static_cast<float>(gradient_scale);
    TROUPE_TRY_STATUS(kernels::run(where_, args));
  }
  return {};
}

std::vector<StateTensor> AdamW::state() {
  std::vector<StateTensor> tensors;
  for (Slot& slot : slots_) {
    tensors.push_back({std::string(kMean) + slot.name, slot.exp_avg});
    tensors.push_back({std::string(kSquare) + slot.name, slot.exp_avg_sq});
  }
  return tensors;
}

Status AdamW::load_state(std::string_view name, std::span<const float> values) {
  for (StateTensor& tensor : state()) {
    if (tensor.name != name) continue;
    if (tensor.values.size() != values.size())
      return fail(ErrorCode::kInvalidArgument, "optimizer state " + tensor.name + " has " + std::to_string(tensor.values.size()) +
                                                   " elements, the saved one " + std::to_string(values.size()));
    std::copy(values.begin(), values.end(), tensor.values.begin());
    return {};
  }
  return fail(ErrorCode::kNotFound, "optimizer state " + std::string(name) + " belongs to no parameter of this model");
}

} // namespace troupe::optim
