/// @file
/// The thread that owns the engine, and what others see of it.
#pragma once

#include <condition_variable>
#include <cstdint>
#include <memory>
#include <mutex>
#include <optional>
#include <thread>
#include <vector>

#include "base/result.h"
#include "base/units.h"
#include "generate/engine.h"

namespace troupe::serve {

/// A token as it was sampled.
struct Token {
  std::int32_t id = 0;
  std::vector<generate::Alternative> alternatives; ///< When asked for: the token itself, then the most likely ones.
};

/// One completion on its way. Shared by who asked and the engine's thread; thread-safe.
class Generation {
 public:
  /// Waits until there are tokens that were not taken yet, or it is over, or `timeout`. True: over, and everything is taken.
  bool take(std::vector<Token>& tokens, Duration timeout);
  /// After take() said that it is over.
  [[nodiscard]] const generate::Completion& completion() const { return *completion_; }
  /// Nobody wants it any more: it is aborted at the next step.
  void cancel();

 private:
  friend class Generator;
  std::mutex mutex_;
  std::condition_variable changed_;
  std::vector<Token> tokens_;
  std::size_t passed_on_ = 0; // of the engine's tokens; its thread's alone
  std::optional<generate::Completion> completion_;
  bool cancelled_ = false;
};

/// Batches the requests of everybody continuously in one engine.
class Generator {
 public:
  /// `model` and `tokenizer` outlive it. `requests_max`: see ServeOptions. `threads` of the arithmetic; 0: as many as there are.
  Generator(model::Model& model, const data::Tokenizer& tokenizer, const generate::EngineOptions& options, int requests_max, int threads);
  /// Aborts what runs.
  ~Generator();

  /// Hands over a request with all its samples; the ids are set here. Blocking: until the engine has looked at it (a step at most).
  /// Errors: kResourceExhausted (requests_max), kDraining, kInvalidArgument (what the engine refuses: all are taken back then).
  [[nodiscard]] Result<std::vector<std::shared_ptr<Generation>>> submit(std::vector<generate::Request> requests);

  /// Refuses new requests from now on.
  void drain();
  [[nodiscard]] bool draining() const;
  /// Cancels everything that waits or runs.
  void abort_all();
  /// Waits until nothing runs. False: the deadline came first.
  bool wait_idle(Duration deadline);

  struct Figures {
    generate::EngineStats engine;
    int requests = 0; ///< Completions that wait or run.
    int requests_max = 0;
    double busy_seconds = 0; ///< In steps.
  };
  [[nodiscard]] Figures figures() const;
  /// Tokens that the whole cache holds.
  [[nodiscard]] int capacity_tokens() const { return capacity_tokens_; }

 private:
  struct Submission;
  void run(int threads);
  void accept(Submission& submission);
  void step();
  void collect_cancelled();
  void pass_on(std::uint64_t number, const generate::Completion& completion, bool over);

  generate::Engine engine_; // the thread's alone
  const int requests_max_;
  const int capacity_tokens_;
  std::vector<std::pair<std::uint64_t, std::shared_ptr<Generation>>> running_; // the thread's alone

  mutable std::mutex mutex_;
  std::condition_variable wake_, idle_;
  std::vector<Submission*> inbox_;
  Figures figures_;
  int held_ = 0; // completions submitted and not over
  bool draining_ = false, ending_ = false, abort_ = false;
  std::uint64_t next_number_ = 1;
  std::thread thread_;
};

} // namespace troupe::serve
