#include "kernels/device_call.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <sstream>

namespace troupe::kernels {
namespace {

float number(const std::byte* at) {
  float x = 0;
  std::memcpy(&x, at, sizeof x);
  return x;
}

bool same_float(const std::byte* a, const std::byte* b) {
  return std::memcmp(a, b, sizeof(float)) == 0 || (std::isnan(number(a)) && std::isnan(number(b)));
}

}  // namespace

Status Apart::compare(const char* kernel, double tolerance) const {
  for (std::size_t operand = 0; operand < pieces_.size(); ++operand) {
    const Piece& p = pieces_[operand];
    double largest = 0;
    if (tolerance > 0) {
      for (std::size_t row = 0; row < p.rows; ++row)
        for (std::size_t at = 0; at < p.row_bytes; at += sizeof(float))
          largest = std::fmax(largest, std::abs(number(p.host + row * p.stride_bytes + at)));
    }
    for (std::size_t row = 0; row < p.rows; ++row) {
      const std::byte* host = p.host + row * p.stride_bytes;
      const std::byte* gpu = p.device.data() + row * p.row_bytes;
      if (std::memcmp(host, gpu, p.row_bytes) == 0) continue;
      for (std::size_t at = 0; at < p.row_bytes; at += sizeof(float)) {
        if (p.floats ? same_float(host + at, gpu + at) : std::memcmp(host + at, gpu + at, sizeof(float)) == 0) continue;
        const double difference = p.floats ? std::abs(double{number(host + at)} - double{number(gpu + at)}) : 0;
        if (p.floats && difference <= tolerance * largest) continue;
        std::ostringstream text;
        text.precision(9);
        text << "[kernels] \"check:cuda\": CPU and GPU differ in " << kernel << ", result " << operand << ", row " << row
             << ", column " << at / sizeof(float);
        if (p.floats) text << ": " << number(host + at) << " and " << number(gpu + at) << ", allowed is " << tolerance * largest;
        return fail(ErrorCode::kInternal, text.str());
      }
    }
  }
  return {};
}

void* DeviceCall::place(Staged staged, bool up) {
  if (!status_) return nullptr;
  Result<DeviceMemory> memory = DeviceMemory::allocate(staged.rows * staged.row_bytes);
  if (!memory) {
    status_ = tl::unexpected(memory.error());
    return nullptr;
  }
  staged.device = static_cast<std::byte*>(memory->get());
  held_.push_back(std::move(*memory));
  staged_.push_back(staged);
  if (up) status_ = copy_to_device({staged.device, staged.host, staged.rows, staged.row_bytes, 0, staged.stride_bytes});
  return staged.device;
}

void DeviceCall::from_zeros(float*& operand, std::int64_t count) {
  const bool placed_before = operand == nullptr || lies_on_device(operand);
  out(operand, count);
  if (!placed_before && status_) status_ = fill_device(operand, 0, static_cast<std::size_t>(count) * sizeof(float));
}

void* DeviceCall::scratch(std::int64_t bytes) {
  if (!status_) return nullptr;
  Result<DeviceMemory> memory = DeviceMemory::allocate(static_cast<std::size_t>(bytes));
  if (!memory) {
    status_ = tl::unexpected(memory.error());
    return nullptr;
  }
  held_.push_back(std::move(*memory));
  return held_.back().get();
}

void* DeviceCall::moved_bytes(void* host) const {
  auto* const at = static_cast<std::byte*>(host);
  for (const Staged& s : staged_)
    if (at >= s.host && at < s.host + s.rows * s.row_bytes) return s.device + (at - s.host);
  return host;
}

Status DeviceCall::finish() {
  for (const Staged& s : staged_) {
    if (!s.down || !status_) continue;
    if (apart_ == nullptr) {
      status_ = copy_to_host({s.host, s.device, s.rows, s.row_bytes, s.stride_bytes, 0});
      continue;
    }
    apart_->pieces_.push_back({s.host, s.rows, s.row_bytes, s.stride_bytes, s.floats, std::vector<std::byte>(s.rows * s.row_bytes)});
    status_ = copy_to_host({apart_->pieces_.back().device.data(), s.device, s.rows, s.row_bytes});
  }
  return status_;
}

}  // namespace troupe::kernels
