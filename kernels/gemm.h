/// @file
/// Matrix products of a linear layer, forward and backward, with weights that were packed once.
///
/// Precision: with kBfloat16 both operands are rounded to bfloat16 (to nearest, ties to even; what lies below the
///   smallest normal float32 counts as 0) and products are summed in float32.
/// Chains: K is summed in fixed pieces, so that a shard of K gives the bits of its piece of the whole (`chains`).
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>

namespace troupe::kernels {

/// What the operands of a product are rounded to.
enum class Precision : std::uint8_t { kFloat32, kBfloat16 };

/// Weights W [N, K] in the order in which `matmul` reads them: panels of 16 rows of W, the last one filled up with
/// zeros. float32: [N/16][K][16]; bfloat16: pairs along K, [N/16][K/32][16][16][2], the last 32 filled up too.
/// A copy: the source may change or go away afterwards; pack again to see its new values.
/// Movable, not copyable. Reading from several threads is safe, packing is not.
class PackedMatrix {
 public:
  PackedMatrix() = default;

  /// Packs row-major W [n, k] with `ldw` floats from row to row (0: k). Memory is kept when it suffices.
  /// Cost: one read and one write of W; on several threads when it is large.
  void pack(const float* w, std::int64_t n, std::int64_t k, std::int64_t ldw = 0,
            Precision precision = Precision::kFloat32);

  /// Packs several matrices of the same K below each other, as if they were one W (fused q|k|v or gate|up).
  struct Part {
    const float* w;  ///< [n, k], contiguous.
    std::int64_t n;
  };
  void pack(const Part* parts, std::int64_t count, std::int64_t k, Precision precision = Precision::kFloat32);

  /// Packs the transpose of that W: rows() = k, cols() = sum n. With it, `matmul` turns dY into dX = dY W.
  void pack_transposed(const Part* parts, std::int64_t count, std::int64_t k,
                       Precision precision = Precision::kFloat32);

  [[nodiscard]] std::int64_t rows() const { return n_; }  ///< N, the outputs.
  [[nodiscard]] std::int64_t cols() const { return k_; }  ///< K, the inputs.
  [[nodiscard]] Precision precision() const { return precision_; }
  [[nodiscard]] bool empty() const { return panels_ == nullptr; }
  [[nodiscard]] std::size_t bytes() const;
  /// The panels; of bfloat16 ones, two numbers in the bits of each float.
  [[nodiscard]] const float* data() const { return panels_.get(); }

 private:
  struct Free {
    void operator()(float* p) const;
  };
  void resize(std::int64_t n, std::int64_t k, Precision precision);

  std::unique_ptr<float[], Free> panels_;
  std::size_t capacity_ = 0;
  std::int64_t n_ = 0;
  std::int64_t k_ = 0;
  Precision precision_ = Precision::kFloat32;
};

/// Where chain `q` of `chains` (1, 2 or 4) begins in K; q = chains: K. float32: K q / chains. bfloat16: the same in
/// whole blocks of 32. A tensor-parallel shard that begins and ends at such a bound of 4 has the bits of the whole.
[[nodiscard]] std::int64_t chain_begin(std::int64_t k, Precision precision, int q, int chains = 4);

/// y[M, N] = x[M, K] W^T, in the precision W is packed in.
///
/// Shapes: x has `ldx` floats from row to row (0: K), y has `ldy` (0: N); both may be columns of wider rows. x and y
///   must not overlap. m = 0 is legal.
/// Determinism: each y[i, j] is four chains over the fixed quarters of K (chain_begin), summed (0 + 1) + (2 + 3). A
/// chain
///   of float32 is one of fused multiply-adds in ascending order. A chain of bfloat16 adds blocks of 32 in ascending
///   order to 0; a block is (sum over even k) + (sum over odd k), each fused multiply-adds in ascending order, with
///   results below the smallest normal number flushed to 0: what AMX computes, and what the others imitate. Rows,
///   tiles, threads and instruction sets never change a bit. chains = 2: (0 + 1) over the halves of K; chains = 1: one
///   chain. So quarters of K multiplied apart with chains = 1, or halves with chains = 2, and summed by the same tree
///   have the bits of the whole (tensor parallel 4 and 2).
/// Cost: 2 M N K operations; reads W from memory once for a few hundred rows of x. Below M = 8 or so that reading is
/// the
///   limit, so two threads help as far as memory does. Rows of x are packed once per thread.
void matmul(const float* x, std::int64_t m, const PackedMatrix& w, float* y, std::int64_t ldy = 0, std::int64_t ldx = 0,
            int chains = 4);

/// dW[N, K] (+)= dY[M, N]^T X[M, K]: the gradient of a linear layer's weights.
struct WeightGradient {
  const float* dy;  ///< [m, n], `ldy` floats from row to row.
  const float* x;   ///< [m, k], `ldx` floats from row to row.
  float* dw;        ///< [n, k], contiguous.
  std::int64_t m, n, k;
  std::int64_t ldy = 0;  ///< 0: n.
  std::int64_t ldx = 0;  ///< 0: k.
  bool add = false;      ///< Adds to dw. Else m = 0 leaves zeros.
  Precision precision = Precision::kFloat32;
};

/// Rows that are summed in one chain, before the sum is added to dW.
[[nodiscard]] constexpr std::int64_t gradient_rows(Precision precision) {
  return precision == Precision::kFloat32 ? 256 : 512;
}

/// Determinism: chains (as in matmul) over blocks of gradient_rows rows, added in ascending order. Threads and
/// instruction sets never change a bit.
/// Cost: 2 M N K operations; X is packed block by block.
void weight_gradient(const WeightGradient& args);

}  // namespace troupe::kernels
