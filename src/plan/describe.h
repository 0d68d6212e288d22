/// @file
/// A table of parts in words.
#pragma once

#include <string>
#include <vector>

#include "model/spec.h"

namespace troupe::plan {

/// Layers that have the same parts.
struct LayerKind {
  std::vector<std::int64_t> layers;  ///< Ascending; blocks for further tokens count on behind the layers.
  std::string attention;             ///< "grouped-query 16 x 128, 8 key heads, window 128, sinks"
  std::string feed_forward;          ///< "experts 8 of 128 x 768 (softmax)"
  std::string residual;              ///< "pre-norm"
};
/// Every kind once, in order of its first layer.
[[nodiscard]] std::vector<LayerKind> layer_kinds(const model::ModelSpec& spec);

/// "default, base 500000", "yarn x32 over 4096, base 150000".
[[nodiscard]] std::string rope_text(const model::RopeSpec& rope);

/// "0-2, 5, 7-9".
[[nodiscard]] std::string ranges_text(const std::vector<std::int64_t>& numbers);

}  // namespace troupe::plan
