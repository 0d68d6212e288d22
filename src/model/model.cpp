#include "model/model.h"

#include <ATen/ops/empty.h>
#include <ATen/ops/zeros.h>

#include <map>

#include "base/check.h"
#include "base/hash.h"
#include "base/rng.h"
#include "model/blocks.h"
#include "model/parameters.h"
#include "model/rope.h"
#include "tensor/attention.h"
#include "tensor/autograd.h"
#include "tensor/head.h"

namespace troupe::model {

struct Model::State {
  ModelSpec spec;
  std::vector<Parameter> parameters;
  std::map<std::string, int, std::less<>> index;
  std::vector<LayerSlots> layers;
  std::vector<RopeTable> ropes;
  int embedding = -1, final_norm = -1, head = -1;
  std::shared_ptr<tensor::PackedWeights> packed_head = std::make_shared<tensor::PackedWeights>();

  [[nodiscard]] const at::Tensor& value(int slot) const { return parameters[static_cast<std::size_t>(slot)].value; }
  [[nodiscard]] int slot(const std::string& name) const {
    const auto it = index.find(name);
    return it == index.end() ? -1 : it->second;
  }
  void connect();
  [[nodiscard]] std::vector<tensor::RopeRows> rope_rows(std::span<const std::int32_t> positions);
  /// The one forward pass: `attend(layer)` says what a layer's attention reads.
  template <class Attend>
  at::Tensor run(std::span<const std::int32_t> ids, std::span<const std::int32_t> positions, Attend&& attend);
};

/// Finds every part's parameters by name.
void Model::State::connect() {
  for (std::size_t i = 0; i < parameters.size(); ++i) index.emplace(parameters[i].name, static_cast<int>(i));
  for (std::size_t i = 0; i < spec.layers.size(); ++i) {
    const std::string prefix = "model.layers." + std::to_string(i) + ".";
    const auto at = [&](const char* name) { return slot(prefix + name + ".weight"); };
    LayerSlots slots;
    slots.attention_norm = at("input_layernorm");
    slots.ffn_norm = at("post_attention_layernorm");
    slots.q_norm = at("self_attn.q_norm");
    slots.k_norm = at("self_attn.k_norm");
    slots.qkv = {at("self_attn.q_proj"), at("self_attn.k_proj"), at("self_attn.v_proj")};
    slots.attention_out = at("self_attn.o_proj");
    slots.gate_up = {at("mlp.gate_proj"), at("mlp.up_proj")};
    slots.down = at("mlp.down_proj");
    for (auto* packed : {&slots.packed_qkv, &slots.packed_out, &slots.packed_gate_up, &slots.packed_down})
      *packed = std::make_shared<tensor::PackedWeights>();
    layers.push_back(std::move(slots));
  }
  for (const RopeSpec& rope : spec.ropes) ropes.emplace_back(rope);
  embedding = slot("model.embed_tokens.weight");
  final_norm = slot("model.norm.weight");
  head = spec.tied ? embedding : slot("lm_head.weight");
}

std::vector<tensor::RopeRows> Model::State::rope_rows(std::span<const std::int32_t> positions) {
  std::vector<tensor::RopeRows> rows;
  for (RopeTable& table : ropes) {
    tensor::RopeRows one;
    for (at::Tensor* part : {&one.cos, &one.sin})
      *part = at::empty({static_cast<std::int64_t>(positions.size()), table.pairs()},
                        at::TensorOptions().dtype(at::kFloat));
    table.gather(positions, one.cos.data_ptr<float>(), one.sin.data_ptr<float>());
    rows.push_back(std::move(one));
  }
  return rows;
}

template <class Attend>
at::Tensor Model::State::run(std::span<const std::int32_t> ids, std::span<const std::int32_t> positions,
                             Attend&& attend) {
  const std::vector<tensor::RopeRows> rope = rope_rows(positions);
  at::Tensor h = tensor::embedding(value(embedding), ids);
  for (std::size_t i = 0; i < layers.size(); ++i) {
    const LayerSpec& layer = spec.layers[i];
    const std::function<at::Tensor(const at::Tensor&, const tensor::HeadLayout&, float)> keys =
        attend(static_cast<int>(i));
    h = decoder_layer({layer, layers[i], parameters, rope[static_cast<std::size_t>(layer.attention.rope)], keys},
                      std::move(h));
  }
  return tensor::rmsnorm(h, value(final_norm), spec.final_norm.eps, spec.final_norm.weight_offset);
}

Model::Model(std::unique_ptr<State> state) : state_(std::move(state)) {}
Model::Model(Model&&) noexcept = default;
Model& Model::operator=(Model&&) noexcept = default;
Model::~Model() = default;

Model Model::zeros(const ModelSpec& spec) {
  auto state = std::make_unique<State>();
  state->spec = spec;
  for (const ParameterSpec& row : parameter_table(spec))
    state->parameters.push_back({row.name, at::zeros(row.shape, at::TensorOptions().dtype(at::kFloat))});
  state->connect();
  return Model(std::move(state));
}

Model Model::create(const ModelSpec& spec, std::uint64_t seed) {
  Model model = zeros(spec);
  const std::vector<ParameterSpec> table = parameter_table(spec);
  for (std::size_t i = 0; i < table.size(); ++i) {
    const std::span<float> values = tensor::floats(model.parameters()[i].value);
    Rng rng(seed, RngStream::kInit, hash64(table[i].name));
    for (float& value : values)
      value = table[i].norm ? static_cast<float>(table[i].identity) : static_cast<float>(spec.init_std * rng.normal());
  }
  return model;
}

Model Model::clone() const {
  auto copy = std::make_unique<State>();
  copy->spec = state_->spec;
  for (const Parameter& parameter : state_->parameters)
    copy->parameters.push_back({parameter.name, parameter.value.detach().clone()});
  copy->connect();
  return Model(std::move(copy));
}

const ModelSpec& Model::spec() const { return state_->spec; }
std::vector<Parameter>& Model::parameters() { return state_->parameters; }
const std::vector<Parameter>& Model::parameters() const { return state_->parameters; }

const at::Tensor* Model::find(std::string_view name) const {
  const auto it = state_->index.find(name);
  return it == state_->index.end() ? nullptr : &state_->value(it->second);
}

void Model::set_trainable(bool trainable) {
  for (Parameter& parameter : state_->parameters) parameter.value.set_requires_grad(trainable);
}

void Model::clear_gradients() {
  for (Parameter& parameter : state_->parameters) parameter.value.mutable_grad() = at::Tensor();
}

void Model::weights_changed() {
  for (LayerSlots& layer : state_->layers)
    for (const auto& packed : {layer.packed_qkv, layer.packed_out, layer.packed_gate_up, layer.packed_down})
      packed->invalidate();
  state_->packed_head->invalidate();
}

at::Tensor Model::forward(const Batch& batch) {
  check_batch(batch);
  std::vector<tensor::RowSegment> segments;
  segments.reserve(batch.segments.size());
  for (const Segment& s : batch.segments) segments.push_back({s.begin, s.end, s.prefix_begin, s.prefix_end});
  return state_->run(batch.ids, batch.positions, [&](int) {
    return [&](const at::Tensor& qkv, const tensor::HeadLayout& layout, float scale) {
      return tensor::attention(qkv, layout, scale, segments);
    };
  });
}

at::Tensor Model::forward(const CachedBatch& batch, KvCache& cache) {
  check_batch(batch, cache.page_tokens(), cache.pages());
  const tensor::NoGrad no_grad;
  std::vector<kernels::KvPage> pages;
  std::vector<tensor::PagedSegment> segments;
  return state_->run(batch.ids, batch.positions, [&](int layer) {
    pages.clear();
    segments.clear();
    for (const KvSegment& s : batch.segments)
      for (const std::int32_t page : s.pages) pages.push_back(cache.page(layer, page));
    const kernels::KvPage* first = pages.data();
    for (const KvSegment& s : batch.segments) {
      segments.push_back({s.begin, s.end, s.cached, {first, s.pages.size()}});
      first += s.pages.size();
    }
    return [&](const at::Tensor& qkv, const tensor::HeadLayout& layout, float scale) {
      return tensor::paged_attention(qkv, layout, scale, segments);
    };
  });
}

at::Tensor Model::logits(const at::Tensor& hidden_rows) {
  const tensor::NoGrad no_grad;
  const at::Tensor weight = state_->value(state_->head);
  return tensor::linear(hidden_rows, {&weight, 1}, state_->packed_head);
}

TokenScores Model::score(const at::Tensor& hidden_rows, std::span<const std::int32_t> targets, double temperature) {
  const tensor::Scores scores = tensor::score(hidden_rows, state_->value(state_->head), state_->packed_head, targets,
                                              static_cast<float>(temperature), state_->spec.used_vocab());
  return {scores.logprob, scores.entropy};
}

}  // namespace troupe::model
