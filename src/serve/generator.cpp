#include "serve/generator.h"

#include <algorithm>
#include <chrono>
#include <utility>

#include "kernels/isa.h"

namespace troupe::serve {

using Clock = std::chrono::steady_clock;

bool Generation::take(std::vector<Token>& tokens, Duration timeout) {
  std::unique_lock lock(mutex_);
  changed_.wait_for(lock, timeout, [&] { return !tokens_.empty() || completion_; });
  for (Token& token : tokens_) tokens.push_back(std::move(token));
  tokens_.clear();
  return completion_.has_value();
}

void Generation::cancel() {
  const std::scoped_lock lock(mutex_);
  cancelled_ = true;
}

struct Generator::Submission {
  std::vector<generate::Request> requests;
  std::vector<std::shared_ptr<Generation>> generations;
  Status status;
  bool answered = false;
  std::condition_variable answer;
};

Generator::Generator(model::Model& model, const data::Tokenizer& tokenizer, const generate::EngineOptions& options, int requests_max, int threads)
    : engine_(model, &tokenizer, options), requests_max_(requests_max), capacity_tokens_(engine_.stats().pages * options.page_tokens) {
  figures_.requests_max = requests_max;
  thread_ = std::thread([this, threads] { run(threads); });
}

Generator::~Generator() {
  {
    const std::scoped_lock lock(mutex_);
    draining_ = ending_ = true;
  }
  wake_.notify_all();
  thread_.join();
}

Result<std::vector<std::shared_ptr<Generation>>> Generator::submit(std::vector<generate::Request> requests) {
  Submission submission;
  const int count = static_cast<int>(requests.size());
  std::unique_lock lock(mutex_);
  if (draining_) return fail(ErrorCode::kDraining, "the server is ending and takes no new requests");
  if (held_ + count > requests_max_)
    return fail(ErrorCode::kResourceExhausted, std::to_string(held_) + " completions wait or run, and " + std::to_string(requests_max_) + " are the most (--requests-max)");
  for (generate::Request& request : requests) {
    request.id = {next_number_++, 0};
    submission.generations.push_back(std::make_shared<Generation>());
  }
  submission.requests = std::move(requests);
  held_ += count;
  inbox_.push_back(&submission);
  wake_.notify_one();
  submission.answer.wait(lock, [&] { return submission.answered; });
  if (!submission.status) return tl::unexpected(std::move(submission.status).error());
  return std::move(submission.generations);
}

void Generator::drain() {
  const std::scoped_lock lock(mutex_);
  draining_ = true;
}

void Generator::abort_all() {
  const std::scoped_lock lock(mutex_);
  abort_ = true;
  wake_.notify_one();
}

bool Generator::draining() const {
  const std::scoped_lock lock(mutex_);
  return draining_;
}

bool Generator::wait_idle(Duration deadline) {
  std::unique_lock lock(mutex_);
  return idle_.wait_for(lock, deadline, [&] { return held_ == 0; });
}

Generator::Figures Generator::figures() const {
  const std::scoped_lock lock(mutex_);
  Figures out = figures_;
  out.requests = held_;
  return out;
}

void Generator::run(int threads) {
  if (threads > 0) kernels::set_max_threads(threads);
  for (;;) {
    std::vector<Submission*> arrived;
    bool abort = false;
    {
      std::unique_lock lock(mutex_);
      wake_.wait(lock, [&] { return ending_ || abort_ || !inbox_.empty() || !running_.empty(); });
      abort = std::exchange(abort_, false);
      if (ending_) {
        for (Submission* submission : inbox_) {
          submission->status = fail(ErrorCode::kDraining, "the server has ended");
          submission->answered = true;
          submission->answer.notify_one();
        }
        break;
      }
      arrived = std::exchange(inbox_, {});
    }
    for (Submission* submission : arrived) accept(*submission);
    if (abort)
      for (const generate::Completion& completion : engine_.abort_all()) pass_on(completion.id.prompt, completion, true);
    collect_cancelled();
    if (!engine_.idle()) step();
    const std::scoped_lock lock(mutex_);
    figures_.engine = engine_.stats();
  }
  for (const generate::Completion& completion : engine_.abort_all()) pass_on(completion.id.prompt, completion, true);
}

void Generator::accept(Submission& submission) {
  std::vector<SampleId> taken;
  Status status;
  for (const generate::Request& request : submission.requests) {
    status = engine_.submit(request);
    if (!status) break;
    taken.push_back(request.id);
  }
  if (!status)
    for (const SampleId id : taken) (void)engine_.abort(id);
  const std::scoped_lock lock(mutex_);
  if (status)
    for (std::size_t i = 0; i < taken.size(); ++i) running_.emplace_back(taken[i].prompt, submission.generations[i]);
  else
    held_ -= static_cast<int>(submission.requests.size());
  submission.status = std::move(status);
  submission.answered = true;
  submission.answer.notify_one();
  if (held_ == 0) idle_.notify_all();
}

void Generator::step() {
  const auto begin = Clock::now();
  generate::StepReport report = engine_.step();
  for (const generate::Completion& completion : report.finished) pass_on(completion.id.prompt, completion, true);
  for (const auto& [number, generation] : running_)
    if (const generate::Completion* now = engine_.peek({number, 0}); now != nullptr && now->ids.size() > generation->passed_on_) pass_on(number, *now, false);
  const std::scoped_lock lock(mutex_);
  figures_.busy_seconds += std::chrono::duration<double>(Clock::now() - begin).count();
}

void Generator::collect_cancelled() {
  std::vector<std::uint64_t> cancelled;
  for (const auto& [number, generation] : running_) {
    const std::scoped_lock lock(generation->mutex_);
    if (generation->cancelled_) cancelled.push_back(number);
  }
  for (const std::uint64_t number : cancelled)
    if (const auto completion = engine_.abort({number, 0})) pass_on(number, *completion, true);
}

void Generator::pass_on(std::uint64_t number, const generate::Completion& completion, bool over) {
  const auto found = std::find_if(running_.begin(), running_.end(), [&](const auto& entry) { return entry.first == number; });
  if (found == running_.end()) return;
  Generation& generation = *found->second;
  {
    const std::scoped_lock lock(generation.mutex_);
    for (std::size_t& i = generation.passed_on_; i < completion.ids.size(); ++i)
      generation.tokens_.push_back({completion.ids[i], i < completion.alternatives.size() ? completion.alternatives[i] : std::vector<generate::Alternative>{}});
    if (over) generation.completion_ = completion;
  }
  generation.changed_.notify_all();
  if (!over) return;
  running_.erase(found);
  const std::scoped_lock lock(mutex_);
  if (--held_ == 0) idle_.notify_all();
}

} // namespace troupe::serve
