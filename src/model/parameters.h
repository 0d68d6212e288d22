/// @file
/// The named parameters that a spec's parts bring, in checkpoint order. The one place that knows tensor names and
/// shapes.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "model/spec.h"

namespace troupe::model {

/// One row of the table.
struct ParameterSpec {
  std::string name;                 ///< Hugging Face's.
  std::string gguf_name;            ///< llama.cpp's.
  std::vector<std::int64_t> shape;  ///< Row-major; matrices are [out, in].
  bool norm = false;                ///< A norm's weight: starts at `identity` instead of normal(0, init_std).
  double identity = 1;
  std::int64_t rotated_heads = 0;  ///< Query and key matrices: heads whose rows llama-type GGUF files store permuted.

  [[nodiscard]] std::int64_t elements() const;
};

[[nodiscard]] std::vector<ParameterSpec> parameter_table(const ModelSpec& spec);

}  // namespace troupe::model
