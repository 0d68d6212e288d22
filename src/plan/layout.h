/// @file
/// How many bytes of training state the fullest rank of a layout holds.
#pragma once

#include <cstdint>
#include <string_view>

#include "base/result.h"
#include "model/spec.h"

namespace troupe::plan {

/// Degrees of parallelism; their product is the number of ranks (experts are spread over the data ranks).
struct Layout {
  std::int64_t replicate = 1;  ///< Whole copies.
  std::int64_t shard = 1;      ///< Every parameter is cut evenly over these.
  std::int64_t tensor = 1;     ///< Matrices are cut; vectors are not.
  std::int64_t pipeline = 1;   ///< Consecutive layers to a stage.
  std::int64_t expert = 1;     ///< Experts are dealt to these; at most replicate * shard.
  [[nodiscard]] std::int64_t ranks() const { return replicate * shard * tensor * pipeline; }
};

/// "shard=8,tensor=2": names and degrees by commas. Errors: kInvalidArgument naming every entry that is wrong.
[[nodiscard]] Result<Layout> parse_layout(std::string_view text);

/// Bytes on one rank, float32.
struct RankMemory {
  std::int64_t weights = 0;
  std::int64_t gradients = 0;
  std::int64_t optimizer = 0;  ///< AdamW: two numbers a parameter.
  [[nodiscard]] std::int64_t total() const { return weights + gradients + optimizer; }
};

/// The rank that holds most. Errors: kInvalidArgument when layers, heads or experts are too few for the degrees.
[[nodiscard]] Result<RankMemory> fullest_rank(const model::ModelSpec& spec, const Layout& layout);

}  // namespace troupe::plan
