#include "plan/describe.h"

#include <algorithm>
#include <cmath>
#include <cstdio>

namespace troupe::plan {

namespace {

using model::AttentionKind;

std::string number(std::int64_t n) { return std::to_string(n); }

std::string number(double value) {
  char text[32];
  std::snprintf(text, sizeof text, "%.10g", value);
  return text;
}

std::string rotation(const model::AttentionSpec& a, const model::ModelSpec& spec) {
  if (a.rope < 0) return ", no rotation";
  return spec.ropes.size() > 1 ? ", rope " + std::to_string(a.rope) : "";
}

std::string attention_text(const model::AttentionSpec& a, const model::ModelSpec& spec) {
  std::string text;
  switch (a.kind) {
    case AttentionKind::kGroupedQuery:
      text = "grouped-query " + number(a.heads) + " x " + number(a.head_dim) + ", " + number(a.kv_heads) + " key heads";
      break;
    case AttentionKind::kLatent:
      text = "latent " + number(a.heads) + " x (" + number(a.latent.nope_dim) + " + " + number(a.latent.rope_dim) + "), rank " +
             number(a.latent.kv_rank) + ", values " + number(a.latent.value_dim);
      break;
    case AttentionKind::kDeltaNet:
      return "delta-net " + number(a.delta.value_heads) + " x " + number(a.delta.value_dim) + ", " + number(a.delta.key_heads) +
             " key heads of " + number(a.delta.key_dim) + ", " + number(a.delta.taps) + " taps";
    case AttentionKind::kCompressed:
      text = "compressed " + number(a.heads) + " x " + number(a.head_dim);
      if (a.compress.ratio > 0) text += ", an entry for " + number(a.compress.ratio) + " tokens";
      if (a.compress.index_top > 0) text += ", the best " + number(a.compress.index_top);
      break;
  }
  if (a.window > 0) text += ", window " + number(a.window);
  if (a.qk_norm) text += ", q/k norm";
  if (a.sinks) text += ", sinks";
  if (a.biases) text += ", biases";
  if (a.gate != model::AttentionGate::kNone) text += ", gated";
  return text + rotation(a, spec);
}

std::string score_text(const model::ExpertsSpec& e) {
  if (e.hash) return "by the token's id";
  switch (e.score) {
    case kernels::RouterScore::kSoftmax:
      return "softmax";
    case kernels::RouterScore::kSoftmaxOfChosen:
      return "softmax of the chosen";
    case kernels::RouterScore::kSigmoid:
      return "sigmoid";
    default:
      return "sqrt-softplus";
  }
}

std::string feed_forward_text(const model::FfnSpec& ffn) {
  if (ffn.kind == model::FfnKind::kSwiGlu) return "swiglu " + number(ffn.width);
  const model::ExpertsSpec& e = ffn.experts;
  std::string text = "experts " + number(e.chosen) + " of " + number(e.count) + " x " + number(e.width) + " (" + score_text(e) + ")";
  if (e.groups > 1) text += ", " + number(e.groups_kept) + " of " + number(e.groups) + " groups";
  if (e.shared_width > 0) text += ", shared " + number(e.shared_width);
  if (e.latent_width > 0) text += ", at width " + number(e.latent_width);
  return text;
}

std::string residual_text(const model::LayerSpec& layer, const model::ModelSpec& spec) {
  switch (layer.residual) {
    case model::ResidualKind::kHyper:
      return "hyper-connections, " + number(spec.hyper.streams) + " streams";
    case model::ResidualKind::kGated:
      return "gated";
    case model::ResidualKind::kPreNorm:
      break;
  }
  return "pre-norm";
}

}  // namespace

std::vector<LayerKind> layer_kinds(const model::ModelSpec& spec) {
  std::vector<LayerKind> kinds;
  std::vector<model::LayerSpec> all = spec.layers;
  all.insert(all.end(), spec.mtp.begin(), spec.mtp.end());
  for (std::size_t i = 0; i < all.size(); ++i) {
    LayerKind kind{{}, attention_text(all[i].attention, spec), feed_forward_text(all[i].ffn), residual_text(all[i], spec)};
    auto found = std::find_if(kinds.begin(), kinds.end(), [&](const LayerKind& k) {
      return k.attention == kind.attention && k.feed_forward == kind.feed_forward && k.residual == kind.residual;
    });
    if (found == kinds.end()) found = kinds.insert(kinds.end(), std::move(kind));
    found->layers.push_back(static_cast<std::int64_t>(i));
  }
  return kinds;
}

std::string rope_text(const model::RopeSpec& rope) {
  std::string text = "default";
  if (rope.kind == model::RopeKind::kLinear) text = "linear x" + number(rope.factor);
  if (rope.kind == model::RopeKind::kLlama3) text = "llama3 x" + number(rope.factor) + " over " + number(rope.original_context);
  if (rope.kind == model::RopeKind::kYarn) text = "yarn x" + number(rope.factor) + " over " + number(rope.original_context);
  return text + ", base " + number(rope.theta) + ", " + number(rope.width) + " channels";
}

std::string ranges_text(const std::vector<std::int64_t>& numbers) {
  std::string text;
  for (std::size_t i = 0; i < numbers.size();) {
    std::size_t last = i;
    while (last + 1 < numbers.size() && numbers[last + 1] == numbers[last] + 1) ++last;
    if (!text.empty()) text += ", ";
    text += number(numbers[i]);
    if (last > i) text += (last > i + 1 ? "-" : ", ") + number(numbers[last]);
    i = last + 1;
  }
  return text;
}

}  // namespace troupe::plan
