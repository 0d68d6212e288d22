/// @file
/// The kernels' functions, run where one says: on the CPU, on the GPU with operands in host memory or in its own, or on
/// both and compared.
///
/// Each takes the CPU kernel's own arguments and gives its bits (docs/numerics.md), wherever it runs; but for the gradient
/// of the delta rule. kDevice: an operand in host memory is copied up, a result in host memory copied back before the call
/// returns; the bytes are those of the operands (kernels/cuda/README.md lists them). kBoth: every operand in host memory.
/// Errors: none on the CPU; on the GPU those of device(), kResourceExhausted without room, kUnavailable with CUDA's text,
/// kInternal for a difference.
#pragma once

#include <cstdint>
#include <span>

#include "base/result.h"
#include "kernels/adamw.h"
#include "kernels/attention.h"
#include "kernels/delta_net.h"
#include "kernels/device.h"
#include "kernels/device_memory.h"
#include "kernels/gemm.h"
#include "kernels/logprob.h"
#include "kernels/pointwise.h"
#include "kernels/rmsnorm.h"
#include "kernels/router.h"
#include "kernels/sampling.h"
#include "kernels/swiglu.h"

namespace troupe::kernels {

[[nodiscard]] Status run(Where where, const RmsNormForward& args);
[[nodiscard]] Status run(Where where, const RmsNormBackward& args);
[[nodiscard]] Status run(Where where, const SwigluForward& args);
[[nodiscard]] Status run(Where where, const SwigluBackward& args);
[[nodiscard]] Status run(Where where, const GatedUnit& args);
[[nodiscard]] Status run(Where where, const LogprobForward& args);
[[nodiscard]] Status run(Where where, const LogprobBackward& args);
[[nodiscard]] Status run(Where where, const Router& args);
[[nodiscard]] Status run(Where where, const CausalConv& args);
[[nodiscard]] Status run(Where where, const WeightGradient& args);
/// kDevice: the parameters and both moments go up and come back, in pieces, so that little of the device is taken.
[[nodiscard]] Status run(Where where, const AdamW& args);
[[nodiscard]] Status sample_rows(Where where, SampleRow* rows, std::int64_t count, std::int64_t vocab);
/// y[i] += x[i].
[[nodiscard]] Status add(Where where, const float* x, float* y, std::int64_t n);
/// The recurrence of each sequence, row by row.
[[nodiscard]] Status run(Where where, std::span<const DeltaRule> sequences);
/// kDevice: row by row from the last one, not in the CPU's chunks; kBoth allows 1e-3 of the largest number.
[[nodiscard]] Status run(Where where, std::span<const DeltaRuleGrad> sequences);

/// A matrix [n, k] that lies on the device, or the transpose of one that does.
struct DeviceMatrix {
  const float* data = nullptr;
  std::int64_t n = 0, k = 0;
  std::int64_t stride = 0;  ///< Floats from row to row in memory; 0: no gaps.
  bool transposed = false;  ///< In memory it is [k, n].
  Precision precision = Precision::kFloat32;
};

/// What products multiply with: the CPU the packed form, the GPU the other one. kBoth needs both.
struct Factor {
  const PackedMatrix* packed = nullptr;
  DeviceMatrix device;
  [[nodiscard]] std::int64_t rows() const { return packed != nullptr ? packed->rows() : device.n; }
  [[nodiscard]] std::int64_t cols() const { return packed != nullptr ? packed->cols() : device.k; }
  [[nodiscard]] Precision precision() const { return packed != nullptr ? packed->precision() : device.precision; }
};

/// y = x W^T, as matmul in gemm.h.
struct Product {
  const float* x = nullptr;  ///< [m, k]
  float* y = nullptr;        ///< [m, n]
  std::int64_t m = 0;
  Factor factor;
  std::int64_t x_stride = 0;  ///< 0: k.
  std::int64_t y_stride = 0;  ///< 0: n.
};
[[nodiscard]] Status run(Where where, const Product& args);

/// The same with a matrix for each group of rows: group g has the rows [ends[g - 1], ends[g]).
struct GroupedProduct {
  const float* x = nullptr;  ///< [rows, k]
  float* y = nullptr;        ///< [rows, n]
  std::span<const std::int32_t> ends;
  const PackedMatrix* packed = nullptr;  ///< One per group.
  DeviceMatrix first;                    ///< Of group 0; the others follow without gaps.
};
[[nodiscard]] Status run(Where where, const GroupedProduct& args);

/// Attention over the rows of a batch: segments whose pointers lie inside these memories.
struct AttentionMemory {
  std::span<const float> qkv;
  std::span<float> out, lse;  ///< lse may be empty.
};
[[nodiscard]] Status attention_forward(Where where, const AttentionShape& shape,
                                       std::span<const AttentionSegment> segments, const AttentionMemory& memory);
struct AttentionGradMemory {
  std::span<const float> qkv, out, dout, lse;
  std::span<float> dqkv;  ///< Zeros before the call.
};
[[nodiscard]] Status attention_backward(Where where, const AttentionShape& shape, const AttentionGradStrides& strides,
                                        std::span<const AttentionGradSegment> segments, const AttentionGradMemory& memory);

}  // namespace troupe::kernels
