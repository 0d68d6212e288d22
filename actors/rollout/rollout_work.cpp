#include "actors/rollout/rollout_work.h"

#include <algorithm>
#include <utility>

#include "base/log.h"

namespace troupe::actors {
namespace {

constexpr std::uint64_t kEvalBit = std::uint64_t{1} << 63;

SamplePrefix wire_prefix(const generate::Completion& completion) {
  return {completion.ids, completion.logprobs, completion.versions, completion.kv_oldest};
}

PolicyVersion oldest_of(const generate::Completion& completion) {
  PolicyVersion oldest = completion.kv_oldest;
  for (const PolicyVersion version : completion.versions) oldest = std::min(oldest, version);
  return oldest;
}

} // namespace

// Engine ids: training prompts count up from 0; evaluation problems live in the upper half, apart for each evaluation.
std::uint64_t RolloutWork::key_of(bool eval, std::uint32_t evaluation, std::uint64_t prompt) {
  return eval ? kEvalBit | (std::uint64_t{evaluation & 0x7fffff} << 40) | (prompt & 0xffffffffff) : prompt;
}

RolloutWork::RolloutWork(const RolloutWorkerOptions& options, Policy policy, std::string worker, std::uint32_t incarnation, RolloutOutput output)
    : options_(options),
      policy_(std::move(policy)),
      worker_(std::move(worker)),
      incarnation_(incarnation),
      output_(std::move(output)),
      engine_(policy_.model, &policy_.tokenizer, options.engine) {}

std::size_t RolloutWork::held() const {
  std::size_t count = 0;
  for (const auto& [key, group] : groups_) count += group.samples.size();
  return count;
}

void RolloutWork::take(GroupWork work) {
  const bool full = held() + work.samples.size() > options_.samples_max;
  if (drain_until_ || full) return output_.refused(WorkRefused{worker_, incarnation_, drain_until_.has_value(), std::move(work)});
  const std::uint64_t key = key_of(work.eval, work.evaluation, work.prompt);
  Group& group = groups_[key];
  const bool fresh = group.samples.empty() && !group.rendered;
  group.head = work;
  group.head.samples.clear();
  for (SampleWork& sample : work.samples) {
    if (const auto it = group.samples.find(sample.id.sample); it != group.samples.end() && it->second.work.attempt >= sample.attempt) continue;
    if (group.samples.contains(sample.id.sample)) forget(key, sample.id.sample);
    groups_[key].samples[sample.id.sample] = {std::move(sample), false, {}};
  }
  Group& held_group = groups_[key];
  if (fresh) {
    held_group.head = work;
    held_group.head.samples.clear();
    call(key, held_group.samples.begin()->first, true, std::nullopt); // the prompt is the same for all samples
  } else if (held_group.rendered) {
    submit(key, held_group);
  }
}

void RolloutWork::call(std::uint64_t key, std::uint32_t sample, bool reset, std::optional<std::string> reply) {
  const Group& group = groups_.at(key);
  EnvironmentCall out;
  out.call = next_call_++;
  out.episode = out.call;
  out.reset = reset;
  out.step = reply.has_value();
  out.eval = group.head.eval;
  out.problem = group.head.prompt;
  if (reply) out.reply = std::move(*reply);
  calls_[out.call] = {key, sample, !out.step, Clock::now() + options_.environment_deadline};
  asking_.push_back(std::move(out));
}

void RolloutWork::answer(EnvironmentReplies replies) {
  if (replies.incarnation != incarnation_) return;
  for (EnvironmentReply& reply : replies.replies) {
    const auto it = calls_.find(reply.call);
    if (it == calls_.end()) continue; // cancelled or overdue
    const Call call = it->second;
    calls_.erase(it);
    const auto group = groups_.find(call.group);
    if (group == groups_.end()) continue;
    if (!call.reset_only) {
      rewarded(call.group, group->second, call.sample, reply);
      continue;
    }
    std::vector<std::uint32_t> all;
    for (const auto& [index, sample] : group->second.samples) all.push_back(index);
    if (!reply.ok) {
      fail_samples(call.group, all, reply.error);
      continue;
    }
    std::vector<data::Message> messages;
    for (ChatMessage& message : reply.messages) {
      group->second.prompt_text += (messages.empty() ? "" : "\n") + message.content;
      messages.push_back({std::move(message.role), std::move(message.content)});
    }
    group->second.prompt_ids = policy_.format.render(messages, true, policy_.tokenizer).ids;
    group->second.rendered = true;
    submit(call.group, group->second);
  }
  flush();
}

void RolloutWork::submit(std::uint64_t key, Group& group) {
  const RolloutStage& stage = options_.stages.at(static_cast<std::size_t>(group.head.stage));
  std::vector<std::uint32_t> refused;
  Error why;
  for (auto& [index, sample] : group.samples) {
    if (sample.submitted) continue;
    generate::Request request;
    request.id = {key, index};
    request.group = key;
    request.seed = options_.seed;
    request.prompt = group.prompt_ids;
    const SamplePrefix& prefix = sample.work.prefix;
    request.prefix = {prefix.ids, prefix.logprobs, prefix.versions, prefix.kv_oldest};
    request.sampling = group.head.eval ? stage.eval : stage.train;
    if (request.sampling.stop_ids.empty()) request.sampling.stop_ids = policy_.format.stop_ids();
    if (const auto queued = engine_.submit(std::move(request)); queued) {
      sample.submitted = true;
    } else {
      refused.push_back(index);
      why = queued.error();
    }
  }
  if (!refused.empty()) fail_samples(key, refused, why);
}

bool RolloutWork::advance() {
  if (engine_.idle()) {
    flush();
    return false;
  }
  generate::StepReport report = engine_.step();
  tokens_ += static_cast<std::uint64_t>(report.sampled);
  for (generate::Completion& completion : report.finished) finished(std::move(completion));
  flush();
  return true;
}

void RolloutWork::finished(generate::Completion completion) {
  const std::uint64_t key = completion.id.prompt;
  const auto group = groups_.find(key);
  if (group == groups_.end()) return;
  const auto sample = group->second.samples.find(completion.id.sample);
  if (sample == group->second.samples.end()) return;
  if (completion.finish == generate::Finish::kError)
    return fail_samples(key, {completion.id.sample}, {ErrorCode::kInternal, completion.error, ""});
  std::string text = completion.text;
  sample->second.completion = std::move(completion);
  call(key, sample->first, true, std::move(text));
}

SamplesDone& RolloutWork::outbox(std::uint64_t key, const Group& group) {
  const auto [it, fresh] = done_.try_emplace(key);
  if (fresh)
    it->second = {worker_, incarnation_, group.head.eval, group.head.evaluation, group.head.epoch, group.head.prompt, group.prompt_ids, group.prompt_text, {}};
  return it->second;
}

void RolloutWork::rewarded(std::uint64_t key, Group& group, std::uint32_t index, const EnvironmentReply& reply) {
  const auto it = group.samples.find(index);
  if (it == group.samples.end() || !it->second.completion) return;
  if (!reply.ok) return fail_samples(key, {index}, reply.error);
  if (!reply.done)
    return fail_samples(key, {index}, {ErrorCode::kInvalidArgument, "the task wants a further turn; this build trains on tasks of one turn", ""});
  const generate::Completion& completion = *it->second.completion;
  SampleResult result;
  result.id = it->second.work.id;
  result.attempt = it->second.work.attempt;
  result.ids = completion.ids;
  result.logprobs = completion.logprobs;
  result.versions = completion.versions;
  result.oldest = oldest_of(completion);
  result.finish = static_cast<std::uint8_t>(completion.finish);
  result.reward = reply.reward;
  result.text = completion.text;
  outbox(key, group).samples.push_back(std::move(result));
  forget(key, index);
}

void RolloutWork::fail_samples(std::uint64_t key, std::vector<std::uint32_t> samples, const Error& error) {
  const auto it = groups_.find(key);
  if (it == groups_.end()) return;
  const GroupWork& head = it->second.head;
  SamplesFailed message{worker_, incarnation_, head.eval, head.evaluation, head.epoch, head.prompt, {}, error};
  for (const std::uint32_t index : samples) {
    message.samples.push_back(it->second.samples.at(index).work);
    message.samples.back().prefix = {};
  }
  output_.failed(std::move(message));
  for (const std::uint32_t index : samples) forget(key, index);
}

void RolloutWork::forget(std::uint64_t key, std::uint32_t sample) {
  const auto group = groups_.find(key);
  if (group == groups_.end()) return;
  const auto it = group->second.samples.find(sample);
  if (it == group->second.samples.end()) return;
  if (it->second.submitted && !it->second.completion) (void)engine_.abort({key, sample}); // kNotFound: it has just finished
  group->second.samples.erase(it);
  if (group->second.samples.empty()) groups_.erase(group);
}

void RolloutWork::cancel(const CancelWork& order) {
  if (order.all) {
    (void)engine_.abort_all();
    groups_.clear();
    calls_.clear();
    asking_.clear();
    done_.clear();
    return;
  }
  for (const WireName& name : order.names) forget(key_of(name.eval, name.evaluation, name.id.prompt), name.id.sample);
}

void RolloutWork::drain(Duration deadline) {
  if (!drain_until_) drain_until_ = Clock::now() + deadline;
  check_deadlines();
}

void RolloutWork::check_deadlines() {
  const auto now = Clock::now();
  std::map<std::uint64_t, std::vector<std::uint32_t>> overdue;
  std::erase_if(calls_, [&](const auto& entry) {
    const Call& call = entry.second;
    if (call.deadline > now) return false;
    const auto group = groups_.find(call.group);
    if (group == groups_.end()) return true;
    if (!call.reset_only) overdue[call.group].push_back(call.sample);
    else
      for (const auto& [index, sample] : group->second.samples) overdue[call.group].push_back(index);
    return true;
  });
  const Error late{ErrorCode::kTimeout, "the environment did not answer within " + format_duration(options_.environment_deadline), ""};
  for (const auto& [key, samples] : overdue) fail_samples(key, samples, late);
  if (drain_until_ && !groups_.empty() && now >= *drain_until_) return hand_back();
  if (drain_until_ && groups_.empty() && !std::exchange(drained_sent_, true)) {
    flush();
    output_.drained(Drained{worker_, incarnation_, {}});
  }
}

// What is unfinished goes on elsewhere under the same randomness, with the tokens it has.
void RolloutWork::hand_back() {
  std::map<SampleId, generate::Completion> aborted;
  for (generate::Completion& completion : engine_.abort_all()) aborted[completion.id] = std::move(completion);
  Drained message{worker_, incarnation_, {}};
  for (auto& [key, group] : groups_) {
    GroupWork work = group.head;
    for (auto& [index, sample] : group.samples) {
      SampleWork back = sample.work;
      if (const auto it = aborted.find({key, index}); it != aborted.end()) back.prefix = wire_prefix(it->second);
      work.samples.push_back(std::move(back));
    }
    message.handed_back.push_back(std::move(work));
  }
  groups_.clear();
  calls_.clear();
  asking_.clear();
  flush();
  drained_sent_ = true;
  output_.drained(std::move(message));
}

void RolloutWork::flush() {
  if (!asking_.empty()) output_.ask(EnvironmentCalls{worker_, incarnation_, std::exchange(asking_, {})});
  for (auto& [key, message] : done_) output_.done(std::move(message));
  done_.clear();
}

RolloutGauges RolloutWork::gauges() {
  const auto now = Clock::now();
  const generate::EngineStats stats = engine_.stats();
  RolloutGauges gauges;
  gauges.worker = worker_;
  gauges.incarnation = incarnation_;
  for (const auto& [key, group] : groups_)
    for (const auto& [index, sample] : group.samples) gauges.holding.push_back({group.head.eval, group.head.evaluation, {group.head.prompt, index}});
  gauges.tokens = std::exchange(tokens_, 0);
  gauges.seconds = seconds(now - std::exchange(gauges_at_, now));
  gauges.running = stats.running;
  gauges.waiting = stats.waiting;
  gauges.kv_used = stats.pages > 0 ? static_cast<double>(stats.pages_used) / stats.pages : 0;
  gauges.preemptions = stats.preemptions;
  return gauges;
}

Result<ProbeScored> RolloutWork::score(const ScoreProbe& probe) {
  ProbeScored out{worker_, probe.version, {}, {}};
  const double temperature = options_.stages.at(static_cast<std::size_t>(probe.stage)).train.temperature;
  for (const ProbeSequence& sequence : probe.sequences) {
    TROUPE_TRY(auto prefill, engine_.score(sequence.ids, sequence.prompt_length, temperature, false));
    TROUPE_TRY(auto decode, engine_.score(sequence.ids, sequence.prompt_length, temperature, true));
    out.prefill.push_back(std::move(prefill));
    out.decode.push_back(std::move(decode));
  }
  return out;
}

} // namespace troupe::actors
