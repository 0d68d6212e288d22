/// @file
/// Clipping by the global L2 norm, with non-finite gradients seen and named.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>

namespace troupe::optim {

/// One parameter's gradient. Borrowed for the call.
struct NamedGradient {
  std::string_view name;
  std::span<const float> values;
};

struct GradientNorm {
  double norm = 0;                   ///< L2 over all parameters, before clipping. Infinite or NaN when a gradient is.
  double sum_of_squares = 0;         ///< What ranks that hold other parameters add up before they take the root.
  std::optional<std::string> broken; ///< The first parameter that holds an infinity or a NaN.
  [[nodiscard]] bool finite() const { return !broken.has_value(); }
};

/// Determinism: fixed summation order, so the same bits for the same gradients whatever the number of threads.
/// A parameter that several ranks hold a copy of must be passed by one of them only.
[[nodiscard]] GradientNorm gradient_norm(std::span<const NamedGradient> gradients);

/// The norm of parts that live on several ranks or stages.
[[nodiscard]] GradientNorm combine(std::span<const GradientNorm> parts);

/// What every gradient is multiplied by: max_norm / norm where the norm is larger, else exactly 1. `max_norm` 0: always 1.
/// A norm that is not finite gives 0: the step must not be taken, and the caller reports `broken`.
[[nodiscard]] double clip_scale(double norm, double max_norm);

} // namespace troupe::optim
