/// @file
/// The only writer of a run's records: metrics.jsonl, TensorBoard events, samples.jsonl, events.jsonl, the progress line, summary.json.
#pragma once

#include <atomic>
#include <chrono>
#include <filesystem>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "actors/messages/rollout.h"
#include "actors/messages/worker.h"
#include "actors/runtime/work_thread.h"
#include "actors/supervisor/options.h"
#include "base/result.h"
#include "observe/console.h"
#include "observe/jsonl.h"
#include "observe/memory.h"
#include "observe/metrics.h"
#include "observe/summary.h"
#include "observe/tensorboard.h"
#include "protocol/types.h"

namespace troupe::actors {

/// Takes copies and writes them on a thread of its own, bounded; what does not fit is counted. Only a step's line of metrics.jsonl is written at
/// once: the control log counts the step next, and a step that it counts has its line, whatever dies in between.
class Observer {
 public:
  [[nodiscard]] static Result<std::unique_ptr<Observer>> open(const SupervisorOptions& options);

  void step(observe::MetricBatch batch, observe::Progress progress);
  /// The step of the newest line of metrics.jsonl, 0 without one.
  [[nodiscard]] std::uint64_t last_step() const;
  void samples(std::vector<observe::SampleRecord> records);
  void event(std::string event, std::string actor, nlohmann::json fields);
  /// A line for people, above the progress line, and an event.
  void say(std::string line);
  void progress(observe::Progress progress);
  /// A piece of the log of a worker on another machine, at its place in logs/.
  void log(protocol::WorkerId worker, std::uint64_t offset, std::string text);
  /// The processes whose memory counts; sampled each second by `sample_memory`.
  void sample_memory(std::vector<pid_t> pids);
  [[nodiscard]] double seconds_since_start() const;
  /// Writes summary.json and the closing table after everything before it. Blocking.
  void close(observe::Summary summary);

 private:
  struct Sinks {
    observe::JsonlWriter metrics; ///< The head's thread; the others: thread_ only.
    observe::JsonlWriter samples, events;
    std::optional<observe::TensorboardWriter> tensorboard;
  };
  Observer(const SupervisorOptions& options, Sinks sinks);
  void post(WorkThread::Command command);
  void complain(const Status& status);

  std::filesystem::path folder_;
  Sinks sinks_;
  observe::ProgressLine line_;      // thread only, as the next
  observe::MemorySampler memory_;
  std::atomic<bool> complained_{false};
  std::chrono::steady_clock::time_point start_ = std::chrono::steady_clock::now();
  std::atomic<std::uint64_t> dropped_{0};
  std::unique_ptr<WorkThread> thread_;
};

} // namespace troupe::actors
