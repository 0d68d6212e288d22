/// @file
/// Memory for the results of operations that do not record.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>

namespace troupe::tensor {

/// A float32 tensor of this shape, contents unspecified. A small one takes the memory of an earlier one of its shape
/// that nobody holds any more, so a decoding step allocates what the step before it gave back. Per thread.
[[nodiscard]] at::Tensor unrecorded_rows(std::int64_t rows, std::int64_t cols);

}  // namespace troupe::tensor
