#include "actors/rank/stage_work.h"

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstring>
#include <nlohmann/json.hpp>
#include <type_traits>

#include "base/hash.h"
#include "checkpoint/repository.h"
#include "data/arithmetic.h"
#include "model/load.h"
#include "rl/batch.h"
#include "rl/environment.h"
#include "rl/loss.h"

namespace troupe::actors {
namespace {

using nlohmann::json;

constexpr std::string_view kReferencePrefix = "reference.";
constexpr std::size_t kBucketValues = std::size_t{16} << 20; // 64 MiB: long enough that the way there does not count

train::MicroBatch model_batch(const rl::MicroBatch& micro) {
  train::MicroBatch out;
  out.batch.ids = micro.ids;
  out.batch.positions = micro.positions;
  for (const rl::Segment& s : micro.segments) out.batch.segments.push_back({s.begin, s.end, s.prefix_begin, s.prefix_end});
  out.rows = micro.rows;
  out.targets = micro.targets;
  return out;
}

std::vector<train::MicroBatch> model_batches(std::span<const rl::MicroBatch> micros) {
  std::vector<train::MicroBatch> batches;
  for (const rl::MicroBatch& micro : micros) batches.push_back(model_batch(micro));
  return batches;
}

rl::Group group_of(BatchGroup&& wire) {
  rl::Group group;
  group.prompt_id = wire.prompt;
  group.prompt = std::move(wire.prompt_ids);
  for (SampleResult& result : wire.samples) {
    rl::Sample sample;
    sample.id = result.id;
    sample.ids = std::move(result.ids);
    sample.sampled = std::move(result.sampled);
    sample.starts = std::move(result.starts);
    sample.logprobs = std::move(result.logprobs);
    sample.versions = std::move(result.versions);
    // KV entries of older weights count as a version that touched the sample: its log-probs are not comparable bit for bit.
    if (!sample.versions.empty()) sample.versions.front() = std::min(sample.versions.front(), result.oldest);
    sample.reward = result.reward;
    sample.truncated = result.finish == 2; // generate::Finish::kLength
    group.samples.push_back(std::move(sample));
  }
  return group;
}

void add(std::vector<MetricValue>& out, std::string name, double value) { out.push_back({std::move(name), value}); }

void add_batch_metrics(std::vector<MetricValue>& out, const rl::PreparedBatch& batch) {
  const rl::BatchMetrics& m = batch.metrics;
  add(out, "reward/mean", m.reward_mean);
  add(out, "reward_std", m.reward_std);
  add(out, "frac_reward_zero_std", m.groups > 0 ? static_cast<double>(m.groups_zero_signal) / static_cast<double>(m.groups) : 0);
  add(out, "critic/score/mean", m.reward_mean);
  add(out, "critic/score/max", m.reward_max);
  add(out, "critic/score/min", m.reward_min);
  add(out, "critic/advantages/mean", m.advantage_mean);
  add(out, "critic/advantages/max", m.advantage_max);
  add(out, "critic/advantages/min", m.advantage_min);
  add(out, "solve_none", static_cast<double>(m.solve_none));
  add(out, "solve_all", static_cast<double>(m.solve_all));
  add(out, "response_length/mean", m.response_length_mean);
  add(out, "response_length/max", m.response_length_max);
  add(out, "response_length/min", m.response_length_min);
  add(out, "response_length/clip_ratio", m.clip_ratio);
}

void add_loss_metrics(std::vector<MetricValue>& out, const rl::LossTotals& totals, bool with_reference) {
  const rl::LossMetrics m = rl::metrics(totals);
  add(out, "loss/mean", m.loss);
  add(out, "actor/pg_loss", m.policy_loss);
  if (with_reference) add(out, "actor/kl_loss", m.kl_loss); // absent, never 0, without a reference policy
  add(out, "actor/pg_clipfrac", m.clip_fraction);
  add(out, "actor/pg_clipfrac_lower", m.clip_fraction_low);
  add(out, "actor/ppo_kl", m.ppo_kl);
  add(out, "actor/entropy", m.entropy);
  add(out, "loss/ratio_mean", m.ratio_mean);
}

void add_model_metrics(std::vector<MetricValue>& metrics, const train::ModelLossOptions& options, const train::ModelLossReport& report) {
  if (!options.any()) return;
  if (options.load_balance > 0) add(metrics, "loss/load_balance", report.load_balance);
  if (options.sequence_balance > 0) add(metrics, "loss/sequence_balance", report.sequence_balance);
  if (options.further > 0) add(metrics, "loss/further_tokens", report.further);
  if (report.busiest > 0) add(metrics, "moe/max_violation", report.busiest - 1);
}

void add_mismatch_metrics(std::vector<MetricValue>& out, const rl::MismatchTotals& all, const rl::MismatchTotals& equal) {
  if (const auto m = rl::metrics(all)) {
    add(out, "mismatch_kl/all/mean", m->mismatch_kl_mean);
    add(out, "mismatch_kl/all/std", m->mismatch_kl_std);
    add(out, "mismatch_kl/all/max", m->mismatch_kl_max);
    add(out, "token_mult_prob_error", m->token_mult_prob_error);
    add(out, "sampling_importance_ratio", m->sampling_importance_ratio);
  }
  // Absent, never 0, when no token of equal weights was there to compare.
  if (const auto m = rl::metrics(equal)) {
    add(out, "bit_wise/logprob_diff/mean", m->logprob_diff_mean);
    add(out, "bit_wise/logprob_diff/max", m->logprob_diff_max);
    add(out, "bit_wise/ratio_tokens_different", m->ratio_tokens_different);
    add(out, "bit_wise/tokens_compared", static_cast<double>(m->tokens));
  }
}

// The training problems of the task with their answers, as conversations: what an sft stage learns when it names no file.
Result<std::vector<data::Example>> task_examples(const rl::TaskOptions& task, std::int64_t count) {
  std::vector<data::Example> examples;
  const auto add_example = [&](std::vector<data::Message> messages, const std::string& answer) {
    data::Example example;
    example.kind = data::Example::Kind::kMessages;
    if (!task.system_prompt.empty()) messages.insert(messages.begin(), {"system", task.system_prompt});
    messages.push_back({"assistant", answer});
    example.messages = std::move(messages);
    example.line = static_cast<std::int64_t>(examples.size()) + 1;
    examples.push_back(std::move(example));
  };
  if (task.type == "arithmetic") {
    TROUPE_TRY_STATUS(data::check_options(task.arithmetic));
    for (std::int64_t i = 0; i < count; ++i) {
      const data::Problem problem = data::make_problem(task.arithmetic, task.seed, static_cast<std::uint64_t>(i), data::Split::kTrain);
      add_example({{"user", problem.question}}, problem.answer);
    }
  } else if (task.type == "jsonl") {
    TROUPE_TRY(auto rows, data::read_tasks(task.jsonl, data::Split::kTrain));
    for (data::TaskRow& row : rows) add_example(std::move(row.messages), row.answer);
  } else {
    return fail(ErrorCode::kInvalidConfig, "an sft stage of a " + task.type + " task needs data.path: the task has no answers to learn from");
  }
  return examples;
}

} // namespace

Result<std::unique_ptr<StageWork>> StageWork::create(const RankOptions& options) {
  TROUPE_TRY(auto policy, load_policy(options.policy, true));
  return std::unique_ptr<StageWork>(new StageWork(options, std::move(policy)));
}

PolicyVersion StageWork::version() const { return {epoch_.load(), step_.load()}; }

void StageWork::advance() {
  ++stage_step_;
  step_.fetch_add(1);
}

Status StageWork::build(PolicyVersion version, const std::string& checkpoint) {
  trainer_.reset();
  reference_.reset();
  loaded_.reset();
  stage_ = -1;
  if (checkpoint.empty()) {
    if (epoch_.load() != 0 || step_.load() != 0) { // a rollback to the start: the weights in memory were trained
      TROUPE_TRY(auto policy, load_policy(options_.policy, true));
      policy_.model = std::move(policy.model);
    }
  } else {
    checkpoint::Repository repository(std::filesystem::path(checkpoint).parent_path());
    TROUPE_TRY(auto commit, repository.load(checkpoint));
    for (model::Parameter& parameter : policy_.model.parameters()) {
      const auto bytes = commit.tensor(parameter.name);
      if (bytes.size() != static_cast<std::size_t>(parameter.value.numel()) * sizeof(float))
        return fail(ErrorCode::kInvalidArgument, checkpoint + " does not hold " + parameter.name + " in this model's shape: it is the commit of another model");
      std::memcpy(parameter.value.data_ptr(), bytes.data(), bytes.size());
    }
    loaded_ = std::make_shared<const checkpoint::Loaded>(std::move(commit));
  }
  policy_.model.weights_changed();
  epoch_ = version.epoch;
  step_ = version.step;
  intact_ = true;
  return {};
}

Status StageWork::expect_equal_ranks() {
  if (group_ == nullptr) return {};
  std::vector<comm::NamedDigest> digests;
  const auto add_digest = [&](std::string name, std::span<const float> values) { digests.push_back({std::move(name), hash64(std::as_bytes(values))}); };
  if (trainer_) {
    for (const train::StateTensor& tensor : trainer_->state()) add_digest(tensor.name, tensor.values);
  } else {
    for (const model::Parameter& p : policy_.model.parameters())
      add_digest(p.name, {p.value.const_data_ptr<float>(), static_cast<std::size_t>(p.value.numel())});
  }
  return comm::expect_equal(*group_, digests);
}

Status StageWork::open_data() {
  examples_.clear();
  stream_.reset();
  const RankStage& s = stage();
  if (s.kind != protocol::StageKind::kSft && s.kind != protocol::StageKind::kPretrain) return {};
  TROUPE_TRY(examples_, s.dataset.path.empty() ? task_examples(options_.task, s.task_examples) : data::read_examples(s.dataset, data::Split::kTrain));
  stream_.emplace(examples_, policy_.format, policy_.tokenizer, s.dataset, options_.seed);
  return {};
}

void StageWork::set_lr(std::int32_t stage, double lr) {
  lr_[stage] = lr;
  if (stage == stage_ && trainer_) trainer_->set_peak_lr(lr);
}

Status StageWork::start_stage(std::int32_t stage_index, std::uint64_t steps_done) {
  if (trainer_ && stage_ == stage_index && stage_step_ == steps_done) return {}; // in the middle of it: only the head is a new one
  stage_ = stage_index;
  stage_step_ = steps_done;
  TROUPE_TRY_STATUS(open_data());
  reference_.reset();
  trainer_.reset();
  if (stage().kind == protocol::StageKind::kEval || stage().kind == protocol::StageKind::kExport) return {};
  optim::AdamWOptions optimizer = stage().optimizer;
  if (const auto set = lr_.find(stage_); set != lr_.end()) optimizer.lr = set->second;
  TROUPE_TRY(auto trainer, train::Trainer::create(policy_.model, optimizer, stage().schedule, stage().model_loss,
                                                  tensor::where_of(options_.policy.backends.optimizer)));
  trainer_.emplace(std::move(trainer));
  const bool wants_reference = stage().kind == protocol::StageKind::kRl && stage().algorithm.loss.kl.coefficient > 0;
  if (wants_reference) reference_.emplace(policy_.model.clone());
  const auto loaded = std::static_pointer_cast<const checkpoint::Loaded>(loaded_);
  if (steps_done > 0) {
    if (!loaded) return fail(ErrorCode::kInternal, "a stage cannot go on at step " + std::to_string(steps_done) + " without a commit");
    for (train::StateTensor& tensor : trainer_->state()) {
      const auto bytes = loaded->tensor(tensor.name);
      if (bytes.size() != tensor.values.size_bytes()) return fail(ErrorCode::kCorrupt, loaded->folder().string() + " does not hold " + tensor.name);
      std::memcpy(tensor.values.data(), bytes.data(), bytes.size());
    }
    if (reference_)
      for (model::Parameter& parameter : reference_->parameters()) {
        const auto bytes = loaded->tensor(std::string(kReferencePrefix) + parameter.name);
        if (bytes.empty()) return fail(ErrorCode::kCorrupt, loaded->folder().string() + " does not hold the reference policy");
        std::memcpy(parameter.value.data_ptr(), bytes.data(), bytes.size());
      }
    trainer_->set_steps(loaded->record().optimizer.at("steps").get<std::int64_t>());
    trainer_->state_changed();
    if (reference_) reference_->weights_changed();
    if (stream_) {
      const json& cursor = loaded->record().data_cursor;
      TROUPE_TRY_STATUS(stream_->seek({cursor.at("epoch").get<std::uint64_t>(), cursor.at("index").get<std::uint64_t>()}));
    }
  }
  loaded_.reset();
  return {};
}

Result<StepDone> StageWork::step(std::vector<BatchGroup> groups) {
  if (!trainer_) return fail(ErrorCode::kInternal, "the rank was asked for a step outside a stage that trains");
  const auto start = std::chrono::steady_clock::now();
  summed_ = false;
  auto done = stage().kind == protocol::StageKind::kRl ? policy_step(std::move(groups)) : supervised_step();
  intact_ = done.has_value();
  if (!done) return done;
  advance();
  done->version = version();
  add(done->metrics, "time/forward_backward", seconds(std::chrono::steady_clock::now() - start));
  return done;
}

// What a step counts besides gradients. Plain numbers: ranks of one build exchange it as bytes.
struct StageWork::StepTotals {
  rl::LossTotals loss;
  rl::MismatchTotals all, equal;
  std::int64_t rows = 0;

