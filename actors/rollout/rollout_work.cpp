#include "actors/rollout/rollout_work.h"

#include <algorithm>
#include <utility>

#include "actors/rollout/episode.h"
#include "base/log.h"

namespace troupe::actors {
namespace {

constexpr std::uint64_t kEvalBit = std::uint64_t{1} << 63;

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
  for (SampleWork& sample : work.samples) {
    std::map<std::uint32_t, Sample>& held = groups_[key].samples;
    const auto it = held.find(sample.id.sample);
    if (it != held.end() && it->second.work.attempt >= sample.attempt) continue;
    if (it != held.end()) forget(key, sample.id.sample);
    Sample& fresh = groups_[key].samples[sample.id.sample]; // forgetting the last one forgets the group
    fresh.turns = std::move(sample.prefix.turns);
    fresh.work = std::move(sample);
    fresh.episode = next_episode_++;
  }
  Group& group = groups_[key];
  work.samples.clear();
  group.head = std::move(work);
  if (group.rendered) return submit(key, group);
  if (!std::exchange(group.asked, true)) call(key, group.samples.begin()->first, {}); // the prompt is the same for all samples
}

void RolloutWork::call(std::uint64_t key, std::uint32_t sample, std::vector<data::Message> replies) {
  const Group& group = groups_.at(key);
  EnvironmentCall out;
  out.call = next_call_++;
  out.episode = group.samples.at(sample).episode;
  out.eval = group.head.eval;
  out.problem = group.head.prompt;
  out.replies = std::move(replies);
  calls_[out.call] = {key, sample, out.replies.empty(), Clock::now() + options_.environment_deadline};
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
    if (call.begins) begin(call.group, group->second, reply);
    else rewarded(call.group, group->second, call.sample, reply);
  }
  flush();
}

void RolloutWork::begin(std::uint64_t key, Group& group, EnvironmentReply& reply) {
  const auto fail_all = [&](const Error& error) {
    std::vector<std::uint32_t> all;
    for (const auto& [index, sample] : group.samples) all.push_back(index);
    fail_samples(key, all, error);
  };
  if (!reply.ok) return fail_all(reply.error);
  std::vector<data::Message>& messages = group.prompt.messages;
  for (data::Message& message : reply.messages) {
    group.prompt_text += (messages.empty() ? "" : "\n") + message.content;
    messages.push_back(std::move(message));
  }
  group.prompt.tools = std::move(reply.tools);
  if (!group.prompt.tools.empty() && !policy_.format.is_template())
    return fail_all({ErrorCode::kInvalidConfig, "the task offers tools, but the prompt format \"" + policy_.format.name() + "\" cannot show any; use a model whose chat template can (tokenizer.format = \"template\")", ""});
  data::ChatExtras extras;
  extras.now = data::kTrainingDate;
  extras.tools = group.prompt.tools;
  auto rendered = policy_.format.render(messages, true, policy_.tokenizer, extras);
  if (!rendered) return fail_all(rendered.error());
  group.prompt.ids = std::move(rendered->ids);
  group.rendered = true;
  submit(key, group);
}

void RolloutWork::submit(std::uint64_t key, Group& group) {
  std::vector<std::uint32_t> refused;
  Error why;
  for (auto& [index, sample] : group.samples) {
    if (sample.submitted) continue;
    SamplePrefix prefix = std::move(sample.work.prefix);
    prefix.turns = sample.turns;
    sample.work.prefix = {};
    if (const auto queued = submit(key, group, sample, prefix); !queued) {
      refused.push_back(index);
      why = queued.error();
    }
  }
  if (!refused.empty()) fail_samples(key, refused, why);
}

Status RolloutWork::submit(std::uint64_t key, const Group& group, Sample& sample, const SamplePrefix& prefix) {
  const RolloutStage& stage = options_.stages.at(static_cast<std::size_t>(group.head.stage));
  generate::Request request = request_of(group.prompt.ids, prefix);
  request.id = {key, sample.work.id.sample};
  request.group = key;
  request.seed = options_.seed;
  request.sampling = group.head.eval ? stage.eval : stage.train;
  if (request.sampling.stop_ids.empty()) request.sampling.stop_ids = policy_.format.stop_ids();
  TROUPE_TRY_STATUS(engine_.submit(std::move(request)));
  sample.submitted = true;
  return {};
}

void RolloutWork::reset() {
  cancel({true, {}});
  drain_until_.reset();
  drained_sent_ = paused_ = false;
}

