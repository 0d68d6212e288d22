#include "model/model.h"

#include <ATen/TensorOperators.h>

#include <ATen/ops/cat.h>
#include <ATen/ops/zeros.h>

#include <algorithm>
#include <cmath>
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
#include "tensor/parts.h"

namespace troupe::model {

struct Model::State {
  ModelSpec spec;
  std::vector<Parameter> parameters;
  std::map<std::string, int, std::less<>> index;
  Slots whole;                ///< Of the model itself.
  std::vector<Slots> places;  ///< Layers, then blocks for further tokens.
  std::vector<RopeTable> ropes;
  Role head = Role::kHead;
  kernels::Precision precision = kernels::Precision::kFloat32;
  tensor::Backends backends;

  explicit State(const ModelSpec& s);
  [[nodiscard]] const at::Tensor& value(Role role) const {
    return parameters[static_cast<std::size_t>(whole[role])].value;
  }
  [[nodiscard]] std::vector<tensor::RopeRows> rope_rows_of(std::span<const std::int32_t> positions);
  [[nodiscard]] Context context(const Slots& slots, std::span<const tensor::RopeRows> rope, const Sight& sight,
                                int place, Trace* trace) {
    return {spec, slots, parameters, ropes, rope, sight, place, trace, backends, precision};
  }
  /// The one forward pass.
  at::Tensor run(const Sight& sight, Trace* trace);
  at::Tensor further(const Sight& sight, std::span<const std::int32_t> next, std::size_t block, Trace& trace);
};

Model::State::State(const ModelSpec& s) : spec(s), places(s.layers.size() + s.mtp.size()) {
  for (const ParameterSpec& row : parameter_table(spec)) {
    const auto number = static_cast<int>(parameters.size());
    Slots& slots = row.place < 0 ? whole : places[static_cast<std::size_t>(row.place)];
    slots.index[static_cast<std::size_t>(row.role)] = number;
    index.emplace(row.name, number);
    parameters.push_back({row.name, at::zeros(row.shape, at::TensorOptions().dtype(at::kFloat)), row.trains});
  }
  for (const RopeSpec& rope : spec.ropes) ropes.emplace_back(rope);
  head = spec.tied ? Role::kEmbedding : Role::kHead;
}

std::vector<tensor::RopeRows> Model::State::rope_rows_of(std::span<const std::int32_t> positions) {
  std::vector<tensor::RopeRows> rows;
  for (RopeTable& table : ropes) rows.push_back(rope_rows(table, positions));
  return rows;
}

at::Tensor Model::State::run(const Sight& sight, Trace* trace) {
  const std::vector<tensor::RopeRows> rope = rope_rows_of(sight.positions);
  at::Tensor h = tensor::embedding(value(Role::kEmbedding), sight.ids);
  if (spec.embedding_norm) h = tensor::normalise(h, spec.width, spec.final_norm.eps);
  if (spec.hyper.streams > 1) h = h.repeat({1, spec.hyper.streams});
  const bool keeps = trace != nullptr && trace->keep_hidden;
  if (keeps) trace->hidden.push_back(h.clone());
  for (std::size_t i = 0; i < spec.layers.size(); ++i) {
    h = decoder_layer(context(places[i], rope, sight, static_cast<int>(i), trace), spec.layers[i], std::move(h));
    if (keeps) trace->hidden.push_back(h.clone());
  }
  if (trace != nullptr) trace->last = h;
  const Context top = context(whole, rope, sight, -1, trace);
  h = top.norm(merge_streams(top, h), Role::kFinalNorm, spec.final_norm);
  if (trace != nullptr) trace->normed = h;
  return h;
}

Model::Model(std::unique_ptr<State> state) : state_(std::move(state)) {}
Model::Model(Model&&) noexcept = default;
Model& Model::operator=(Model&&) noexcept = default;
Model::~Model() = default;

Model Model::zeros(const ModelSpec& spec) {
  return Model(std::make_unique<State>(spec));
}

namespace {

float start_value(const ParameterSpec& row, const ModelSpec& spec, Rng& rng, std::int64_t number) {
  constexpr double kLeast = 0.01;
  constexpr double kMost = 16;
  switch (row.start) {
    case Start::kNormal:
      return static_cast<float>(spec.init_std * rng.normal());
    case Start::kConstant:
      return static_cast<float>(row.constant);
    case Start::kLogUniform:
      return static_cast<float>(std::log(kLeast + (kMost - kLeast) * rng.uniform()));
    case Start::kCycle:
      return static_cast<float>(number % row.cycle);
  }
  return 0;
}

}  // namespace

Model Model::create(const ModelSpec& spec, std::uint64_t seed) {
  Model model = zeros(spec);
  const std::vector<ParameterSpec> table = parameter_table(spec);
  for (std::size_t i = 0; i < table.size(); ++i) {
    const std::span<float> values = tensor::floats(model.parameters()[i].value);
    Rng rng(seed, RngStream::kInit, hash64(table[i].name));
    std::int64_t next = 0;
    for (float& value : values) value = start_value(table[i], spec, rng, next++);
  }
  return model;
}

Model Model::clone() const {
  auto copy = std::make_unique<State>(state_->spec);
  for (std::size_t i = 0; i < copy->parameters.size(); ++i)
    copy->parameters[i].value = state_->parameters[i].value.detach().clone();
  Model model(std::move(copy));
  model.set_precision(precision());
  model.set_backends(state_->backends);
  return model;
}

const ModelSpec& Model::spec() const { return state_->spec; }
std::vector<Parameter>& Model::parameters() { return state_->parameters; }
const std::vector<Parameter>& Model::parameters() const { return state_->parameters; }

const at::Tensor* Model::find(std::string_view name) const {
  const auto it = state_->index.find(name);
  return it == state_->index.end() ? nullptr : &state_->parameters[static_cast<std::size_t>(it->second)].value;
}

at::Tensor Model::router_correction(int place) const {
  const int number = state_->places.at(static_cast<std::size_t>(place))[Role::kRouterCorrection];
  return number < 0 ? at::Tensor() : state_->parameters[static_cast<std::size_t>(number)].value;
}

void Model::set_trainable(bool trainable) {
  for (Parameter& parameter : state_->parameters) parameter.value.set_requires_grad(trainable && parameter.trains);
}

void Model::clear_gradients() {
  for (Parameter& parameter : state_->parameters) parameter.value.mutable_grad() = at::Tensor();
}

void Model::set_precision(kernels::Precision precision) {
  state_->precision = precision;
  state_->whole.set_precision(precision);
  for (const Slots& slots : state_->places) slots.set_precision(precision);
}

void Model::set_backends(const tensor::Backends& backends) { state_->backends = backends; }

kernels::Precision Model::precision() const { return state_->precision; }

void Model::weights_changed() {
  state_->whole.invalidate();
  for (const Slots& slots : state_->places) slots.invalidate();
}

namespace {

Sight sight_of(const Batch& batch) {
  Sight sight{batch.ids, batch.positions, {}, nullptr, nullptr};
  for (const Segment& s : batch.segments) sight.segments.push_back({s.begin, s.end, s.prefix_begin, s.prefix_end});
  return sight;
}

/// The token `ahead` rows further in the same segment; the row's own one where there is none.
std::vector<std::int32_t> ids_ahead(const Batch& batch, std::int32_t ahead) {
  std::vector<std::int32_t> next = batch.ids;
  for (const Segment& s : batch.segments)
    if (s.end - s.begin > ahead) std::copy(batch.ids.begin() + s.begin + ahead, batch.ids.begin() + s.end, next.begin() + s.begin);
  return next;
}

}  // namespace

at::Tensor Model::forward(const Batch& batch, Trace* trace) {
  check_batch(batch);
  return state_->run(sight_of(batch), trace);
}

at::Tensor Model::forward(const CachedBatch& batch, KvCache& cache, Trace* trace) {
  check_batch(batch, cache.page_tokens(), cache.pages());
  const tensor::NoGrad no_grad;
  if (cache.has_state()) {
    check_states(batch, cache.states());
    cache.open_states(batch.segments);
  }
  at::Tensor hidden = state_->run({batch.ids, batch.positions, {}, &batch, &cache}, trace);
  if (cache.has_state()) cache.close_states(batch.segments);
  return hidden;
}

at::Tensor Model::State::further(const Sight& sight, std::span<const std::int32_t> next, std::size_t block, Trace& trace) {
  TROUPE_CHECK(block < spec.mtp.size() && trace.normed.defined(), "a block of the model, after a forward pass");
  const std::size_t place = spec.layers.size() + block;
  const std::vector<tensor::RopeRows> rope = rope_rows_of(sight.positions);
  const Context at_block = context(places[place], rope, sight, static_cast<int>(place), &trace);
  const at::Tensor embedded =
      at_block.norm(tensor::embedding(value(Role::kEmbedding), next), Role::kMtpEmbeddingNorm, spec.mtp_norm);
  at::Tensor h;
  if (spec.mtp_join == MtpJoin::kConcatenate) {
    const at::Tensor hidden = at_block.norm(trace.normed, Role::kMtpHiddenNorm, spec.mtp_norm);
    h = at_block.project(at::cat({embedded, hidden}, 1), {Role::kMtpProject});
  } else {
    const at::Tensor streams = trace.last.contiguous().view({-1, spec.width});
    const at::Tensor hidden =
        at_block.project(at_block.norm(streams, Role::kMtpHiddenNorm, spec.mtp_norm), {Role::kMtpHiddenProject});
    h = hidden.view(trace.last.sizes()) +
        at_block.project(embedded, {Role::kMtpEmbeddingProject}).repeat({1, spec.hyper.streams});
  }
  trace.last = decoder_layer(at_block, spec.mtp[block], h);
  trace.normed = at_block.norm(merge_streams(at_block, trace.last), Role::kMtpNorm, spec.mtp_norm);
  return trace.normed;
}

at::Tensor Model::predict_further(const Batch& batch, std::size_t block, Trace& trace) {
  return state_->further(sight_of(batch), ids_ahead(batch, static_cast<std::int32_t>(block) + 1), block, trace);
}

at::Tensor Model::predict_further(const CachedBatch& batch, std::span<const std::int32_t> next, std::size_t block, Trace& trace,
                                  KvCache& cache) {
  check_batch(batch, cache.page_tokens(), cache.pages());
  TROUPE_CHECK(can_guess(state_->spec, block) && next.size() == batch.ids.size(), "a block without a state, and a token after every row");
  const tensor::NoGrad no_grad;
  return state_->further({batch.ids, batch.positions, {}, &batch, &cache}, next, block, trace);
}

at::Tensor Model::logits(const at::Tensor& hidden_rows) {
  const tensor::NoGrad no_grad;
  const at::Tensor weight = state_->value(state_->head);
  at::Tensor products = tensor::linear(hidden_rows, {&weight, 1}, state_->whole.pack(Role::kHead), tensor::where_of(state_->backends.head));
  tensor::apply_logit_rule(products, {state_->spec.logit_multiplier, state_->spec.logit_cap});
  return products;
}

TokenScores Model::score(const at::Tensor& hidden_rows, std::span<const std::int32_t> targets, double temperature) {
  const ModelSpec& spec = state_->spec;
  const tensor::Scores scores =
      tensor::score(hidden_rows, state_->value(state_->head), state_->whole.pack(Role::kHead), targets,
                    static_cast<float>(temperature), spec.used_vocab(), {spec.logit_multiplier, spec.logit_cap}, tensor::where_of(state_->backends.head));
  return {scores.logprob, scores.entropy};
}

}  // namespace troupe::model
