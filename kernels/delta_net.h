/// @file
/// Gated DeltaNet: a short causal convolution, then a linear recurrence with a state per value head.
/// Source: research/models.md 5.3; Yang, Kautz and Hatamizadeh, 2024, arXiv:2412.06464, eq. 10.
#pragma once

#include <cstdint>

namespace troupe::kernels {

/// y_t = silu(sum over j < taps of weight[c][j] x_{t - taps + 1 + j}[c]). Rows before the first are `history`.
struct CausalConv {
  const float* x = nullptr;        ///< [rows, channels]
  const float* history = nullptr;  ///< [taps - 1, channels], oldest first; null: zeros.
  const float* weight = nullptr;   ///< [channels, taps]
  float* y = nullptr;              ///< [rows, channels], must not overlap x.
  std::int64_t rows = 0, channels = 0, taps = 0;
};
void causal_conv(const CausalConv& args);

/// Arguments of `delta_rule`: one sequence. Value head j reads key head j * key_heads / value_heads.
struct DeltaRule {
  const float* qkv = nullptr;    ///< [rows, q heads | k heads | v heads], after the convolution.
  const float* decay = nullptr;  ///< [rows, value_heads], log of the factor, <= 0.
  const float* beta = nullptr;   ///< [rows, value_heads]
  float* out = nullptr;          ///< [rows, value_heads, value_dim]
  float* state = nullptr;        ///< [value_heads, key_dim, value_dim], before the first row; changed.
  std::int64_t rows = 0;
  std::int64_t key_heads = 0, value_heads = 0, key_dim = 0, value_dim = 0;
};

/// Per row: q and k are normalised (eps 1e-6 under the root), q scaled by key_dim^-1/2; then
/// S = e^decay S; u = beta (v - S^T k); S = S + k u^T; out = S^T q.
/// Determinism: one row after the other, sums over key_dim in one chain: a row's bits depend on the state before it.
void delta_rule(const DeltaRule& args);

}  // namespace troupe::kernels
