#include "tensor/workspace.h"

#include <ATen/ops/empty.h>

#include <vector>

namespace troupe::tensor {

namespace {

constexpr std::int64_t kKeptFloats = 64 << 10;  // longer ones cost more to fill than to allocate
constexpr std::size_t kKeptTensors = 32;

struct Kept {
  std::vector<at::Tensor> tensors;
  std::size_t oldest = 0;
};

/// Held by the list alone, by no view, and never made part of a graph.
bool unused(const at::Tensor& tensor) {
  return tensor.use_count() == 1 && tensor.storage().use_count() == 1 && !tensor.requires_grad();
}

}  // namespace

at::Tensor unrecorded_rows(std::int64_t rows, std::int64_t cols) {
  thread_local Kept kept;
  const bool small = rows * cols <= kKeptFloats;
  if (small) {
    for (const at::Tensor& tensor : kept.tensors)
      if (tensor.size(0) == rows && tensor.size(1) == cols && unused(tensor)) return tensor;
  }
  at::Tensor tensor = at::empty({rows, cols}, at::TensorOptions().dtype(at::kFloat));
  if (!small) return tensor;
  if (kept.tensors.size() < kKeptTensors) {
    kept.tensors.push_back(tensor);
  } else {
    kept.tensors[kept.oldest] = tensor;
    kept.oldest = (kept.oldest + 1) % kKeptTensors;
  }
  return tensor;
}

}  // namespace troupe::tensor
