/// @file
/// AdamW over named flat parameters, with groups chosen by name and a state that can be saved and restored by name.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/result.h"
#include "kernels/device.h"
#include "optim/options.h"

namespace troupe::optim {

/// A parameter as the optimizer needs to know it.
struct ParameterInfo {
  std::string name;
  std::int64_t count = 0; ///< Number of elements.
};

/// One parameter in one step. Borrowed for the call.
struct ParameterStep {
  std::span<float> value;
  std::span<const float> gradient; ///< Same length as `value`; empty when the parameter took no part in the loss: it is not touched.
};

/// A tensor of the optimizer's state, as the checkpoint sees it. Borrowed: valid until the next call that changes the optimizer.
struct StateTensor {
  std::string name; ///< "exp_avg.<parameter>" or "exp_avg_sq.<parameter>".
  std::span<float> values;
};

/// `* ?` glob over the whole name.
[[nodiscard]] bool glob_match(std::string_view pattern, std::string_view name);

/// Errors: kInvalidConfig naming the field, its value and the range.
[[nodiscard]] Status validate(const AdamWOptions& options);

/// Not thread-safe. Memory: 8 bytes a parameter.
/// Source: Loshchilov and Hutter, 2019, arXiv:1711.05101, algorithm 2.
class AdamW {
 public:
  /// Errors: kInvalidConfig as validate(), or when a group's pattern matches no parameter; kAlreadyExists for a name given twice.
  [[nodiscard]] static Result<AdamW> create(const AdamWOptions& options, std::span<const ParameterInfo> parameters);

  /// One update, in the order of the parameters given to create().
  /// w *= 1 - lr wd;  m = b1 m + (1-b1) g;  v = b2 v + (1-b2) g^2;  w -= lr (m / (1-b1^t)) / (sqrt(v / (1-b2^t)) + eps).
  /// `lr_factor` is the schedule's; gradients are multiplied by `gradient_scale` (clipping) while they are read.
  /// Errors: kInvalidArgument naming the parameter whose length differs; nothing is changed then. On a GPU also those of
  /// kernels/offload.h, in the middle of the parameters.
  [[nodiscard]] Status step(std::span<const ParameterStep> parameters, double lr_factor, double gradient_scale = 1);

  /// Where the steps to come run; parameters and state lie in the host's memory either way. At first: on the CPU.
  void set_where(kernels::Where where) { where_ = where; }

  /// Steps taken so far; part of the state (bias correction depends on it).
  [[nodiscard]] std::int64_t steps() const { return steps_; }
  void set_steps(std::int64_t steps) { steps_ = steps; }

  /// Every tensor of the state, ordered by parameter, exp_avg first. The spans may be written into (restore).
  [[nodiscard]] std::vector<StateTensor> state();
  /// Errors: kNotFound for an unknown name, naming it; kInvalidArgument for a wrong length.
  [[nodiscard]] Status load_state(std::string_view name, std::span<const float> values);

  struct Group {
    double lr = 0;
    double weight_decay = 0;
  };
  /// What parameter `index` gets at lr_factor 1, after the group rules.
  [[nodiscard]] Group group_of(std::size_t index) const { return slots_[index].group; }

 private:
  struct Slot {
    std::string name;
    Group group;
    std::vector<float> exp_avg, exp_avg_sq;
  };
  explicit AdamW(const AdamWOptions& options) : options_(options) {}
  AdamWOptions options_;
  std::vector<Slot> slots_;
  std::int64_t steps_ = 0;
  kernels::Where where_ = kernels::Where::kHost;
};

} // namespace troupe::optim
