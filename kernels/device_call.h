/// @file
/// One call of a GPU kernel whose operands may lie in host memory: they are copied up, what the kernel writes is copied
/// back. An operand that lies on the device already is used where it is.
#pragma once

#include <concepts>
#include <cstddef>
#include <cstdint>
#include <string>
#include <type_traits>
#include <vector>

#include "base/result.h"
#include "kernels/device.h"
#include "kernels/device_memory.h"

namespace troupe::kernels {

/// What the device computed for operands that the host is to compute as well.
class Apart {
 public:
  /// Compares with what now lies in the host's memory: bit for bit (any NaN equals any other), or within `tolerance` times
  /// the largest number of an operand. Errors: kInternal with the first difference.
  [[nodiscard]] Status compare(const char* kernel, double tolerance) const;

 private:
  friend class DeviceCall;
  struct Piece {
    const std::byte* host;
    std::size_t rows, row_bytes, stride_bytes;
    bool floats;
    std::vector<std::byte> device;  ///< Rows, one behind the other.
  };
  std::vector<Piece> pieces_;
};

/// Name every operand, launch, bring home. The first thing that fails is kept, everything after it does nothing.
/// A stride of 0 means rows without gaps; strides become those of the device's copy.
class DeviceCall {
 public:
  /// `apart`: results go there, and host memory is left as it was.
  explicit DeviceCall(Apart* apart = nullptr) : apart_(apart) {}

  template <class T>
  void in(const T*& operand, std::int64_t rows, std::int64_t cols, std::int64_t& stride) {
    operand = static_cast<const T*>(placed<T>(const_cast<T*>(operand), rows, cols, stride, kUp));
  }
  template <class T>
  void in(const T*& operand, std::int64_t count) {
    std::int64_t stride = 0;
    in(operand, 1, count, stride);
  }
  template <class T>
  void out(T*& operand, std::int64_t rows, std::int64_t cols, std::int64_t& stride) {
    operand = static_cast<T*>(placed<T>(operand, rows, cols, stride, kDown));
  }
  template <class T>
  void out(T*& operand, std::int64_t count) {
    std::int64_t stride = 0;
    out(operand, 1, count, stride);
  }
  template <class T>
  void in_and_out(T*& operand, std::int64_t count) {
    std::int64_t stride = 0;
    operand = static_cast<T*>(placed<T>(operand, 1, count, stride, kUp | kDown));
  }
  /// Written from zeros; the host's memory holds zeros.
  void from_zeros(float*& operand, std::int64_t count);
  /// A list in device memory.
  template <class T>
  [[nodiscard]] const T* list(const std::vector<T>& values) {
    const T* data = values.data();
    in(data, static_cast<std::int64_t>(values.size()));
    return data;
  }
  [[nodiscard]] void* scratch(std::int64_t bytes);
  /// The device's address of what `host`, an address inside an operand named before, became.
  template <class T>
  [[nodiscard]] T* moved(T* host) const {
    return static_cast<T*>(moved_bytes(const_cast<std::remove_const_t<T>*>(host)));
  }

  template <class Args>
  void launch(const char* (*CudaLibrary::*entry)(const Args*, void*), const std::type_identity_t<Args>& args) {
    if (status_) status_ = kernels::launch(entry, args);
  }
  /// Brings results home. Where all of them stay on the device, their kernels may still be to come.
  [[nodiscard]] Status finish();

 private:
  static constexpr int kUp = 1, kDown = 2;
  struct Staged {
    std::byte *host, *device;
    std::size_t rows, row_bytes, stride_bytes;
    bool down, floats;
  };

  template <class T>
  void* placed(T* operand, std::int64_t rows, std::int64_t cols, std::int64_t& stride, int directions) {
    if (stride == 0) stride = cols;
    if (operand == nullptr || lies_on_device(operand)) return operand;
    const Staged staged{reinterpret_cast<std::byte*>(operand), nullptr, static_cast<std::size_t>(rows),
                        static_cast<std::size_t>(cols) * sizeof(T), static_cast<std::size_t>(stride) * sizeof(T),
                        (directions & kDown) != 0, std::same_as<T, float>};
    stride = cols;
    return place(staged, (directions & kUp) != 0);
  }
  void* place(Staged staged, bool up);
  [[nodiscard]] void* moved_bytes(void* host) const;

  Apart* apart_;
  Status status_;
  std::vector<Staged> staged_;
  std::vector<DeviceMemory> held_;
};

/// host() and enqueue(call), as `where` says; the results of both are compared.
template <class Host, class Enqueue>
Status run_both(Where where, const char* kernel, double tolerance, Host&& host, Enqueue&& enqueue) {
  if (where == Where::kHost) {
    host();
    return {};
  }
  Apart apart;
  DeviceCall call(where == Where::kBoth ? &apart : nullptr);
  enqueue(call);
  TROUPE_TRY_STATUS(call.finish());
  if (where == Where::kDevice) return {};
  host();
  return apart.compare(kernel, tolerance);
}

}  // namespace troupe::kernels
