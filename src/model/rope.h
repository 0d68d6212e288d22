/// @file
/// Angles of the rotary embedding.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "model/spec.h"

namespace troupe::model {

/// The angle per position of each rotated pair. Shape [width / 2]. Source: research/models.md 1.2, 1.3.
[[nodiscard]] std::vector<float> rope_frequencies(const RopeSpec& rope);

/// cos and sin by position, computed once per position and kept.
class RopeTable {
 public:
  explicit RopeTable(const RopeSpec& rope);
  [[nodiscard]] std::int64_t pairs() const { return static_cast<std::int64_t>(frequencies_.size()); }
  /// Writes the rows of these positions. Shapes: cos, sin [positions, pairs()].
  void gather(std::span<const std::int32_t> positions, float* cos, float* sin);

 private:
  void grow(std::int64_t positions);
  std::vector<float> frequencies_;
  float scale_;
  std::vector<float> cos_, sin_;
};

}  // namespace troupe::model
