// Drawing a token per logit row on the GPU. Bits: the CPU's (sampling.h): its weights in float32 within 16 neighbours,
// these sums in float64 in order of ids, so that the same uniform number draws the same token.
//
// A block per row: reads the logits twice, writes and reads a weight per logit and a running sum per 16. The running
// sums are one chain of vocab / 16 additions, some 50 us for 151,936; rows run side by side.
#include "kernels/sampling.h"
#include "kernels/cuda/logits.cuh"
#include "kernels/cuda_args.h"

namespace troupe::kernels::cuda {
namespace {

/// A row's share of the workspace: blocks * 16 weights, then blocks running sums.
struct Draw {
  float* weights;
  double* before;  ///< Of block b: the sum of all blocks up to and with b.
  std::int64_t blocks;
};

/// Sums of 16 neighbours by all threads, tile by tile, and one thread that adds them in order. The total in every thread.
__device__ double running_sums(const Draw& draw) {
  TROUPE_SHARED(float, sums, [kRowThreads]);
  TROUPE_SHARED(double, all, [1]);
  double total = 0;
  for (std::int64_t first = 0; first < draw.blocks; first += kRowThreads) {
    const std::int64_t b = first + threadIdx.x;
    if (b < draw.blocks) {
      const float* w = draw.weights + 16 * b;
      float s[16];
      for (int i = 0; i < 16; ++i) s[i] = w[i];
      for (int width = 8; width > 0; width /= 2)
        for (int i = 0; i < width; ++i) s[i] += s[i + width];
      sums[threadIdx.x] = s[0];
    }
    __syncthreads();
    const std::int64_t count = draw.blocks - first < kRowThreads ? draw.blocks - first : kRowThreads;
    for (std::int64_t i = 0; threadIdx.x == 0 && i < count; ++i) draw.before[first + i] = total += static_cast<double>(sums[i]);
    __syncthreads();
  }
  if (threadIdx.x == 0) all[0] = total;
  __syncthreads();
  return all[0];
}

/// The first block whose running sum exceeds the mark, the last one if none does; in every thread.
__device__ std::int64_t block_of(const Draw& draw, double mark) {
  std::int64_t found = draw.blocks - 1;
  for (std::int64_t b = threadIdx.x; b < found; b += kRowThreads)
    if (draw.before[b] > mark) found = b;
  return min_of_block<kRowThreads>(found);
}

__device__ std::int32_t id_of(const Draw& draw, std::int64_t block, double mark) {
  double before = block == 0 ? 0.0 : draw.before[block - 1];
  std::int64_t id = -1;
  for (std::int64_t i = block * 16; i < block * 16 + 16 && before <= mark; ++i) {
    if (draw.weights[i] > 0) id = i;
    before += static_cast<double>(draw.weights[i]);
  }
  for (std::int64_t i = block * 16; id < 0; --i)  // the mark rounded to the total, behind the last weight
    if (draw.weights[i] > 0) id = i;
  return static_cast<std::int32_t>(id);
}

__global__ void __launch_bounds__(kRowThreads) sample_kernel(CudaSampleRows a) {
  SampleRow& row = a.rows[blockIdx.x];
  Draw draw{nullptr, nullptr, (a.vocab + 15) / 16};
  draw.before = static_cast<double*>(a.workspace) + blockIdx.x * draw.blocks;
  draw.weights = reinterpret_cast<float*>(static_cast<double*>(a.workspace) + a.count * draw.blocks) +
                 blockIdx.x * draw.blocks * 16;
  const bool greedy = row.temperature == 0;
  const float temperature = greedy ? 1.0f : row.temperature;
  const float largest = row_maximum(row.logits, a.vocab);
  const float maximum = largest / temperature;
  float* const weights = draw.weights;
  for (std::int64_t i = a.vocab + threadIdx.x; i < draw.blocks * 16; i += kRowThreads) weights[i] = 0;
  const RowSums sums = sum_exponentials(row.logits, a.vocab, temperature, maximum, false,
                                        [weights](std::int64_t i, float e) { weights[i] = e; });  // and a barrier
  const double total = running_sums(draw);
  if (!(total == total)) {
    if (threadIdx.x == 0) {
      row.id = -1;
      row.logprob = __uint_as_float(0x7fc00000u);
    }
    return;
  }
  const double mark = row.uniform * total;
  const std::int64_t chosen = greedy ? first_index_of(maximum, row.logits, a.vocab) : block_of(draw, mark);
  if (threadIdx.x != 0) return;
  const std::int32_t id = greedy ? static_cast<std::int32_t>(chosen) : id_of(draw, chosen, mark);
  row.id = id;
  row.logprob = (row.logits[id] / temperature - maximum) - log_of(sums.sum);
}

}  // namespace
}  // namespace troupe::kernels::cuda

TROUPE_EXPORT const char* troupe_cuda_sample_rows(const troupe::kernels::CudaSampleRows* args, void* stream) {
  using namespace troupe::kernels;
  return cuda::launch(cuda::sample_kernel, {args->count}, {cuda::kRowThreads, 1, 1}, 0, stream, *args);
}
