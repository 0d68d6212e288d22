#include <caf/all.hpp>

#include <algorithm>

#include "actors/supervisor/control_log.h"
#include "actors/supervisor/control_request.h"
#include "actors/supervisor/head_internal.h"

namespace troupe::actors {

namespace pm = protocol::membership;
using nlohmann::json;
using protocol::Role;

void Head::report_step(const StepDone& message) {
  const auto now = head_now();
  observe::MetricBatch batch;
  batch.step = message.version.step;
  batch.stage = stage_at(run_.position().stage).name;
  batch.time_s = observer_.seconds_since_start();
  const double step_seconds = std::max(1e-9, seconds(now - std::exchange(step_began_, now)));
  auto& out = batch.metrics;
  for (const MetricValue& metric : message.metrics) out.push_back({metric.name, metric.value});
  for (auto& metric : std::exchange(last_.metrics, {})) out.push_back(std::move(metric));
  out.push_back({"time/step", step_seconds});
  out.push_back({"perf/throughput", static_cast<double>(message.tokens) / step_seconds});
  out.push_back({"generation_tokens_total:rate", std::exchange(generated_tokens_, 0.0) / step_seconds});
  if (drafts_ > 0) out.push_back({"draft_acceptance_rate", std::exchange(drafts_accepted_, 0.0) / std::exchange(drafts_, 0.0)});
  if (rewards_ > 0) // every sample that came in since the last step, those of dropped groups included
    out.push_back({"reward/generated/mean", std::exchange(reward_sum_, 0.0) / static_cast<double>(std::exchange(rewards_, 0))});
  if (batch_) {
    out.push_back({"off_policy/mean", batch_->age_mean});
    out.push_back({"off_policy/max", static_cast<double>(batch_->age_max)});
    const protocol::RolloutStats stats = rollout_.stats();
    out.push_back({"dispatcher/inflight", static_cast<double>(stats.prompts.in_flight)});
    out.push_back({"dispatcher/cancelled", static_cast<double>(stats.prompts.cancelled())});
    out.push_back({"rollout_buffer/num_groups_waiting", static_cast<double>(stats.waiting)});
    out.push_back({"rollout_buffer/num_groups_inflight", static_cast<double>(stats.running)});
    out.push_back({"rollout_buffer/num_groups_finalized", static_cast<double>(stats.complete)});
    double running = 0, waiting = 0, kv = 0;
    for (const auto& [name, gauge] : gauges_) running += gauge.running, waiting += gauge.waiting, kv = std::max(kv, gauge.kv_used);
    out.push_back({"num_requests_running", running});
    out.push_back({"num_requests_waiting", waiting});
    out.push_back({"kv_cache_usage_perc", kv});
  }
  out.push_back({"watcher/policy_version", static_cast<double>(message.version.step)});
  compare_bits(out);
  tokens_ += message.tokens;
  last_.step = batch.step;
  last_.stage = batch.stage;
  observe::Progress line = progress();
  for (const auto& metric : out) {
    if (metric.name == "reward/mean") line.reward = metric.value;
    if (metric.name == "loss/mean") line.loss = metric.value;
    if (metric.name == "perf/throughput") line.tokens_per_second = metric.value;
    if (metric.name == "off_policy/mean") line.policy_age_mean = metric.value;
    if (metric.name == "off_policy/max") line.policy_age_max = metric.value;
  }
  line.step += 1; // this step; the run director hears of it next
  line_ = line;
  observer_.step(std::move(batch), std::move(line));
}

// The probe's comparisons since the last step join those of the batch itself.
void Head::compare_bits(std::vector<observe::Metric>& out) {
  const auto find = [&](std::string_view name) { return std::find_if(out.begin(), out.end(), [&](const auto& m) { return m.name == name; }); };
  if (const auto compared = find("bit_wise/tokens_compared"); compared != out.end()) tokens_compared_ += static_cast<std::uint64_t>(compared->value);
  if (probe_tokens_ > 0) {
    if (auto diff = find("bit_wise/logprob_diff/max"); diff != out.end()) diff->value = std::max(diff->value, probe_diff_);
    else out.push_back({"bit_wise/logprob_diff/max", probe_diff_});
    out.push_back({"bit_wise/probe_tokens_compared", static_cast<double>(probe_tokens_)});
  }
  probe_tokens_ = 0;
  probe_diff_ = 0;
  if (const auto diff = find("bit_wise/logprob_diff/max"); diff != out.end()) {
    diff_max_ = std::max(diff_max_, diff->value);
    if (diff->value > 0 && options_.invariant)
      run_event(protocol::run::Broken{"numerics = \"invariant\" is violated: trainer and generator disagree on log-probs by up to " + std::to_string(diff->value)});
  }
}

// A step that a lost head has not reported: what its rank knows of it.
void Head::report_late_step(const StepDone& message) {
  observe::MetricBatch batch;
  batch.step = message.version.step;
  batch.stage = stage_at(late_->stage).name;
  batch.time_s = observer_.seconds_since_start();
  for (const MetricValue& metric : message.metrics) batch.metrics.push_back({metric.name, metric.value});
  compare_bits(batch.metrics);
  tokens_ += message.tokens;
  observer_.step(std::move(batch), progress());
  late_.reset();
}

void Head::report_samples(const std::vector<std::uint64_t>& prompts) {
  std::vector<observe::SampleRecord> records;
  for (const std::uint64_t prompt : prompts) {
    if (static_cast<std::int64_t>(records.size()) >= samples_per_step_) break;
    const auto kept = kept_.find(prompt);
    if (kept == kept_.end() || kept->second.samples.empty()) continue;
    const auto& [index, sample] = *kept->second.samples.begin();
    observe::SampleRecord record;
    record.step = batch_ ? batch_->from.step + 1 : 0;
    record.prompt_id = prompt;
    record.sample_index = index;
    record.prompt = kept->second.prompt_text;
    record.completion = sample.text;
    record.reward = sample.reward;
    record.finish = sample.finish == 1 ? "stop" : sample.finish == 2 ? "length" : "other";
    record.tokens = sample.ids.size();
    record.version_oldest = sample.oldest.step;
    records.push_back(std::move(record));
  }
  observer_.samples(std::move(records));
}

// The last one when all are done.
const protocol::StageSpec& Head::stage_at(std::uint32_t index) const { return options_.stages[std::min<std::size_t>(index, options_.stages.size() - 1)].spec; }

observe::Progress Head::progress() const {
  const protocol::StageSpec& stage = stage_at(run_.position().stage);
  observe::Progress line = line_;
  line.stage = stage.name;
  line.step = run_.position().stage_step;
  line.steps = stage.steps;
  line.eval_accuracy = eval_latest_;
  const std::uint64_t done = line.step > stage_begin_step_ ? line.step - stage_begin_step_ : 0;
  line.left = observe::estimate_left(done, line.steps - std::min(line.steps, stage_begin_step_), head_now() - stage_began_);
  return line;
}

observe::Summary Head::summary() const {
  const protocol::LedgerCounters prompts = rollout_.stats().prompts;
  observe::Summary s;
  s.steps = run_.position().version.step;
  s.tokens = tokens_;
  s.completions = completions_;
  s.eval_before = eval_before_;
  s.eval_after = eval_after_;
  s.restarts = restarts_;
  s.prompts_dispatched = prompts.dispatched;
  s.prompts_delivered = prompts.delivered;
  s.prompts_cancelled = prompts.cancelled() + prompts.in_flight; // pending in the checkpoint: issued again by a resume
  s.policy_age_max = age_max_;
  if (tokens_compared_ > 0) s.logprob_diff_max = diff_max_;
  s.logprob_tokens_compared = tokens_compared_;
  s.exit = std::string(to_string(outcome_.exit));
  return s;
}

json Head::status_json() const {
  const auto position = run_.position();
  const protocol::StageSpec& stage = stage_at(position.stage);
  const protocol::LedgerCounters prompts = rollout_.stats().prompts;
  const auto line = progress();
  return {{"run", options_.run_name},
          {"state", run_.stopping() ? "stopping" : "running"},
          {"stage", stage.name},
          {"step", position.stage_step},
          {"steps", stage.steps},
          {"eta_s", line.left ? json(seconds(*line.left)) : json(nullptr)},
          {"actors", membership_.members().size()},
          {"nodes", nodes_json()},
          {"listeners", listeners_json()},
          {"prompts",
           {{"dispatched", prompts.dispatched}, {"delivered", prompts.delivered}, {"cancelled", prompts.cancelled()}, {"in_flight", prompts.in_flight}}}};
}

json Head::actors_json() const {
  json list = json::array();
  for (const auto& [id, member] : membership_.members()) {
    const std::string name = worker_name(id);
    const auto worker = workers_.find(name);
    const bool joined = worker != workers_.end() && worker->second.id == id;
    const auto pid = pids_.find({name, id.incarnation});
    json version = nullptr;
    if (id.role == Role::kRank) version = {{"epoch", run_.position().version.epoch}, {"step", run_.position().version.step}};
    else if (joined && id.role == Role::kRollout) version = {{"epoch", worker->second.version.epoch}, {"step", worker->second.version.step}};
    const protocol::PoolWorker* pooled = rollout_.workers().find(id);
    list.push_back({{"name", name},
                    {"role", std::string(to_string(id.role))},
                    {"node", to_string(member.node)},
                    {"pid", pid != pids_.end() ? json(pid->second) : json(nullptr)},
                    {"state", std::string(to_string(member.state))},
                    {"samples", joined ? worker->second.samples : 0},
                    {"spare", pooled != nullptr && pooled->spare},
                    {"version", version},
                    {"restarts", member.restarts}});
  }
  return {{"actors", list}};
}

json Head::scale(const json& request) {
  const auto role = protocol::parse_role(request.value("role", ""));
  if (!role) return {{"ok", false}, {"error", role.error().message}};
  if (*role == Role::kRank || *role == Role::kCheckpointWriter)
    return {{"ok", false}, {"error", "only rollout and environment workers can be scaled while a run goes on"}};
  if (!request.contains("count") || !request["count"].is_number_unsigned()) return {{"ok", false}, {"error", "count must be a number of workers, 0 or more"}};
  const auto count = request["count"].get<std::uint64_t>();
  if (count > options_.membership.workers_max)
    return {{"ok", false}, {"error", "at most " + std::to_string(options_.membership.workers_max) + " workers of a role, got " + std::to_string(count)}};
  const pm::SetWanted wanted{*role, static_cast<std::uint32_t>(count), membership_.generation(*role) + 1};
  if (const auto logged = log_.append_or_fail(protocol::control::Wanted{wanted.role, wanted.count, wanted.generation}); !logged) // before it takes effect
    return {{"ok", false}, {"error", logged.error().to_string()}};
  observer_.event("scale", std::string(to_string(*role)), {{"count", count}, {"generation", wanted.generation}});
  if (*role == Role::kRollout) serve_with(wanted.count);
  member_event(wanted);
  return {{"ok", true}, {"role", std::string(to_string(*role))}, {"count", count}, {"generation", wanted.generation}};
}

// One hot key. The command line has checked key and value, and resolved the experiment that they make.
json Head::set(const json& request) {
  const std::string text = request.value("setting", ""), experiment = request.value("experiment", "");
  const auto fresh = options_.recast(experiment);
  if (!fresh) return {{"ok", false}, {"error", fresh.error().to_string()}};
  if (fresh->stages.size() != options_.stages.size()) return {{"ok", false}, {"error", "the stages of a live run cannot be changed"}};
  if (const auto logged = log_.append_or_fail(protocol::control::Setting{text}); !logged) // before it takes effect
    return {{"ok", false}, {"error", logged.error().to_string()}};
  frame_.experiment = experiment;                // of workers that start later
  for (std::uint32_t i = 0; i < fresh->stages.size(); ++i) {
    const protocol::StageSpec& spec = fresh->stages[i].spec;
    run_event(protocol::run::Retune{i, spec.checkpoint_every, spec.evaluate_every});
    const double before = std::exchange(lr_[i], fresh->stages[i].lr);
    if (before != lr_[i]) send_ranks(SetLearningRate{static_cast<std::int32_t>(i), lr_[i]});
  }
  samples_per_step_ = fresh->samples_per_step;
  const auto position = run_.position();
  observer_.event("setting", "", {{"setting", text}, {"stage", position.stage}, {"step", position.version.step}});
  observer_.say("troupe: " + text + " from step " + std::to_string(position.version.step + 1) + " on");
  if (text.starts_with("rollout.workers=")) return scale({{"role", "rollout"}, {"count", fresh->rollout_workers}});
  return {{"ok", true}, {"step", position.version.step}};
}

std::string Head::answer(const std::string& line) {
  const auto parsed = parse_control_request(line);
  if (!parsed) return json{{"ok", false}, {"error", parsed.error().to_string()}}.dump();
  const json& request = *parsed;
  const std::string command = request["command"];
  if (command == "status") return json{{"ok", true}, {"status", status_json()}}.dump();
  if (command == "actors") return json{{"ok", true}, {"result", actors_json()}}.dump();
  if (command == "scale") return scale(request).dump();
  if (command == "experiment") return json{{"ok", true}, {"experiment", frame_.experiment}}.dump();
  if (command == "set") return set(request).dump();
  if (command == "drain") {
    const std::string name = request.value("node", ""), problem = drain_node(name);
    return problem.empty() ? json{{"ok", true}, {"node", name}}.dump() : json{{"ok", false}, {"error", problem}}.dump();
  }
  if (command == "stop") {
    caf::anon_send(caf::actor{self_}, StopRun{"stop requested", false});
    return R"({"ok":true})";
  }
  return json{{"ok", false}, {"error", "unknown command \"" + command + "\"; there are status, actors, scale, set, drain, stop"}}.dump();
}

} // namespace troupe::actors