bool RolloutWork::advance() {
  if (engine_.idle() || paused_) {
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
  sample->second.completion = std::move(completion);
  Heard heard = hear(sample->second.turns, group->second.prompt, *sample->second.completion, policy_);
  if (tell_problems(key, group->second, sample->second, heard.problems)) return;
  std::vector<data::Message> replies = sample->second.turns.replies;
  replies.push_back(std::move(heard.message));
  call(key, sample->first, std::move(replies));
}

SamplesDone& RolloutWork::outbox(std::uint64_t key, const Group& group) {
  const auto [it, fresh] = done_.try_emplace(key);
  if (fresh)
    it->second = {worker_, incarnation_, group.head.eval, group.head.evaluation, group.head.epoch, group.head.prompt, group.prompt.ids, group.prompt_text, {}};
  return it->second;
}

void RolloutWork::rewarded(std::uint64_t key, Group& group, std::uint32_t index, const EnvironmentReply& reply) {
  const auto it = group.samples.find(index);
  if (it == group.samples.end() || !it->second.completion) return;
  Sample& sample = it->second;
  if (!reply.ok) return fail_samples(key, {index}, reply.error);
  if (!reply.done && goes_on(key, group, sample, reply.messages, reply.reward, false)) return;
  SampleResult result = result_of(sample.turns, *sample.completion);
  result.id = sample.work.id;
  result.attempt = sample.work.attempt;
  result.reward += reply.reward;
  if (!reply.done) result.finish = static_cast<std::uint8_t>(generate::Finish::kLength); // the task would have gone on
  result.text = sample.turns.ids.empty() ? sample.completion->text : policy_.tokenizer.decode(result.ids);
  outbox(key, group).samples.push_back(std::move(result));
  forget(key, index);
}

// The next turn, unless there were enough of them or the conversation no longer fits: then the sample ends here.
bool RolloutWork::goes_on(std::uint64_t key, const Group& group, Sample& sample, std::span<const data::Message> answer, double reward, bool error_turn) {
  if (sample.turns.replies.size() + sample.turns.errors + 1 >= static_cast<std::size_t>(options_.turns_max)) return false;
  SamplePrefix next{sample.turns, {}, {}, {}, {}};
  if (!next_turn(next.turns, group.prompt, *sample.completion, answer, reward, policy_, engine_.version(), error_turn)) return false;
  if (const auto queued = submit(key, group, sample, next); !queued) return false;
  sample.turns = std::move(next.turns);
  sample.completion.reset();
  return true;
}

// A call of a tool that is cut off or malformed never reaches the task: the policy is told what is wrong with it, in a turn of its own.
bool RolloutWork::tell_problems(std::uint64_t key, const Group& group, Sample& sample, const std::vector<std::string>& problems) {
  if (problems.empty()) return false;
  std::string text = "error: ";
  for (const std::string& problem : problems) text += (&problem == &problems.front() ? "" : "; ") + problem;
  for (const char* role : {"tool", "user"}) { // not every template knows tools
    const data::Message told{role, text, {}};
    if (goes_on(key, group, sample, std::span(&told, 1), 0, true)) return true;
  }
  return false;
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
    if (!call.begins) overdue[call.group].push_back(call.sample);
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
      if (const auto it = aborted.find({key, index}); it != aborted.end()) back.prefix = prefix_of(std::move(sample.turns), it->second);
      else if (sample.completion) back.prefix = prefix_of(std::move(sample.turns), *sample.completion);
      else if (!sample.submitted) back.prefix.turns = std::move(sample.turns);
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
  gauges.drafts = stats.drafts - std::exchange(drafts_seen_, stats.drafts);
  gauges.drafts_accepted = stats.drafts_accepted - std::exchange(drafts_accepted_seen_, stats.drafts_accepted);
  return gauges;
}

Result<ProbeScored> RolloutWork::score(const ScoreProbe& probe) {
  ProbeScored out{worker_, probe.id, probe.version, {}, {}};
  const double temperature = options_.stages.at(static_cast<std::size_t>(probe.stage)).train.temperature;
  std::vector<generate::ScoreRequest> requests;
  for (const ProbeSequence& sequence : probe.sequences) requests.push_back({sequence.ids, sequence.prompt_length});
  TROUPE_TRY(out.prefill, engine_.score(requests, temperature, false));
  TROUPE_TRY(out.decode, engine_.score(requests, temperature, true));
  return out;
}

} // namespace troupe::actors
