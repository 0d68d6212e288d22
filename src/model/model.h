/// @file
/// The model: a plain struct of named tensors and one forward pass that trains and generates.
///
/// Determinism: every row's bits depend on its own tokens only: not on what else is in the batch, on chunking, on
/// paging, on sharing a prefix or on the number of threads. decode(prefix) == forward(whole), bit for bit.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "kernels/gemm.h"
#include "model/batch.h"
#include "model/kv_cache.h"
#include "model/spec.h"
#include "tensor/options.h"

namespace troupe::model {

/// A parameter under its Hugging Face name. `value` is float32 and contiguous; its gradient is `value.grad()`.
struct Parameter {
  std::string name;
  at::Tensor value;
  bool trains = true;  ///< false: no gradient changes it (a router's correction, an indexer, a table).
};

/// What each scored row says of its target. Shapes: [n] each, float32; both differentiable.
struct TokenScores {
  at::Tensor logprob;  ///< log p(target), natural logarithm, of softmax(logits / temperature).
  at::Tensor entropy;  ///< Of the same distribution, in nats.
};

/// What a forward pass leaves for losses, balancing and tests. Shapes: T rows of the batch.
struct Trace {
  struct Routed {
    int place = 0;       ///< The layer; behind the last one, a block for further tokens.
    at::Tensor logits;   ///< [T, E], differentiable.
    at::Tensor weights;  ///< [T, chosen]
    std::vector<std::int32_t> choices;  ///< [T, chosen]
  };
  /// Which compressed entries each row saw, where an indexer chooses.
  struct Listed {
    int place = 0;
    std::int64_t most = 0;            ///< Length of a list.
    std::vector<std::int32_t> lists;  ///< [T, most], ascending; -1 ends a list.
    at::Tensor scores;                ///< [T, longest list there can be]; -infinity: not visible.
  };
  std::vector<Listed> replay;       ///< Given: lists to use again instead of choosing.
  std::vector<Listed> listed;       ///< Found.
  bool keep_hidden = false;         ///< Asks for `hidden`.
  std::vector<at::Tensor> hidden;   ///< The embedding's output, then every layer's: [T, streams * D].
  std::vector<Routed> routed;       ///< Every mixture of experts, in order.
  at::Tensor last;                  ///< Behind the last layer, before the final norm: [T, streams * D].
  at::Tensor normed;                ///< Behind the final norm: [T, D].
};

/// A decoder. Movable; copies are explicit (clone). Not thread-safe: one thread at a time.
class Model {
 public:
  /// Fresh weights: matrices normal(0, spec.init_std), norms at identity, the rest as parameters.h says. A pure function of (spec, seed).
  [[nodiscard]] static Model create(const ModelSpec& spec, std::uint64_t seed);
  /// Zero weights, to be filled.
  [[nodiscard]] static Model zeros(const ModelSpec& spec);
  Model(Model&&) noexcept;
  Model& operator=(Model&&) noexcept;
  ~Model();
  /// A copy with memory of its own that records no gradients (a frozen reference policy).
  [[nodiscard]] Model clone() const;

  [[nodiscard]] const ModelSpec& spec() const;
  /// Ordered; the same names as the checkpoint, without the head when it is tied, and with one name for the experts of a
  /// layer.
  [[nodiscard]] std::vector<Parameter>& parameters();
  [[nodiscard]] const std::vector<Parameter>& parameters() const;
  /// The value of a parameter, or nullptr.
  [[nodiscard]] const at::Tensor* find(std::string_view name) const;
  /// What a mixture of experts at a place (Trace::Routed) adds to its scores to choose by; undefined where it has none.
  /// Shape [E]. After writing into it call weights_changed.
  [[nodiscard]] at::Tensor router_correction(int place) const;
  /// Whether parameters ask for gradients (those that only a rule changes never do). A fresh or loaded model does not.
  void set_trainable(bool trainable);
  /// Drops all gradients.
  void clear_gradients();

  /// What the operands of every product with a matrix (linear layers, experts, head) are rounded to, in training and in
  /// generation alike. Parameters, residual stream, norms, attention and softmax stay float32. A fresh or loaded model
  /// has kFloat32; a clone has its original's.
  void set_precision(kernels::Precision precision);
  [[nodiscard]] kernels::Precision precision() const;
  /// Who computes. What is said above of bits holds for our kernels only, which are the default. A clone has its original's.
  void set_backends(const tensor::Backends& backends);

  /// Must follow every change of a parameter's numbers: kernels keep packed copies, which are renewed at the next use.
  void weights_changed();

  /// Hidden rows after the final norm. Shape [T, D]. Differentiable when the model is trainable and grad mode is on.
  /// Precondition: the batch is well-formed (batch.h) and its ids lie in [0, vocab_size).
  /// `trace` (may be null) is filled on the way.
  [[nodiscard]] at::Tensor forward(const Batch& batch, Trace* trace = nullptr);
  /// The same over a paged cache, which takes the keys and values of the new tokens. Shape [T, D]. Never
  /// differentiable.
  [[nodiscard]] at::Tensor forward(const CachedBatch& batch, KvCache& cache, Trace* trace = nullptr);
  /// Hidden rows, for `logits` and `score`, that predict the token after the next one: block `block` of spec().mtp, on what
  /// the forward pass over the same batch (or the block before) left in `trace`, which it renews. Shape [T, D]. A
  /// document's last row knows no next token: its result means nothing. Differentiable.
  [[nodiscard]] at::Tensor predict_further(const Batch& batch, std::size_t block, Trace& trace);
  /// The same over a cache that has room for the blocks (KvCache's `further`): `trace` holds the rows of `last` and `normed` that belong to the
  /// batch's, next[i] is the token after row i. Never differentiable. Precondition: can_guess(spec(), block).
  [[nodiscard]] at::Tensor predict_further(const CachedBatch& batch, std::span<const std::int32_t> next, std::size_t block, Trace& trace,
                                           KvCache& cache);
  /// Shape [n, V], float32, for rows of `forward`. Never differentiable. Entries from spec().used_vocab() on are
  /// padding.
  [[nodiscard]] at::Tensor logits(const at::Tensor& hidden_rows);
  /// Scores targets[i] by hidden row i. Differentiable in the hidden rows and the head.
  /// Cost: logits exist for one block of rows at a time, in the forward and again in the backward pass.
  [[nodiscard]] TokenScores score(const at::Tensor& hidden_rows, std::span<const std::int32_t> targets,
                                  double temperature = 1.0);

 private:
  struct State;
  explicit Model(std::unique_ptr<State> state);
  std::unique_ptr<State> state_;
};

}  // namespace troupe::model
