/// @file
/// The way of a worker or an agent to the head of its run, whoever that is now.
#pragma once

#include <caf/actor.hpp>

#include <cstdint>
#include <filesystem>
#include <memory>
#include <string>

#include "actors/runtime/frame.h"
#include "actors/runtime/system.h"

namespace troupe::actors {

/// Where the head of a run listens: `<run.dir>/head.json`, replaced by every supervisor.
struct HeadPoint {
  std::uint64_t term = 0;
  std::string host;
  std::uint16_t port = 0;
};
[[nodiscard]] Status write_head_point(const std::filesystem::path& run_folder, const HeadPoint& point);
/// Errors: kNotFound, kCorrupt.
[[nodiscard]] Result<HeadPoint> read_head_point(const std::filesystem::path& run_folder);

/// `actor()` passes on everything it is sent, in order, and drops it while there is no head. When the head is lost, `owner` is sent HeadLost;
/// a thread then looks for the head of a later term, connects to it, and sends HeadFound. On a machine that joined there is no run folder to
/// look in: the head is looked for where it was, and may be of the same term, after a cut link (it decides whether it still knows us).
class HeadLink {
 public:
  /// Connects to the frame's head. Errors: those of System::connect.
  [[nodiscard]] static Result<std::unique_ptr<HeadLink>> open(System& system, const WorkerFrame& frame);
  ~HeadLink();
  HeadLink(const HeadLink&) = delete;
  HeadLink& operator=(const HeadLink&) = delete;

  [[nodiscard]] const caf::actor& actor() const;
  /// To be called once; before it nobody is told of a lost head.
  void set_owner(caf::actor owner);

 private:
  struct Shared;
  explicit HeadLink(std::unique_ptr<Shared> shared);
  std::unique_ptr<Shared> shared_;
};

} // namespace troupe::actors
