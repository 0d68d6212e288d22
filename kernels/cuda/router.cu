// Experts of each token on the GPU. Bits: the CPU's (router.h): probabilities are summed in float64 in one chain.
// A warp per token: reads experts logits, writes 8 bytes a choice; `chosen` searches of the row in shared memory. Small
// beside the experts' products: a few us for thousands of tokens.
#include "kernels/router.h"
#include "kernels/cuda/math.cuh"

namespace troupe::kernels::cuda {
namespace {

constexpr int kRows = 4;                 // of a block, one per warp
constexpr std::int64_t kMaxExperts = 2048;  // of which a block keeps three arrays

/// log(1 + exp(x)), as pointwise.h's kSoftplus.
__device__ inline float softplus_of(float x) {
  const float e = exp_of(-fabsf(x));
  const float u = 1.0f + e;
  const float lost = u - 1.0f;
  const float tail = lost == 0 ? e : log_of(u) * (e / lost);
  return (x < 0.0f ? 0.0f : x) + tail;
}

/// The sum of n floats in one float64 chain, by every lane for itself.
__device__ inline double chain(const float* x, std::int64_t n) {
  double sum = 0;
  for (std::int64_t i = 0; i < n; ++i) sum += static_cast<double>(x[i]);
  return sum;
}

/// y = exp(x - max x), by the warp; returns the sum.
__device__ double shifted_exp(const float* x, std::int64_t n, float* y) {
  float most = -kInfinity;
  for (std::int64_t i = threadIdx.x; i < n; i += kWarp) most = larger(most, x[i]);
  most = max_of_warp(most);
  for (std::int64_t i = threadIdx.x; i < n; i += kWarp) y[i] = exp_of(x[i] - most);
  __syncwarp();
  return chain(y, n);
}

__device__ void score(const Router& a, const float* logits, float* s) {
  if (a.score == RouterScore::kSoftmax) {
    const double sum = shifted_exp(logits, a.experts, s);
    __syncwarp();
    for (std::int64_t i = threadIdx.x; i < a.experts; i += kWarp)
      s[i] = static_cast<float>(static_cast<double>(s[i]) / sum);
  } else {
    for (std::int64_t i = threadIdx.x; i < a.experts; i += kWarp)
      s[i] = a.score == RouterScore::kSigmoid         ? sigmoid_of(logits[i])
             : a.score == RouterScore::kSqrtSoftplus ? sqrtf(softplus_of(logits[i]))
                                                     : logits[i];
  }
  __syncwarp();
}

/// A candidate of a search; the better one of two. Numbers before NaN, larger first, then the lower index; the CPU's scan
/// leaves the last of NaNs.
struct Best {
  float value;
  int index;  ///< -1: none.
};
__device__ inline Best better(Best a, Best b) {
  if (b.index < 0) return a;
  if (a.index < 0) return b;
  const bool a_nan = a.value != a.value;
  const bool b_nan = b.value != b.value;
  if (a_nan && b_nan) return a.index > b.index ? a : b;
  if (a_nan || b_nan) return a_nan ? b : a;
  if (a.value != b.value) return a.value > b.value ? a : b;
  return a.index < b.index ? a : b;
}

/// Marks the best of x that is not taken and returns its index, in every lane.
__device__ int take_best(const float* x, std::int64_t n, unsigned char* taken) {
  Best best{0, -1};
  for (std::int64_t i = threadIdx.x; i < n; i += kWarp)
    if (taken[i] == 0) best = better(best, {x[i], static_cast<int>(i)});
  for (int other = 16; other > 0; other /= 2) {
    const Best theirs{__shfl_xor_sync(kAllLanes, best.value, other), __shfl_xor_sync(kAllLanes, best.index, other)};
    best = better(best, theirs);
  }
  if (threadIdx.x == 0) taken[best.index] = 1;
  __syncwarp();
  return best.index;
}

/// Takes the experts of all groups but the best ones. `sums` and `kept` have room for the groups.
__device__ void close_groups(const Router& a, const float* rank, float* sums, unsigned char* kept,
                             unsigned char* taken) {
  const std::int64_t size = a.experts / a.groups;
  for (std::int64_t g = threadIdx.x; g < a.groups; g += kWarp) {
    float first = -kInfinity;
    float second = -kInfinity;
    for (std::int64_t i = g * size; i < (g + 1) * size; ++i) {
      if (rank[i] > first) {
        second = first;
        first = rank[i];
      } else if (rank[i] > second) {
        second = rank[i];
      }
    }
    sums[g] = size > 1 ? first + second : first;
    kept[g] = 0;
  }
  __syncwarp();
  for (std::int64_t i = 0; i < a.groups_kept; ++i) take_best(sums, a.groups, kept);
  for (std::int64_t i = threadIdx.x; i < a.experts; i += kWarp) taken[i] = kept[i / size] == 0 ? 1 : 0;
  __syncwarp();
}

__device__ void choose(const Router& a, std::int64_t row, const float* s, float* rank, float* sums,
                       unsigned char* taken, unsigned char* kept) {
  std::int32_t* choices = a.choices + row * a.chosen;
  if (a.fixed != nullptr) {
    for (std::int64_t j = threadIdx.x; j < a.chosen; j += kWarp) choices[j] = a.fixed[row * a.chosen + j];
    return;
  }
  for (std::int64_t i = threadIdx.x; i < a.experts; i += kWarp) {
    rank[i] = a.correction != nullptr ? s[i] + a.correction[i] : s[i];
    taken[i] = 0;
  }
  __syncwarp();
  if (a.groups_kept < a.groups) close_groups(a, rank, sums, kept, taken);
  for (std::int64_t j = 0; j < a.chosen; ++j) {
    const int best = take_best(rank, a.experts, taken);
    if (threadIdx.x == 0) choices[j] = best;
  }
}

/// Floats of a row in shared memory: s, rank, sums of groups, and two arrays of bytes.
__host__ __device__ inline std::int64_t row_floats(std::int64_t experts) { return 3 * experts + (experts + 1) / 2; }

__global__ void __launch_bounds__(kWarp* kRows) route_kernel(Router a) {
  TROUPE_DYNAMIC_SHARED(float, memory);
  const std::int64_t row = static_cast<std::int64_t>(blockIdx.x) * kRows + threadIdx.y;
  if (row >= a.rows) return;  // a whole warp; there is no barrier below
  float* s = memory + threadIdx.y * row_floats(a.experts);
  float* rank = s + a.experts;
  float* sums = rank + a.experts;
  auto* taken = reinterpret_cast<unsigned char*>(sums + a.experts);
  score(a, a.logits + row * a.experts, s);
  choose(a, row, s, rank, sums, taken, taken + a.experts);
  __syncwarp();
  const std::int32_t* choices = a.choices + row * a.chosen;
  float* chosen = rank;  // the weights on their way; nobody reads the ranks again
  for (std::int64_t j = threadIdx.x; j < a.chosen; j += kWarp) chosen[j] = s[choices[j]];
  __syncwarp();
  double sum = 1;
  if (a.score == RouterScore::kSoftmaxOfChosen) {
    sum = shifted_exp(chosen, a.chosen, sums);
    chosen = sums;
  } else if (a.normalise) {
    float all = 0;
    for (std::int64_t j = 0; j < a.chosen; ++j) all += chosen[j];
    sum = static_cast<double>(all + a.guard);
  }
  for (std::int64_t j = threadIdx.x; j < a.chosen; j += kWarp) {
    float w = chosen[j];
    if (a.score == RouterScore::kSoftmaxOfChosen)
      w = static_cast<float>(static_cast<double>(w) / sum);
    else if (a.normalise)
      w /= static_cast<float>(sum);
    a.weights[row * a.chosen + j] = w * a.scale;
  }
}

}  // namespace
}  // namespace troupe::kernels::cuda

TROUPE_EXPORT const char* troupe_cuda_route(const troupe::kernels::Router* args, void* stream) {
  using namespace troupe::kernels;
  if (args->experts > cuda::kMaxExperts) return "route: more than 2048 experts";
  const auto bytes = static_cast<std::size_t>(cuda::kRows * cuda::row_floats(args->experts)) * sizeof(float);
  return cuda::launch(cuda::route_kernel, {cuda::pieces(args->rows, cuda::kRows)}, {cuda::kWarp, cuda::kRows, 1}, bytes,
                      stream, *args);
}
