#include "kernels/rmsnorm.h"

#include "base/check.h"
#include "kernels/cpu/parallel.h"
#include "kernels/cpu/table.h"
#include "kernels/cuda_library.h"

namespace troupe::kernels {
namespace {

constexpr std::int64_t kMaxCols = 65536;

/// What is wrong with the arguments, or null.
const char* problem(const RmsNormForward& a) {
  if (a.x == nullptr || a.weight == nullptr || a.y == nullptr) return "rmsnorm_forward: x, weight and y must be given";
  if (a.cols < 1 || a.cols > kMaxCols || a.heads < 1)
    return "rmsnorm_forward: cols must be in 1..65536, heads positive";
  return nullptr;
}

const char* problem(const RmsNormBackward& a) {
  if (a.x == nullptr || a.weight == nullptr || a.inv_rms == nullptr || a.dy == nullptr || a.dx == nullptr) {
    return "rmsnorm_backward: x, weight, inv_rms, dy and dx must be given";
  }
  if (a.cols < 1 || a.cols > kMaxCols || a.heads < 1)
    return "rmsnorm_backward: cols must be in 1..65536, heads positive";
  return nullptr;
}

RmsNormForward resolved(RmsNormForward a) {
  if (a.x_stride == 0) a.x_stride = a.heads * a.cols;
  if (a.y_stride == 0) a.y_stride = a.heads * a.cols;
  return a;
}

RmsNormBackward resolved(RmsNormBackward a) {
  if (a.x_stride == 0) a.x_stride = a.heads * a.cols;
  if (a.dy_stride == 0) a.dy_stride = a.heads * a.cols;
  if (a.dx_stride == 0) a.dx_stride = a.heads * a.cols;
  return a;
}

template <class Args>
Status on_stream(const Args& args, Stream stream, const char* (*CudaLibrary::*entry)(const Args*, void*)) {
  if (args.rows == 0) return {};
  if (const char* why = problem(args)) return fail(ErrorCode::kInvalidArgument, why);
  const Result<CudaLibrary>& cuda = cuda_library();
  if (!cuda) return tl::unexpected(cuda.error());
  const Args full = resolved(args);
  if (const char* refused = ((*cuda).*entry)(&full, stream.handle)) {
    return fail(ErrorCode::kUnavailable, std::string("CUDA refused rmsnorm: ") + refused);
  }
  return {};
}

}  // namespace

void rmsnorm_forward(const RmsNormForward& args) {
  if (args.rows == 0) return;
  const char* why = problem(args);
  TROUPE_CHECK(why == nullptr, why);
  const RmsNormForward a = resolved(args);
  const KernelTable& isa = table();
  run_shared_ranges(a.rows, 1, threads_for(4.0 * static_cast<double>(a.rows * a.heads * a.cols)),
                    [&](std::int64_t begin, std::int64_t end) { isa.rmsnorm_forward(a, begin, end); });
}

void rmsnorm_backward(const RmsNormBackward& args) {
  if (args.rows == 0) {
    for (std::int64_t i = 0; args.dweight != nullptr && i < args.cols; ++i) args.dweight[i] = 0;
    return;
  }
  const char* why = problem(args);
  TROUPE_CHECK(why == nullptr, why);
  const RmsNormBackward a = resolved(args);
  const KernelTable& isa = table();
  const int threads = threads_for(6.0 * static_cast<double>(a.rows * a.heads * a.cols));
  if (a.dweight != nullptr) {  // first: dx may be written over dy
    run_ranges(a.cols, kLanes, threads,
               [&](std::int64_t begin, std::int64_t end) { isa.rmsnorm_dweight(a, begin, end); });
  }
  run_shared_ranges(a.rows, 1, threads, [&](std::int64_t begin, std::int64_t end) { isa.rmsnorm_dx(a, begin, end); });
}

Status rmsnorm_forward(const RmsNormForward& args, Stream stream) {
  if (stream.handle != nullptr) return on_stream(args, stream, &CudaLibrary::rmsnorm_forward);
  if (const char* why = args.rows == 0 ? nullptr : problem(args)) return fail(ErrorCode::kInvalidArgument, why);
  rmsnorm_forward(args);
  return {};
}

Status rmsnorm_backward(const RmsNormBackward& args, Stream stream) {
  if (stream.handle != nullptr) return on_stream(args, stream, &CudaLibrary::rmsnorm_backward);
  if (const char* why = args.rows == 0 ? nullptr : problem(args)) return fail(ErrorCode::kInvalidArgument, why);
  rmsnorm_backward(args);
  return {};
}

}  // namespace troupe::kernels
