/// @file
/// What the parts of a layer see, and the parts: one function per kind, chosen by the spec. Private to this folder.
#pragma once

#include <ATen/TensorOperators.h>
#include <ATen/core/Tensor.h>

#include <array>
#include <initializer_list>
#include <memory>
#include <vector>

#include "model/model.h"
#include "model/names.h"
#include "model/rope.h"
#include "tensor/aten.h"
#include "tensor/experts.h"
#include "tensor/linear.h"
#include "tensor/ops.h"
#include "tensor/sequences.h"

namespace troupe::model {

/// The parameters of one place (indices into the parameter table, by role; -1: none) and packed copies of its matrices:
/// of those that are multiplied together, under the first one's role.
struct Slots {
  static constexpr std::size_t kRoles = static_cast<std::size_t>(Role::kCount);
  Slots();
  [[nodiscard]] int operator[](Role role) const { return index[static_cast<std::size_t>(role)]; }
  [[nodiscard]] const std::shared_ptr<tensor::PackedWeights>& pack(Role role) const {
    return packed[static_cast<std::size_t>(role)];
  }
  [[nodiscard]] const std::shared_ptr<tensor::PackedGroup>& group(Role role) const {
    return groups[static_cast<std::size_t>(role)];
  }
  void invalidate() const;
  void set_precision(kernels::Precision precision) const;

  std::array<int, kRoles> index;
  std::array<std::shared_ptr<tensor::PackedWeights>, kRoles> packed;
  std::array<std::shared_ptr<tensor::PackedGroup>, kRoles> groups;
};

/// The rows of one forward pass and where what they see lies: in the batch when training, in the cache when generating.
struct Sight {
  std::span<const std::int32_t> ids;
  std::span<const std::int32_t> positions;
  std::vector<tensor::RowSegment> segments;  ///< Training.
  const CachedBatch* batch = nullptr;        ///< Generating.
  KvCache* cache = nullptr;                  ///< Generating.
};

/// A place's parameters and rules, and the pass it is part of.
struct Context {
  const ModelSpec& model;
  const Slots& slots;
  const std::vector<Parameter>& parameters;
  std::vector<RopeTable>& tables;             ///< One per ModelSpec::ropes.
  std::span<const tensor::RopeRows> ropes;    ///< Of the rows' positions, one per ModelSpec::ropes.
  const Sight& sight;
  int place = 0;
  Trace* trace = nullptr;  ///< May be null.
  tensor::Backends backends = {};
  kernels::Precision precision = kernels::Precision::kFloat32;  ///< Of the operands of products.

  [[nodiscard]] bool has(Role role) const { return slots[role] >= 0; }
  /// Undefined where the place has none.
  [[nodiscard]] at::Tensor value(Role role) const;
  /// x times one to three matrices, side by side.
  [[nodiscard]] at::Tensor project(const at::Tensor& x, std::initializer_list<Role> roles) const;
  [[nodiscard]] at::Tensor norm(const at::Tensor& x, Role role, const NormSpec& spec) const;
  [[nodiscard]] tensor::RopeRows rope_at(int rope, std::span<const std::int32_t> positions) const;
};

[[nodiscard]] tensor::RopeRows rope_rows(RopeTable& table, std::span<const std::int32_t> positions);

/// One decoder layer. Shapes: h [T, streams * D], result the same. Without recording, `h` may be changed and returned.
[[nodiscard]] at::Tensor decoder_layer(const Context& context, const LayerSpec& layer, at::Tensor h);

/// Several streams to one, behind the last layer. Shapes: [T, streams * D] to [T, D].
[[nodiscard]] at::Tensor merge_streams(const Context& context, const at::Tensor& h);

/// The parts. Shapes: x, result [T, D].
[[nodiscard]] at::Tensor grouped_query_attention(const Context& context, const AttentionSpec& spec, const at::Tensor& x);
[[nodiscard]] at::Tensor latent_attention(const Context& context, const AttentionSpec& spec, const at::Tensor& x);
[[nodiscard]] at::Tensor delta_net(const Context& context, const AttentionSpec& spec, const at::Tensor& x);
[[nodiscard]] at::Tensor compressed_attention(const Context& context, const AttentionSpec& spec, const at::Tensor& x);
[[nodiscard]] at::Tensor expert_ffn(const Context& context, const ExpertsSpec& spec, const at::Tensor& x);

/// Attention over rows of a batch or of a cache (kernels/listed_attention.h). When generating, the rows are put into
/// their pages first, and `entries` says only what is chosen.
[[nodiscard]] at::Tensor attend_rows(const Context& context, const at::Tensor& q, const at::Tensor& kv,
                                     const at::Tensor& sinks, const tensor::ListedLayout& layout,
                                     const tensor::Entries& entries = {});

}  // namespace troupe::model
