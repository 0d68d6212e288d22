#include "optim/clip.h"

#include <cmath>

#include "kernels/norms.h"

namespace troupe::optim {

GradientNorm gradient_norm(std::span<const NamedGradient> gradients) {
  GradientNorm result;
  for (const NamedGradient& gradient : gradients) {
    const auto n = static_cast<std::int64_t>(gradient.values.size());
    // Squares of floats never overflow a double: the sum is finite exactly when every element is.
    const double squares = kernels::sum_of_squares(gradient.values.data(), n);
    if (!std::isfinite(squares) && !result.broken) result.broken = std::string(gradient.name);
    result.sum_of_squares += squares;
  }
  result.norm = std::sqrt(result.sum_of_squares);
  return result;
}

GradientNorm combine(std::span<const GradientNorm> parts) {
  GradientNorm result;
  for (const GradientNorm& part : parts) {
    result.sum_of_squares += part.sum_of_squares;
    if (part.broken && !result.broken) result.broken = part.broken;
  }
  result.norm = std::sqrt(result.sum_of_squares);
  return result;
}

double clip_scale(double norm, double max_norm) {
  if (!std::isfinite(norm)) return 0;
  return max_norm > 0 && norm > max_norm ? max_norm / norm : 1;
}

} // namespace troupe::optim
