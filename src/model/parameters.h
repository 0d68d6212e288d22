/// @file
/// The named parameters that a spec's parts bring, in checkpoint order: shapes, roles, start values, and the tensors of a
/// file that make each of them up.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "model/names.h"
#include "model/spec.h"

namespace troupe::model {

/// A tensor of a file and the part of the parameter that it holds.
struct StoredTensor {
  std::string name;
  std::vector<std::int64_t> shape;
  std::int64_t offset = 0;  ///< Floats of the parameter before it.
  bool copy = false;        ///< The whole parameter again, under a second name; a file may lack it.
};

enum class Start : std::uint8_t {
  kNormal,    ///< normal(0, init_std)
  kConstant,  ///< ParameterSpec::constant
  kLogUniform,  ///< log of uniform(0.01, 16)
  kCycle,     ///< A router's table: experts in turn.
};

/// One row of the table.
struct ParameterSpec {
  Role role = Role::kCount;
  int place = -1;                    ///< -1: the model; then the layers, then the blocks for further tokens.
  std::string name;                  ///< Hugging Face's; experts that a file stores one by one have a name together.
  std::string gguf_name;             ///< llama.cpp's; empty: it has none.
  std::vector<std::int64_t> shape;   ///< Row-major; matrices are [out, in].
  std::vector<StoredTensor> stored;  ///< In a Hugging Face folder. Exactly one, of this name, where nothing is split.
  Start start = Start::kNormal;
  double constant = 1;
  std::int64_t cycle = 0;          ///< kCycle: numbers from 0 to below this.
  bool trains = true;              ///< false: no gradient changes it.
  std::int64_t rotated_heads = 0;  ///< Query and key matrices: heads whose rows llama-type GGUF files store permuted.

  [[nodiscard]] std::int64_t elements() const;
};

[[nodiscard]] std::vector<ParameterSpec> parameter_table(const ModelSpec& spec);

}  // namespace troupe::model
