/// @file
/// How a model is trained, beside the optimizer. No LibTorch.
#pragma once

namespace troupe::train {

/// Losses that belong to the model's parts. All off by default: a released model is trained further without them.
struct ModelLossOptions {
  double load_balance = 0;      ///< Times the load-balancing loss over the router's softmax (Qwen3-MoE, GPT-OSS: 0.001).
  double sequence_balance = 0;  ///< Times the balance loss within each sequence (DeepSeek-V3: 0.0001).
  double further = 0;           ///< Times the loss of the blocks that predict the token after the next (DeepSeek-V3: 0.3, then 0.1).
  double correction_speed = 0;  ///< A router's correction moves by this much after each step (DeepSeek-V3: 0.001).

  [[nodiscard]] bool any() const { return load_balance > 0 || sequence_balance > 0 || further > 0 || correction_speed > 0; }
};

} // namespace troupe::train
