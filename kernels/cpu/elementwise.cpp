// Entry points of the kernels that go over rows or flat arrays without a sum: rope.h, swiglu.h, adamw.h.
#include <cmath>

#include "base/check.h"
#include "kernels/cpu/parallel.h"
#include "kernels/cpu/table.h"

namespace troupe::kernels {
namespace {

constexpr double kExpOperations = 24;  // of one sigmoid, in units of a multiply-add

std::int64_t stride_or(std::int64_t stride, std::int64_t otherwise) { return stride == 0 ? otherwise : stride; }

}  // namespace

void rope(const Rope& args) {
  if (args.rows == 0) return;
  Rope a = args;
  a.stride = stride_or(a.stride, a.heads * a.head_dim);
  a.rotary = stride_or(a.rotary, a.head_dim);
  TROUPE_CHECK(a.rotary % 2 == 0 && a.rotary <= a.head_dim, "rope: rotary must be even and at most head_dim");
  const KernelTable& isa = table();
  run_shared_ranges(a.rows, 1, threads_for(4.0 * static_cast<double>(a.rows * a.heads * a.rotary)),
                    [&](std::int64_t begin, std::int64_t end) { isa.rope(a, begin, end); });
}

void swiglu_forward(const SwigluForward& args) {
  if (args.rows == 0) return;
  SwigluForward a = args;
  a.in_stride = stride_or(a.in_stride, a.cols);
  a.y_stride = stride_or(a.y_stride, a.cols);
  const KernelTable& isa = table();
  run_shared_ranges(a.rows, 1, threads_for(kExpOperations * static_cast<double>(a.rows * a.cols)),
                    [&](std::int64_t begin, std::int64_t end) { isa.swiglu_forward(a, begin, end); });
}

void swiglu_backward(const SwigluBackward& args) {
  if (args.rows == 0) return;
  SwigluBackward a = args;
  a.in_stride = stride_or(a.in_stride, a.cols);
  a.dy_stride = stride_or(a.dy_stride, a.cols);
  a.out_stride = stride_or(a.out_stride, a.cols);
  const KernelTable& isa = table();
  run_shared_ranges(a.rows, 1, threads_for(kExpOperations * static_cast<double>(a.rows * a.cols)),
                    [&](std::int64_t begin, std::int64_t end) { isa.swiglu_backward(a, begin, end); });
}

void adamw_step(const AdamW& a) {
  TROUPE_CHECK(a.step >= 1, "adamw_step: steps count from 1");
  if (a.n == 0) return;
  const double correction1 = 1 - std::pow(a.beta1, static_cast<double>(a.step));
  const double correction2 = 1 - std::pow(a.beta2, static_cast<double>(a.step));
  const AdamWFactors factors{
      .decay = static_cast<float>(1 - a.lr * a.weight_decay),
      .beta1 = static_cast<float>(a.beta1),
      .one_minus_beta1 = static_cast<float>(1 - a.beta1),
      .beta2 = static_cast<float>(a.beta2),
      .one_minus_beta2 = static_cast<float>(1 - a.beta2),
      .inv_sqrt_correction2 = static_cast<float>(1 / std::sqrt(correction2)),
      .eps = static_cast<float>(a.eps),
      .step_size = static_cast<float>(a.lr / correction1),
      .grad_scale = a.grad_scale,
  };
  const KernelTable& isa = table();
  run_ranges(a.n, 4096, threads_for(8.0 * static_cast<double>(a.n)),
             [&](std::int64_t begin, std::int64_t end) { isa.adamw(a, factors, begin, end); });
}

}  // namespace troupe::kernels
