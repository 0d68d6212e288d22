#include <caf/all.hpp>

#include <algorithm>

#include "actors/runtime/names.h"
#include "actors/supervisor/control_log.h"
#include "actors/supervisor/head_internal.h"
#include "base/log.h"

namespace troupe::actors {

namespace pm = protocol::membership;
namespace pr = protocol::rollout;
using protocol::Role;
using protocol::WorkerId;

namespace {

WireName wire_name(const pr::SampleName& name) { return {name.kind == pr::WorkKind::kEvaluation, name.evaluation, name.id}; }

pr::SampleName sample_name(bool eval, std::uint32_t evaluation, SampleId id) {
  return {eval ? pr::WorkKind::kEvaluation : pr::WorkKind::kTrain, eval ? evaluation : 0, id};
}

} // namespace

void Head::rollout_event(const pr::Event& event) {
  if (!ended_) perform_all(rollout_.handle(event, head_now()), kRolloutTimer);
}

// ---- effects --------------------------------------------------------------------------------------------------------

void Head::perform(const pr::DispatchWork& e) {
  GroupWork work;
  work.number = e.work.number;
  work.eval = e.work.kind == pr::WorkKind::kEvaluation;
  work.evaluation = e.work.evaluation;
  work.epoch = e.work.epoch;
  const auto stage = work.eval ? evaluation_stage_[e.work.evaluation] : run_.position().stage;
  work.stage = static_cast<std::int32_t>(std::min<std::size_t>(stage, options_.stages.size() - 1));
  work.prompt = e.work.prompt;
  for (const pr::SampleTask& task : e.work.samples) {
    SampleWork sample{{e.work.prompt, task.sample}, task.attempt, {}};
    if (const auto it = prefixes_.find(sample.id); it != prefixes_.end() && !work.eval) {
      if (task.resume) sample.prefix = std::move(it->second);
      prefixes_.erase(it);
    }
    work.samples.push_back(std::move(sample));
  }
  send(e.worker, std::move(work));
}

void Head::perform(const pr::CancelSamples& e) {
  CancelWork order;
  for (const pr::SampleName& name : e.names) order.names.push_back(wire_name(name));
  send(e.worker, std::move(order));
}

void Head::perform(const pr::CancelAll& e) { send(e.worker, CancelWork{true, {}}); }

void Head::perform(const pr::DropResults& e) {
  kept_.erase(e.prompt);
  std::erase_if(prefixes_, [&](const auto& entry) { return entry.first.prompt == e.prompt; });
}

void Head::perform(const pr::RequestTrainStep& e) {
  batch_ = e;
  age_max_ = std::max(age_max_, e.age_max);
  for (const std::uint64_t prompt : e.prompts) {
    const KeptGroup& group = kept_[prompt];
    BatchGroup message{e.from, prompt, group.prompt_ids, {}};
    for (const auto& [index, sample] : group.samples) message.samples.push_back(sample);
    send_ranks(message);
  }
  log_.append(protocol::control::Ordered{e.from, e.prompts}); // before the rank can make it
  send_ranks(TrainStep{e.from, static_cast<std::uint32_t>(e.prompts.size())});
}

void Head::perform(const pr::StartPublish& e) { send_rank(PublishWeights{e.version}); }

void Head::perform(const pr::TellWorkerPull& e) {
  send_rank(LeaseWeights{worker_name(e.worker), e.worker.incarnation, ++lease_request_, e.version});
}

void Head::perform(const pr::WorkerServing& e) { member_event(pm::Serving{e.worker}); }

void Head::perform(const pr::WorkerReleased& e) { member_event(pm::Empty{e.worker}); }

void Head::perform(const pr::WorkerUnfit& e) { member_event(pm::Unfit{e.worker, e.reason}); }

void Head::perform(const pr::EvaluationDone& e) {
  const std::uint64_t problems = e.answered + e.failed;
  const double accuracy = problems > 0 ? e.reward_sum / static_cast<double>(problems) : 0;
  const std::uint32_t stage = evaluation_stage_[e.evaluation];
  if (!eval_before_) eval_before_ = accuracy;
  eval_after_ = eval_latest_ = accuracy;
  char text[160];
  std::snprintf(text, sizeof text, "troupe: evaluation of %s in stage %s: %.4f of %llu problems right", to_string(e.version).c_str(),
                options_.stages.at(stage).spec.name.c_str(), accuracy, static_cast<unsigned long long>(problems));
  observer_.say(text);
  observer_.event("evaluation", "", {{"version", to_string(e.version)}, {"accuracy", accuracy}, {"problems", problems}, {"failed", e.failed}});
  observe::MetricBatch batch;
  batch.step = e.version.step;
  batch.stage = options_.stages.at(stage).spec.name;
  batch.time_s = observer_.seconds_since_start();
  batch.metrics = {{"eval/accuracy", accuracy}, {"eval/problems", static_cast<double>(problems)}};
  observer_.step(std::move(batch), progress());
  evaluation_stage_.erase(e.evaluation);
  run_event(protocol::run::EvaluationDone{e.evaluation});
}

void Head::perform(const pr::TrainingDone& e) {
  if (e.exhausted) observer_.say("troupe: the stage ended early: its prompts are used up");
  run_event(protocol::run::StageDone{});
}

void Head::perform(const pr::Drained&) {
  run_event(protocol::run::Drained{});
}

void Head::perform(const pr::Stalled& e) {
  for (const auto& item : e.items) {
    const std::string text = to_string(item.name) + " had no news from " + worker_name(item.owner) + " for " + format_duration(item.silent) + "; issued again";
    log_warning(text);
    observer_.event("stalled", worker_name(item.owner), {{"sample", to_string(item.name)}});
  }
}

void Head::perform(const pr::Fail& e) { run_event(protocol::run::Broken{e.reason}); }

// ---- messages -------------------------------------------------------------------------------------------------------

void Head::samples_done(const SamplesDone& message) {
  const auto id = worker_id(message.worker, message.incarnation);
  if (!id) return;
  if (WorkerEntry* worker = entry(*id)) worker->samples += message.samples.size();
  for (const SampleResult& sample : message.samples) {
    const auto name = sample_name(message.eval, message.evaluation, sample.id);
    if (!message.eval) {
      // Kept before the event: the director may ask for the batch at once. A later result of the same sample does not replace the first.
      const protocol::LedgerGroup* group = rollout_.ledger().find(message.prompt);
      const bool open = group != nullptr && message.epoch == run_.epoch() && sample.id.sample < group->samples.size() &&
                        group->samples[sample.id.sample].state != protocol::SampleState::kDone;
      if (open) {
        KeptGroup& kept = kept_[message.prompt];
        kept.prompt_ids = message.prompt_ids;
        kept.prompt_text = message.prompt_text;
        kept.samples[sample.id.sample] = sample;
        if (sample.starts.empty()) probe_.delivered(message.prompt_ids, sample.ids);
        ++completions_;
        reward_sum_ += sample.reward;
        ++rewards_;
      }
    }
    rollout_event(pr::SampleDone{*id, message.epoch, name, sample.attempt, sample.oldest, sample.reward, true});
  }
}

void Head::samples_failed(const SamplesFailed& message) {
  const auto id = worker_id(message.worker, message.incarnation);
  if (!id) return;
  observer_.event("samples_failed", message.worker, {{"prompt", message.prompt}, {"samples", message.samples.size()}, {"error", message.error.to_string()}});
  for (const SampleWork& sample : message.samples)
    rollout_event(pr::SampleFailed{*id, message.epoch, sample_name(message.eval, message.evaluation, sample.id), sample.attempt, message.error.to_string()});
}

void Head::work_refused(const WorkRefused& message) {
  const auto id = worker_id(message.worker, message.incarnation);
  if (!id) return;
  pr::Work work{message.work.number, message.work.eval ? pr::WorkKind::kEvaluation : pr::WorkKind::kTrain, message.work.evaluation, message.work.epoch,
                message.work.prompt, {}};
  for (const SampleWork& sample : message.work.samples) {
    const bool has_prefix = !sample.prefix.empty();
    if (has_prefix) prefixes_[sample.id] = sample.prefix;
    work.samples.push_back({sample.id.sample, sample.attempt, has_prefix});
  }
  rollout_event(pr::WorkRefused{*id, std::move(work), message.draining ? ErrorCode::kDraining : ErrorCode::kResourceExhausted});
}

void Head::weights_published(const WeightsPublished& message) {
  if (!message.ok) return rollout_event(pr::PublishFailed{message.version, message.error.to_string()});
  last_.metrics.push_back({"time/broadcast_weights", message.seconds});
  if (const auto order = probe_.order(message.version, static_cast<std::int32_t>(run_.position().stage))) send_rank(*order);
  rollout_event(pr::Published{message.version});
}

void Head::lease_granted(const LeaseGranted& message) {
  const auto id = worker_id(message.reader, message.incarnation);
  if (!id) return;
  if (!message.ok) return rollout_event(pr::WorkerPullFailed{*id, message.ticket.version, message.error.to_string()});
  send(*id, PullWeights{message.ticket});
}

void Head::weights_pulled(const WeightsPulled& message) {
  const auto id = worker_id(message.worker, message.incarnation);
  if (!id) return;
  send_rank(LeaseEnded{message.worker, message.incarnation, message.lease, false});
  if (!message.ok) return rollout_event(pr::WorkerPullFailed{*id, message.version, message.error.to_string()});
  if (WorkerEntry* worker = entry(*id)) worker->version = message.version;
  last_.metrics.push_back({"timing/weight_sync/pull", message.seconds});
  if (const auto order = probe_.order(message.version, static_cast<std::int32_t>(run_.position().stage))) send(*id, *order);
  rollout_event(pr::WorkerPulled{*id, message.version});
}

void Head::drained(const Drained& message) {
  const auto id = worker_id(message.worker, message.incarnation);
  if (!id) return;
  for (const GroupWork& work : message.handed_back)
    for (const SampleWork& sample : work.samples) {
      const bool has_prefix = !sample.prefix.empty() && !work.eval;
      if (has_prefix) prefixes_[sample.id] = sample.prefix;
      rollout_event(pr::SampleReturned{*id, work.epoch, sample_name(work.eval, work.evaluation, sample.id), sample.attempt, oldest_of(sample.prefix), has_prefix});
    }
}

void Head::gauges(const RolloutGauges& message) {
  const auto id = worker_id(message.worker, message.incarnation);
  if (!id) return;
  generated_tokens_ += static_cast<double>(message.tokens);
  drafts_ += static_cast<double>(message.drafts);
  drafts_accepted_ += static_cast<double>(message.drafts_accepted);
  gauges_[message.worker] = message;
  pr::WorkerProgress event{*id, {}};
  for (const WireName& name : message.holding) event.running.push_back(sample_name(name.eval, name.evaluation, name.id));
  rollout_event(event);
}

void Head::probed(const ProbeScored& message) {
  for (const ProbeOutcome& outcome : probe_.scored(message)) {
    probe_tokens_ += outcome.tokens;
    tokens_compared_ += outcome.tokens;
    probe_diff_ = std::max(probe_diff_, outcome.diff_max);
    diff_max_ = std::max(diff_max_, outcome.diff_max);
    if (outcome.diff_max == 0) continue;
    char text[160];
    std::snprintf(text, sizeof text, "%s and the rank disagree on log-probs of %s by up to %g", outcome.worker.c_str(), to_string(outcome.version).c_str(),
                  outcome.diff_max);
    log_warning(text);
    if (options_.invariant) run_event(protocol::run::Broken{std::string("numerics = \"invariant\" is violated: ") + text});
  }
}

} // namespace troupe::actors
