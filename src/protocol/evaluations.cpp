#include "protocol/evaluations.h"

namespace troupe::protocol {

using rollout::SampleName;
using rollout::WorkKind;

Status Evaluations::add(const rollout::Evaluate& request) {
  if (queue_.size() >= kQueueMax) {
    return troupe::fail(ErrorCode::kResourceExhausted, "evaluation " + std::to_string(request.evaluation) +
                                                           " came while " + std::to_string(kQueueMax) + " others wait");
  }
  if (request.problems > kProblemsMax) {
    return troupe::fail(ErrorCode::kInvalidArgument, "an evaluation of " + std::to_string(request.problems) +
                                                        " problems exceeds " + std::to_string(kProblemsMax));
  }
  Evaluation& evaluation = queue_.emplace_back();
  evaluation.request = request;
  evaluation.problems.resize(request.problems);
  for (std::uint64_t i = 0; i < request.problems; ++i) evaluation.waiting.insert(evaluation.waiting.end(), i);
  dispatched += request.problems;
  return {};
}

std::uint32_t Evaluations::assign(std::uint64_t index, WorkerId owner, TimePoint now) {
  Evaluation& evaluation = queue_.front();
  EvaluationProblem& problem = evaluation.problems.at(index);
  evaluation.waiting.erase(index);
  problem.state = SampleState::kAssigned;
  problem.owner = owner;
  problem.last_news = now;
  return problem.attempt;
}

EvaluationProblem* Evaluations::find(const SampleName& name) {
  Evaluation* evaluation = active();
  if (name.kind != WorkKind::kEvaluation || evaluation == nullptr ||
      evaluation->request.evaluation != name.evaluation || name.id.prompt >= evaluation->problems.size()) {
    return nullptr;
  }
  return &evaluation->problems[name.id.prompt];
}

bool Evaluations::complete(const SampleName& name, WorkerId from, double reward, std::optional<WorkerId>& obsolete) {
  EvaluationProblem* problem = find(name);
  if (problem == nullptr || problem->state == SampleState::kDone) return false;
  if (problem->state == SampleState::kAssigned && problem->owner != from) obsolete = problem->owner;
  problem->reward = reward;
  queue_.front().waiting.erase(name.id.prompt);
  ++delivered;
  finish(queue_.front(), *problem);
  return true;
}

bool Evaluations::fail(const SampleName& name, std::uint32_t attempt, WorkerId owner) {
  EvaluationProblem* problem = find(name);
  if (problem == nullptr || problem->state != SampleState::kAssigned || problem->attempt != attempt ||
      problem->owner != owner)
    return false;
  if (problem->attempt >= kAttempts) {
    problem->failed = true;
    ++cancelled;
    finish(queue_.front(), *problem);
    return true;
  }
  ++problem->attempt;
  problem->state = SampleState::kWaiting;
  queue_.front().waiting.insert(name.id.prompt);
  return true;
}

bool Evaluations::give_back(const SampleName& name, std::uint32_t attempt, WorkerId owner) {
  EvaluationProblem* problem = find(name);
  if (problem == nullptr || problem->state != SampleState::kAssigned || problem->attempt != attempt ||
      problem->owner != owner)
    return false;
  problem->state = SampleState::kWaiting;
  queue_.front().waiting.insert(name.id.prompt);
  return true;
}

void Evaluations::news(const SampleName& name, WorkerId from, TimePoint now) {
  EvaluationProblem* problem = find(name);
  if (problem != nullptr && problem->state == SampleState::kAssigned && problem->owner == from)
    problem->last_news = now;
}

std::optional<rollout::EvaluationDone> Evaluations::take_finished() {
  const Evaluation* evaluation = active();
  if (evaluation == nullptr || evaluation->done < evaluation->problems.size() || !evaluation->version)
    return std::nullopt;
  rollout::EvaluationDone result;
  result.evaluation = evaluation->request.evaluation;
  result.version = *evaluation->version;
  for (const EvaluationProblem& problem : evaluation->problems) {
    ++(problem.failed ? result.failed : result.answered);
    result.reward_sum += problem.reward;
  }
  queue_.pop_front();
  return result;
}

std::vector<std::uint32_t> Evaluations::clear() {
  std::vector<std::uint32_t> dropped;
  for (const Evaluation& evaluation : queue_) dropped.push_back(evaluation.request.evaluation);
  cancelled += in_flight();
  queue_.clear();
  return dropped;
}

void Evaluations::finish(Evaluation& evaluation, EvaluationProblem& problem) {
  problem.state = SampleState::kDone;
  ++evaluation.done;
}

} // namespace troupe::protocol