  void add(const StepTotals& other) {
    loss.add(other.loss);
    all.add(other.all);
    equal.add(other.equal);
    rows += other.rows;
  }
};

rl::Part StageWork::part() const { return group_ == nullptr ? rl::Part{} : rl::Part{group_->rank(), group_->ranks()}; }

// The micro-batches of this rank. Their shares of the whole batch are counted only where a loss of the model's parts asks for them.
std::vector<train::MicroBatch> StageWork::batches_of(std::span<const rl::MicroBatch> micros, const std::function<std::vector<rl::MicroBatch>()>& cut_whole) const {
  auto batches = model_batches(micros);
  if (!stage().model_loss.any()) return batches;
  train::BatchCounts whole;
  const auto count = [&whole](std::span<const train::MicroBatch> all) {
    for (const train::MicroBatch& batch : all) whole.add(batch);
  };
  if (group_ == nullptr) count(batches);
  else count(model_batches(cut_whole()));
  train::set_shares(batches, whole);
  return batches;
}

// One optimizer step over the parts of all ranks. Afterwards `totals` are those of the whole batch, the same on every rank.
Result<train::StepReport> StageWork::summed_step(std::span<const train::MicroBatch> batches, double temperature, const train::LossFunction& loss, StepTotals& totals) {
  for (const train::MicroBatch& batch : batches) totals.rows += static_cast<std::int64_t>(batch.batch.ids.size());
  if (group_ == nullptr) return trainer_->step(batches, temperature, loss);
  return trainer_->step(batches, temperature, loss, [&](std::span<const std::span<float>> gradients) -> Status {
    static_assert(std::is_trivially_copyable_v<StepTotals>);
    TROUPE_TRY(const auto parts, group_->all_gather({reinterpret_cast<const char*>(&totals), sizeof totals}));
    totals = {};
    for (const std::string& bytes : parts) {
      StepTotals of_rank;
      if (bytes.size() != sizeof of_rank) return fail(ErrorCode::kCorrupt, "a rank of another build takes part");
      std::memcpy(&of_rank, bytes.data(), sizeof of_rank);
      totals.add(of_rank);
    }
    TROUPE_TRY_STATUS(comm::all_reduce_in_buckets(*group_, gradients, kBucketValues));
    summed_ = true;
    return {};
  });
}

Result<StepDone> StageWork::supervised_step() {
  TROUPE_TRY(const auto packed, stream_->next());
  rl::Denominator denominator = rl::make_denominator(rl::Aggregation::kTokenMean);
  rl::count_packed(denominator, packed);
  const auto micros = rl::cut_packed(packed, stage().micro_batch_tokens, part());
  const auto batches = batches_of(micros, [&] { return rl::cut_packed(packed, stage().micro_batch_tokens); });
  StepTotals totals;
  const auto loss = [&](std::size_t i, std::span<const float> logprob, std::span<const float> entropy) -> Result<std::vector<float>> {
    if (moved_) moved_();
    auto tokens = rl::token_batch(micros[i], logprob);
    tokens.entropy = entropy;
    TROUPE_TRY(auto result, rl::cross_entropy_loss(tokens, denominator, totals.loss));
    return std::move(result.dloss_dlogprob);
  };
  TROUPE_TRY(const auto report, summed_step(batches, 1.0, loss, totals));
  StepDone done;
  done.tokens = static_cast<std::uint64_t>(totals.rows);
  add(done.metrics, "loss/mean", totals.loss.loss);
  add(done.metrics, "optim/grad_norm", report.grad_norm);
  add(done.metrics, "optim/lr", report.lr);
  add_model_metrics(done.metrics, stage().model_loss, report.model);
  return done;
}

Result<std::vector<std::vector<float>>> StageWork::reference_logprobs(std::span<const train::MicroBatch> batches) {
  std::vector<std::vector<float>> all;
  if (!reference_) return all;
  for (const auto& batch : batches) {
    TROUPE_TRY(auto logprobs, train::Trainer::logprobs(*reference_, batch, stage().temperature));
    all.push_back(std::move(logprobs));
  }
  return all;
}

Result<StepDone> StageWork::policy_step(std::vector<BatchGroup> wire) {
  std::vector<rl::Group> groups;
  for (BatchGroup& group : wire) groups.push_back(group_of(std::move(group)));
  const RankStage& s = stage();
  TROUPE_TRY(const auto batch, rl::prepare_batch(std::move(groups), s.algorithm, s.response_tokens));
  StepDone done;
  add_batch_metrics(done.metrics, batch);
  if (batch.denominator.tokens == 0) return done; // nothing to learn from, on any rank: the weights stay, the step counts
  const auto micros = rl::cut_micro_batches(batch, s.micro_batch_tokens, part());
  const auto batches = batches_of(micros, [&] { return rl::cut_micro_batches(batch, s.micro_batch_tokens); });
  TROUPE_TRY(const auto reference, reference_logprobs(batches));
  StepTotals totals;
  const PolicyVersion now = version();
  const auto loss = [&](std::size_t i, std::span<const float> logprob, std::span<const float> entropy) -> Result<std::vector<float>> {
    if (moved_) moved_();
    auto tokens = rl::token_batch(micros[i], logprob);
    tokens.entropy = entropy;
    if (!reference.empty()) tokens.reference_logprob = reference[i];
    rl::add_mismatch(totals.all, logprob, micros[i].behaviour_logprob, micros[i].mask);
    rl::add_mismatch(totals.equal, logprob, micros[i].behaviour_logprob, rl::equal_weights_mask(micros[i], now));
    TROUPE_TRY(auto result, rl::policy_loss(tokens, s.algorithm.loss, batch.denominator, totals.loss));
    return std::move(result.dloss_dlogprob);
  };
  TROUPE_TRY(const auto report, summed_step(batches, s.temperature, loss, totals));
  done.tokens = static_cast<std::uint64_t>(totals.rows);
  add_loss_metrics(done.metrics, totals.loss, reference_.has_value());
  add_mismatch_metrics(done.metrics, totals.all, totals.equal);
  add(done.metrics, "optim/grad_norm", report.grad_norm);
  add(done.metrics, "actor/grad_norm", report.grad_norm);
  add(done.metrics, "optim/lr", report.lr);
  add_model_metrics(done.metrics, s.model_loss, report.model);
  return done;
}

Result<Snapshot> StageWork::snapshot() {
  if (!trainer_) return fail(ErrorCode::kUnavailable, "there is nothing to save outside a stage that trains");
  Snapshot snapshot;
  snapshot.version = version();
  auto tensors = trainer_->state();
  if (reference_)
    for (model::Parameter& p : reference_->parameters())
      tensors.push_back({std::string(kReferencePrefix) + p.name, p.value.sizes().vec(), {p.value.data_ptr<float>(), static_cast<std::size_t>(p.value.numel())}});
  std::vector<checkpoint::TensorEntry> entries;
  for (const auto& tensor : tensors) entries.push_back({tensor.name, "F32", tensor.shape, 0, 0, {}});
  TROUPE_TRY(snapshot.layout, checkpoint::make_layout(std::move(entries)));
  snapshot.region.resize(snapshot.layout.bytes);
  for (const auto& tensor : tensors) {
    const auto& entry = snapshot.layout.tensors[*snapshot.layout.find(tensor.name)];
    std::memcpy(snapshot.region.data() + entry.offset, tensor.values.data(), entry.bytes);
  }
  json record{{"optimizer", {{"steps", trainer_->steps()}}}, {"data_cursor", json::object()}};
  if (stream_) record["data_cursor"] = {{"epoch", stream_->cursor().epoch}, {"index", stream_->cursor().index}};
  snapshot.record = record.dump();
  return snapshot;
}

Result<std::uint64_t> StageWork::export_model(std::int32_t stage_index, const std::string& folder) {
  model::ExportOptions options;
  options.dtype = options_.stages[static_cast<std::size_t>(stage_index)].export_dtype;
  TROUPE_TRY_STATUS(model::export_model(policy_.model, folder, options));
  TROUPE_TRY_STATUS(policy_.tokenizer.save(folder, policy_.format.jinja()));
  std::uint64_t bytes = 0;
  for (const auto& entry : std::filesystem::directory_iterator(folder)) bytes += entry.file_size();
  return bytes;
}

Result<std::vector<std::vector<float>>> StageWork::score(std::int32_t stage_index, std::span<const ProbeSequence> sequences) {
  std::vector<std::vector<float>> out;
  const double temperature = options_.stages[static_cast<std::size_t>(stage_index)].temperature;
  for (const ProbeSequence& sequence : sequences) {
    const auto length = static_cast<std::int32_t>(sequence.ids.size());
    if (sequence.prompt_length < 1 || sequence.prompt_length >= length) return fail(ErrorCode::kInvalidArgument, "a probe needs a prompt and a completion");
    train::MicroBatch batch;
    batch.batch = model::pack_documents(std::vector<std::vector<std::int32_t>>{{sequence.ids.begin(), sequence.ids.end()}});
    for (std::int32_t t = sequence.prompt_length; t < length; ++t) {
      batch.rows.push_back(t - 1);
      batch.targets.push_back(sequence.ids[static_cast<std::size_t>(t)]);
    }
    TROUPE_TRY(auto logprobs, train::Trainer::logprobs(policy_.model, batch, temperature));
    out.push_back(std::move(logprobs));
  }
  return out;
}

} // namespace troupe::actors
