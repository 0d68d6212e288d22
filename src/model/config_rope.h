/// @file
/// The rotary embedding of a config.json. Private to this folder.
#pragma once

#include "model/config_reader.h"
#include "model/spec.h"

namespace troupe::model {

/// Both spellings: rope_theta + rope_scaling, or everything in rope_parameters. Errors: a kind that is not known, numbers
/// out of range, a context that the scaling does not reach.
[[nodiscard]] Result<RopeSpec> read_rope(const ConfigReader& config, std::int64_t head_dim, std::int64_t context,
                                         double theta_otherwise);

/// m(s, c) of research/models.md 1.3.
[[nodiscard]] double yarn_magnitude(double factor, double c);

}  // namespace troupe::model
