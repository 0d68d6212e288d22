/// @file
/// What a worker process is told at its start: one JSON text on descriptor 3. Nothing secret goes through argv or the environment.
#pragma once

#include <cstdint>
#include <string>

#include "actors/runtime/credentials.h"
#include "base/file.h"
#include "base/result.h"
#include "comm/transfer.h"

namespace troupe::actors {

inline constexpr int kFrameDescriptor = 3;   ///< The frame.
inline constexpr int kWeightsDescriptor = 4; ///< The rank's weight slots: a memory file that the node agent owns.
inline constexpr int kProgressDescriptor = 5; ///< The page of WorkProgress.

struct WorkerFrame {
  std::string run_id;
  std::string run_folder; ///< Absolute.
  std::uint64_t term = 0;
  std::uint32_t epoch = 0;
  std::string name; ///< "rollout/3".
  std::string role; ///< "rollout".
  std::int32_t index = 0;
  std::uint32_t incarnation = 0;
  std::string node;
  std::string head_host;
  std::uint16_t head_port = 0;
  Credential credential;
  bool joined = false;       ///< Of a machine that joined: it finds a new head at the same address.
  std::string bulk_device = "lo"; ///< Network interface of weight transfers; the loopback device of a run on one machine.
  std::int64_t lease_ms = 5000;      ///< Without the head for this long, a worker stops at its next edge.
  std::int64_t head_wait_ms = 60000; ///< Without the head for this long, an agent kills its workers and exits.
  std::string experiment; ///< The resolved config as JSON.
};

/// How weights travel: over shared memory too on one machine, by tcp alone as soon as others may join.
[[nodiscard]] comm::TransferOptions weight_transfer(const WorkerFrame& frame);

[[nodiscard]] std::string encode_frame(const WorkerFrame& frame);
/// Errors: kCorrupt naming the field.
[[nodiscard]] Result<WorkerFrame> decode_frame(std::string_view text);

/// A memory file that holds the text, positioned at its start. Errors: as system_error.
[[nodiscard]] Result<FileDescriptor> frame_file(std::string_view text);
/// Reads and closes descriptor 3. Errors: kInvalidArgument when the process was not started by an agent.
[[nodiscard]] Result<WorkerFrame> read_frame();

} // namespace troupe::actors
