/// @file
/// Pulls published weights into memory of its own, checks every checksum, and only then offers them.
#pragma once

#include <cstddef>
#include <functional>
#include <memory>
#include <utility>
#include <vector>

#include "actors/messages/rollout.h"
#include "actors/runtime/work_thread.h"
#include "comm/shared_file.h"
#include "comm/transfer.h"
#include "model/model.h"

namespace troupe::actors {

/// One pull at a time, on a thread of its own, so that decoding goes on meanwhile. On the rank's machine the slot is mapped and copied, from
/// another machine it is read by UCX. Cost: one copy and one checksum of the bytes; memory for one set of weights, kept for the next pull.
class WeightPuller {
 public:
  /// Called on the puller's thread with the bytes of the slot, laid out as the ticket says, or with why there are none.
  using Pulled = std::function<void(const WeightTicket&, Result<std::shared_ptr<const comm::HugeBuffer>>)>;

  [[nodiscard]] static Result<std::unique_ptr<WeightPuller>> start(const comm::TransferOptions& options);
  /// Errors (through `done`): kTimeout, kUnavailable (rank gone, lease expired), kCorrupt (a checksum differs).
  void pull(const WeightTicket& ticket, Pulled done);

 private:
  explicit WeightPuller(std::unique_ptr<comm::TransferEngine> engine) : engine_(std::move(engine)) {}
  [[nodiscard]] Result<std::shared_ptr<const comm::HugeBuffer>> read(const WeightTicket& ticket);
  [[nodiscard]] const comm::SharedMapping* map(const comm::SharedFile& file);

  std::unique_ptr<comm::TransferEngine> engine_;
  std::vector<std::pair<comm::SharedFile, comm::SharedMapping>> mappings_; // of the rank's slots
  std::shared_ptr<comm::HugeBuffer> buffer_; // used again once nobody else holds it
  WorkThread thread_{4, {}};
};

/// Copies checked bytes into the model's parameters. Nothing is copied unless every tensor fits.
/// Errors: kInvalidArgument naming a tensor that is missing, extra or of another shape.
[[nodiscard]] Status install_weights(model::Model& model, const WeightTicket& ticket, std::span<const std::byte> bytes);

} // namespace troupe::actors
