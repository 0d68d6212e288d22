#include "model/rope.h"

#include <algorithm>
#include <cmath>
#include <numbers>

namespace troupe::model {

namespace {

/// The (fractional) pair whose wavelength makes `rotations` turns within the original context.
double pair_of(const RopeSpec& rope, double rotations) {
  const double turns = static_cast<double>(rope.original_context) / (rotations * 2 * std::numbers::pi);
  return static_cast<double>(rope.width) * std::log(turns) / (2 * std::log(rope.theta));
}

float yarn(const RopeSpec& rope, float frequency, std::int64_t pair) {
  double low = pair_of(rope, rope.beta_fast);
  double high = pair_of(rope, rope.beta_slow);
  if (rope.truncate) {
    low = std::floor(low);
    high = std::ceil(high);
  }
  low = std::max(low, 0.0);
  high = std::min(high, static_cast<double>(rope.width - 1));
  const double span = high == low ? 0.001 : high - low;
  const double ramp = std::clamp((static_cast<double>(pair) - low) / span, 0.0, 1.0);
  return static_cast<float>(frequency / rope.factor * ramp + frequency * (1 - ramp));
}

float llama3(const RopeSpec& rope, float frequency) {
  const auto original = static_cast<double>(rope.original_context);
  const double wavelength = 2 * std::numbers::pi / frequency;
  if (wavelength < original / rope.high_freq_factor) return frequency;
  if (wavelength > original / rope.low_freq_factor) return static_cast<float>(frequency / rope.factor);
  const double t = (original / wavelength - rope.low_freq_factor) / (rope.high_freq_factor - rope.low_freq_factor);
  return static_cast<float>((1 - t) * frequency / rope.factor + t * frequency);
}

}  // namespace

std::vector<float> rope_frequencies(const RopeSpec& rope) {
  std::vector<float> frequencies(static_cast<std::size_t>(rope.width / 2));
  for (std::size_t i = 0; i < frequencies.size(); ++i) {
    const auto exponent = static_cast<float>(2 * i) / static_cast<float>(rope.width);
    const float plain = 1.0F / static_cast<float>(std::pow(rope.theta, static_cast<double>(exponent)));
    switch (rope.kind) {
      case RopeKind::kDefault:
        frequencies[i] = plain;
        break;
      case RopeKind::kLinear:
        frequencies[i] = static_cast<float>(plain / rope.factor);
        break;
      case RopeKind::kLlama3:
        frequencies[i] = llama3(rope, plain);
        break;
      case RopeKind::kYarn:
        frequencies[i] = yarn(rope, plain, static_cast<std::int64_t>(i));
        break;
    }
  }
  return frequencies;
}

RopeTable::RopeTable(const RopeSpec& rope)
    : frequencies_(rope_frequencies(rope)),
      scale_(rope.kind == RopeKind::kYarn ? static_cast<float>(rope.attention_factor) : 1.0F) {}

void RopeTable::grow(std::int64_t positions) {
  const std::size_t pairs = frequencies_.size();
  const std::size_t have = cos_.size() / pairs;
  const std::size_t want = std::max(static_cast<std::size_t>(positions), 2 * have);
  cos_.resize(want * pairs);
  sin_.resize(want * pairs);
  for (std::size_t p = have; p < want; ++p)
    for (std::size_t i = 0; i < pairs; ++i) {
      const double angle = static_cast<float>(p) * frequencies_[i];  // rounded to float32, as the reference does
      cos_[p * pairs + i] = scale_ * static_cast<float>(std::cos(angle));
      sin_[p * pairs + i] = scale_ * static_cast<float>(std::sin(angle));
    }
}

void RopeTable::gather(std::span<const std::int32_t> positions, float* cos, float* sin) {
  if (positions.empty() || frequencies_.empty()) return;
  const auto pairs = static_cast<std::ptrdiff_t>(frequencies_.size());
  const std::int64_t last = *std::max_element(positions.begin(), positions.end());
  if ((last + 1) * pairs > static_cast<std::int64_t>(cos_.size())) grow(last + 1);
  for (std::size_t row = 0; row < positions.size(); ++row) {
    const std::ptrdiff_t from = positions[row] * pairs;
    const std::ptrdiff_t to = static_cast<std::ptrdiff_t>(row) * pairs;
    std::copy_n(cos_.begin() + from, pairs, cos + to);
    std::copy_n(sin_.begin() + from, pairs, sin + to);
  }
}

}  // namespace troupe::model
