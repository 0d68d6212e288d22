// cuBLASLt behind `matmul_library`. Its choice of kernel, and with it the order of a number's sum, depends on M, N and
// K: the same shape gives the same bits again, another number of rows need not. So it is not invariant to the batch; it is
// here for speed, and as what matmul_tensor is measured against.
#include <cublasLt.h>
#include <cuda_runtime_api.h>

#include <map>
#include <mutex>
#include <tuple>

#include "kernels/cuda_args.h"

#define TROUPE_EXPORT extern "C" __attribute__((visibility("default")))

namespace troupe::kernels::cuda {
namespace {

constexpr std::uint64_t kAlignment = 16;  // of x and w, which matmul_tensor needs too

const char* text_of(cublasStatus_t status) {
  return status == CUBLAS_STATUS_SUCCESS ? nullptr : cublasLtGetStatusString(status);
}

/// One product y^T [n, m] = W x^T: column by column, cuBLAS' order of memory, y [m, n] is y^T.
struct Plan {
  cublasLtMatmulDesc_t product = nullptr;
  cublasLtMatrixLayout_t w = nullptr, x = nullptr, y = nullptr;
  cublasLtMatmulAlgo_t algorithm{};
};

const char* describe(const CudaTensorMatmul& a, Plan& plan) {
  const cublasOperation_t transposed = CUBLAS_OP_T;
  const auto m = static_cast<std::uint64_t>(a.m);
  const auto n = static_cast<std::uint64_t>(a.n);
  const auto k = static_cast<std::uint64_t>(a.k);
  for (const cublasStatus_t status :
       {cublasLtMatmulDescCreate(&plan.product, CUBLAS_COMPUTE_32F, CUDA_R_32F),
        cublasLtMatmulDescSetAttribute(plan.product, CUBLASLT_MATMUL_DESC_TRANSA, &transposed, sizeof transposed),
        cublasLtMatrixLayoutCreate(&plan.w, CUDA_R_16BF, k, n, a.k),
        cublasLtMatrixLayoutCreate(&plan.x, CUDA_R_16BF, k, m, a.k),
        cublasLtMatrixLayoutCreate(&plan.y, CUDA_R_32F, n, m, a.n)})
    if (const char* refused = text_of(status)) return refused;
  return nullptr;
}

const char* choose(cublasLtHandle_t handle, const CudaTensorMatmul& a, Plan& plan) {
  cublasLtMatmulPreference_t wishes = nullptr;
  if (const char* refused = text_of(cublasLtMatmulPreferenceCreate(&wishes))) return refused;
  const auto bytes = static_cast<std::uint64_t>(a.workspace == nullptr ? 0 : a.workspace_bytes);
  cublasLtMatmulPreferenceSetAttribute(wishes, CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES, &bytes, sizeof bytes);
  for (const auto operand : {CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES}) {
    const auto alignment = static_cast<std::uint32_t>(kAlignment);
    cublasLtMatmulPreferenceSetAttribute(wishes, operand, &alignment, sizeof alignment);
  }
  cublasLtMatmulHeuristicResult_t best{};
  int found = 0;
  const cublasStatus_t status = cublasLtMatmulAlgoGetHeuristic(handle, plan.product, plan.w, plan.x, plan.y, plan.y,
                                                               wishes, 1, &best, &found);
  cublasLtMatmulPreferenceDestroy(wishes);
  if (const char* refused = text_of(status)) return refused;
  if (found == 0) return "cuBLASLt knows no kernel for this product";
  plan.algorithm = best.algo;
  return nullptr;
}

/// Handle and plans of one device; a shape is described and chosen once.
class Library {
 public:
  const char* multiply(const CudaTensorMatmul& a, cudaStream_t stream) {
    const Plan* plan = nullptr;
    if (const char* refused = plan_for(a, &plan)) return refused;
    const float one = 1;
    const float zero = 0;
    return text_of(cublasLtMatmul(handle_, plan->product, &one, a.w, plan->w, a.x, plan->x, &zero, a.y, plan->y, a.y,
                                  plan->y, &plan->algorithm, a.workspace,
                                  a.workspace == nullptr ? 0 : static_cast<std::size_t>(a.workspace_bytes), stream));
  }

 private:
  const char* plan_for(const CudaTensorMatmul& a, const Plan** plan) {
    const std::lock_guard lock(mutex_);
    if (handle_ == nullptr)
      if (const char* refused = text_of(cublasLtCreate(&handle_))) return refused;
    const std::tuple key{a.m, a.n, a.k, a.workspace == nullptr ? 0 : a.workspace_bytes};
    auto found = plans_.find(key);
    if (found == plans_.end()) {
      Plan fresh;
      if (const char* refused = describe(a, fresh)) return refused;
      if (const char* refused = choose(handle_, a, fresh)) return refused;
      found = plans_.emplace(key, fresh).first;
    }
    *plan = &found->second;
    return nullptr;
  }

  std::mutex mutex_;
  cublasLtHandle_t handle_ = nullptr;
  std::map<std::tuple<std::int64_t, std::int64_t, std::int64_t, std::int64_t>, Plan> plans_;
};

/// Of the present device. Never destroyed: CUDA may be gone before this library is.
Library& library() {
  static std::mutex mutex;
  static auto* const of_devices = new std::map<int, Library>;
  int device = 0;
  cudaGetDevice(&device);
  const std::lock_guard lock(mutex);
  return (*of_devices)[device];
}

}  // namespace
}  // namespace troupe::kernels::cuda

TROUPE_EXPORT const char* troupe_cuda_matmul_library(const troupe::kernels::CudaTensorMatmul* args, void* stream) {
  if (args->m == 0 || args->n == 0) return nullptr;
  return troupe::kernels::cuda::library().multiply(*args, static_cast<cudaStream_t>(stream));
}
