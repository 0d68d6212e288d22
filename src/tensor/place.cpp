#include "tensor/place.h"

#include <ATen/ops/empty.h>

#include "base/check.h"

namespace troupe::tensor {

namespace {

kernels::DeviceMemory device_floats(std::int64_t count) {
  Result<kernels::DeviceMemory> memory = kernels::DeviceMemory::allocate(static_cast<std::size_t>(count) * sizeof(float));
  if (!memory) throw KernelError(memory.error());
  return std::move(*memory);
}

void upload(float* to, const at::Tensor& from) {
  done(kernels::copy_to_device({to, from.const_data_ptr<float>(), 1, static_cast<std::size_t>(from.numel()) * sizeof(float)}));
}

} // namespace

void done(const Status& status) {
  if (!status) throw KernelError(status.error());
}

Scratch::Scratch(Where where, std::int64_t count) {
  if (where == Where::kDevice) {
    device_ = device_floats(count);
    data_ = device_.floats();
  } else {
    host_ = at::empty({count}, at::TensorOptions().dtype(at::kFloat));
    data_ = host_.data_ptr<float>();
  }
}

void Scratch::read(float* to, std::int64_t count) const {
  if (to == data_) return;
  TROUPE_CHECK(!device_.empty(), "scratch memory of the host is read where it is");
  done(kernels::copy_to_host({to, data_, 1, static_cast<std::size_t>(count) * sizeof(float)}));
}

Staged::Staged(Where where, const at::Tensor& tensor) : data_(tensor.const_data_ptr<float>()) {
  TROUPE_CHECK(tensor.is_contiguous(), "a contiguous tensor");
  if (where != Where::kDevice) return;
  device_ = device_floats(tensor.numel());
  upload(device_.floats(), tensor);
  data_ = device_.floats();
}

const float* DeviceWeights::get(std::span<const at::Tensor> weights) {
  if (fresh_) return memory_.floats();
  std::int64_t count = 0;
  for (const at::Tensor& weight : weights) count += weight.numel();
  if (count != count_) {
    memory_ = {};
    memory_ = device_floats(count);
    count_ = count;
  }
  float* next = memory_.floats();
  for (const at::Tensor& weight : weights) {
    const at::Tensor plain = weight.detach().contiguous();
    upload(next, plain);
    next += plain.numel();
  }
  fresh_ = true;
  return memory_.floats();
}

} // namespace troupe::tensor
