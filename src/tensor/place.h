/// @file
/// Kernels that run where one says, and memory for what stays there between them.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <span>
#include <stdexcept>

#include "base/result.h"
#include "kernels/device.h"
#include "kernels/device_memory.h"

namespace troupe::tensor {

using kernels::Where;

/// A kernel's error on its way through LibTorch, whose functions know no other way. Whoever calls a forward or a backward pass
/// of a component catches it there.
class KernelError : public std::runtime_error {
 public:
  explicit KernelError(Error error) : std::runtime_error(error.message), error_(std::move(error)) {}
  [[nodiscard]] const Error& error() const { return error_; }

 private:
  Error error_;
};

/// Throws KernelError unless it is well.
void done(const Status& status);

/// Floats that the kernels of `where` use without a copy; contents unspecified: on the device for kDevice, else on the host.
class Scratch {
 public:
  Scratch(Where where, std::int64_t count);
  [[nodiscard]] float* data() const { return data_; }
  /// Copies the first `count` floats to the host's memory, unless that is where they are.
  void read(float* to, std::int64_t count) const;

 private:
  at::Tensor host_;
  kernels::DeviceMemory device_;
  float* data_;
};

/// A tensor that several kernels of `where` read: kDevice copies it once. The tensor must be contiguous and live as long.
class Staged {
 public:
  Staged(Where where, const at::Tensor& tensor);
  [[nodiscard]] const float* data() const { return data_; }

 private:
  kernels::DeviceMemory device_;
  const float* data_;
};

/// Matrices below each other in device memory, copied at the first use and again after `invalidate`.
class DeviceWeights {
 public:
  void invalidate() { fresh_ = false; }
  /// Shapes: weights_i [n_i, ...], contiguous.
  [[nodiscard]] const float* get(std::span<const at::Tensor> weights);

 private:
  kernels::DeviceMemory memory_;
  std::int64_t count_ = 0;
  bool fresh_ = false;
};

} // namespace troupe::tensor
