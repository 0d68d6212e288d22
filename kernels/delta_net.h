/// @file
/// Gated DeltaNet: a short causal convolution, then a linear recurrence with a state per value head.
/// Source: research/models.md 5.3; Yang, Kautz and Hatamizadeh, 2024, arXiv:2412.06464, eq. 10 and section 3.3.
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
/// Determinism: nothing fused, taps in ascending order. Errors: aborts beyond 32 taps.
void causal_conv(const CausalConv& args);

/// Arguments of `causal_conv_backward`.
struct CausalConvGrad {
  CausalConv forward;          ///< Its inputs; y is not read.
  const float* dy = nullptr;   ///< [rows, channels]
  float* dx = nullptr;         ///< [rows, channels], written; must not overlap x and dy.
  float* dhistory = nullptr;   ///< [taps - 1, channels], written; null to skip.
  float* dweight = nullptr;    ///< [channels, taps], added to.
};

/// Determinism: threads own channels. A row's dx is one chain, from its own row on; a weight's gradient is a chain per 64
///   rows from the first on, and what those give is added to `dweight` in their order. Bits do not depend on threads and
///   instruction sets; dx not on the rows further than `taps` behind.
/// Cost: 4 taps + 40 operations a number; reads x and dy once.
void causal_conv_backward(const CausalConvGrad& args);

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
/// Determinism: one row after the other, sums over key_dim in one chain, nothing fused: a row's bits depend on the state
///   before it, not on threads, cuts and instruction sets.
/// Cost: 7 key_dim value_dim operations per (row, value head).
void delta_rule(const DeltaRule& args);

inline constexpr std::int64_t kDeltaChunk = 64;  ///< Rows that the chunked form takes at a time.

/// The same functions of independent sequences in the chunked form: matrix products instead of a pass over the state
/// per row. `out` null: only the states. Equal to delta_rule up to rounding.
/// Determinism: chunks are counted from a sequence's first row; sums over channels, rows of the chunk and solved rows are
///   one chain each, in ascending order. Bits depend on the sequence, its cuts included, not on threads and instruction
///   sets. Cost: (6 key_dim value_dim + 4 C (key_dim + value_dim)) per (row, value head), C = kDeltaChunk; linear in rows.
void delta_rule_chunked(const DeltaRule* sequences, std::int64_t count);

/// Arguments of `delta_rule_backward`: one sequence, as in DeltaRule.
struct DeltaRuleGrad {
  const float* qkv = nullptr;
  const float* decay = nullptr;
  const float* beta = nullptr;
  const float* dout = nullptr;          ///< [rows, value_heads, value_dim]
  const float* state = nullptr;         ///< Before the first row; null: zeros.
  const float* dstate_after = nullptr;  ///< Gradient of the state after the last row; null: zeros.
  float* dqkv = nullptr;                ///< These three are written.
  float* ddecay = nullptr;
  float* dbeta = nullptr;
  float* dstate = nullptr;  ///< Gradient of the state before the first row; written; null to skip.
  std::int64_t rows = 0;
  std::int64_t key_heads = 0, value_heads = 0, key_dim = 0, value_dim = 0;
};

/// The gradient of delta_rule (and of delta_rule_chunked), in the chunked form, from the forward's inputs alone.
/// Determinism: as delta_rule_chunked; heads that share a key head are added in their order. Work is split over
///   (sequence, key head). Memory: for every chunk and value head of one key head, a thread keeps the state before the
///   chunk and what its rows add to it. Cost: about 3 times the chunked forward's; linear in rows.
void delta_rule_backward(const DeltaRuleGrad* sequences, std::int64_t count);

}  // namespace troupe::kernels
