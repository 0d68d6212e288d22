/// @file
/// Matrix product with weights that were packed once.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>

namespace troupe::kernels {

/// Weights W [N, K] in the order in which `matmul` reads them: panels of 16 rows of W, [N/16][K][16], the last one
/// filled up with zeros. A copy: the source may change or go away afterwards; pack again to see its new values.
/// Movable, not copyable. Reading from several threads is safe, packing is not.
class PackedMatrix {
 public:
  PackedMatrix() = default;

  /// Packs row-major W [n, k] with `ldw` floats from row to row (0: k). Memory is kept when the shape stays.
  /// Cost: one read and one write of W; on several threads when it is large.
  void pack(const float* w, std::int64_t n, std::int64_t k, std::int64_t ldw = 0);

  /// Packs several matrices of the same K below each other, as if they were one W (fused q|k|v or gate|up).
  struct Part {
    const float* w;  ///< [n, k], contiguous.
    std::int64_t n;
  };
  void pack(const Part* parts, std::int64_t count, std::int64_t k);

  [[nodiscard]] std::int64_t rows() const { return n_; }  ///< N, the outputs.
  [[nodiscard]] std::int64_t cols() const { return k_; }  ///< K, the inputs.
  [[nodiscard]] bool empty() const { return panels_ == nullptr; }
  [[nodiscard]] std::size_t bytes() const;
  [[nodiscard]] const float* data() const { return panels_.get(); }

 private:
  struct Free {
    void operator()(float* p) const;
  };
  void resize(std::int64_t n, std::int64_t k);

  std::unique_ptr<float[], Free> panels_;
  std::size_t capacity_ = 0;
  std::int64_t n_ = 0;
  std::int64_t k_ = 0;
};

/// y[M, N] = x[M, K] W^T.
///
/// Shapes: x has `ldx` floats from row to row (0: K), y has `ldy` (0: N); both may be columns of wider rows. x and y
///   must not overlap. m = 0 is legal.
/// Determinism: each y[i, j] is four chains of fused multiply-adds over the fixed quarters [qK/4, (q+1)K/4) of K in
///   ascending order, summed (0 + 1) + (2 + 3). Rows, tiles and threads never change a bit.
/// Cost: 2 M N K operations; reads W from memory once for a few hundred rows of x. Below M = 8 or so that reading is
/// the
///   limit, so two threads help as far as memory does. Rows of x are packed once per thread.
void matmul(const float* x, std::int64_t m, const PackedMatrix& w, float* y, std::int64_t ldy = 0,
            std::int64_t ldx = 0);

}  // namespace troupe::kernels
