/// @file
/// What the config says about the optimizer. Defaults are those of a small language model.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

namespace troupe::optim {

/// Parameters that are treated differently, chosen by name. The first rule that matches a parameter wins.
struct GroupRule {
  std::string pattern;                ///< Glob over the whole parameter name: `*` any run of characters, `?` one.
  double lr_scale = 1;                ///< Multiplies the learning rate; 0 freezes the parameters.
  std::optional<double> weight_decay; ///< Instead of the optimizer's own.
};

struct AdamWOptions {
  double lr = 1e-3;           ///< Peak learning rate; the schedule multiplies it.
  double beta1 = 0.9;         ///< Decay of the mean of the gradients.
  double beta2 = 0.95;        ///< Decay of the mean of their squares.
  double eps = 1e-8;          ///< Added to the square root, after bias correction.
  double weight_decay = 0;    ///< Decoupled: the weight shrinks by lr * weight_decay a step, whatever its gradient.
  double max_grad_norm = 1;   ///< Gradients are scaled down to this global L2 norm; 0 switches clipping off.
  std::vector<GroupRule> groups;
};

enum class Decay {
  kConstant, ///< Stays at the peak after the warm-up.
  kLinear,   ///< Straight line from the peak to min_ratio.
  kCosine,   ///< Half a cosine from the peak to min_ratio.
};

struct ScheduleOptions {
  Decay decay = Decay::kConstant; ///< Shape after the warm-up.
  std::int64_t warmup_steps = 0;  ///< The factor grows as (step + 1) / warmup_steps; 0 starts at the peak.
  std::int64_t total_steps = 0;   ///< Where the decay ends. Must be positive unless the decay is constant.
  double min_ratio = 0;           ///< The factor at the end of the decay.
  friend bool operator==(const ScheduleOptions&, const ScheduleOptions&) = default;
};

} // namespace troupe::optim
