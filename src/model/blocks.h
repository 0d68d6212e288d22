/// @file
/// The arithmetic of each part of a layer: one function per kind, chosen by the spec. Private to this folder.
#pragma once

#include <ATen/core/Tensor.h>

#include <array>
#include <functional>
#include <memory>
#include <vector>

#include "model/model.h"
#include "tensor/linear.h"
#include "tensor/ops.h"

namespace troupe::model {

/// Which parameters a layer's parts use (indices into the parameter table; -1: none), and the packed copies of its
/// matrices.
struct LayerSlots {
  int attention_norm = -1, ffn_norm = -1, q_norm = -1, k_norm = -1;
  std::array<int, 3> qkv = {-1, -1, -1};
  std::array<int, 2> gate_up = {-1, -1};
  int attention_out = -1, down = -1;
  std::shared_ptr<tensor::PackedWeights> packed_qkv, packed_out, packed_gate_up, packed_down;
};

/// What a layer sees of the model and of the batch.
struct LayerContext {
  const LayerSpec& spec;
  const LayerSlots& slots;
  const std::vector<Parameter>& parameters;
  const tensor::RopeRows& rope;
  /// From fused q|k|v rows to attention rows: over the batch when training, over the cache when generating.
  const std::function<at::Tensor(const at::Tensor& qkv, const tensor::HeadLayout& layout, float scale)>& attend;
};

/// One decoder layer. Shapes: h [T, D], result [T, D]. Without recording, `h` itself is changed and returned.
[[nodiscard]] at::Tensor decoder_layer(const LayerContext& layer, at::Tensor h);

}  // namespace troupe::model
