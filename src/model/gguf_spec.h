/// @file
/// A spec from a GGUF file's metadata. Private to this folder; no torch.
#pragma once

#include "base/result.h"
#include "formats/gguf.h"
#include "model/spec.h"

namespace troupe::model {

/// Errors: kInvalidArgument naming the file and the metadata key.
[[nodiscard]] Result<ModelSpec> spec_from_gguf(const formats::GgufFile& file);

/// Puts the rows of a query or key matrix back from adjacent-pair order to half-split order, in place. Shapes: values
/// [heads * head_dim, in].
void unpermute_heads(std::span<float> values, std::int64_t heads, std::int64_t head_dim, std::int64_t in);

}  // namespace troupe::model
