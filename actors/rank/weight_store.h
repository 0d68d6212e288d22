/// @file
/// The weight store of a rank: two version-tagged slots in a memory file that the node agent made, leased to readers.
#pragma once

#include <caf/actor.hpp>

#include <array>
#include <functional>
#include <memory>
#include <vector>

#include "actors/messages/rank.h"
#include "actors/runtime/work_thread.h"
#include "base/file.h"
#include "comm/shared_file.h"
#include "comm/transfer.h"
#include "model/model.h"
#include "protocol/weight_publication.h"

namespace troupe::actors {

/// Where the tensors of a model lie in a slot (64-byte aligned), and the slot's length.
struct SlotLayout {
  std::vector<TensorEntry> tensors;
  std::uint64_t bytes = 0;
};
[[nodiscard]] SlotLayout slot_layout(const model::Model& model);

/// Hosts protocol::WeightPublication. All calls come from the rank's control actor; copies run on its work thread, in order with the
/// optimizer steps, and checksums on a thread of the store's own, beside the next step.
class WeightStore {
 public:
  struct Host {
    caf::actor self;                    ///< The rank's control actor.
    caf::actor head;
    WorkThread* work = nullptr;
    const model::Model* model = nullptr; ///< Read on the work thread.
    std::function<PolicyVersion()> version; ///< Of the model; called on the work thread.
  };

  /// Takes the memory file on `descriptor`, sizes and maps it. Errors: as system_error; UCX's.
  [[nodiscard]] static Result<std::unique_ptr<WeightStore>> create(int descriptor, Host host, std::uint32_t epoch,
                                                                   const protocol::PublicationOptions& options, const comm::TransferOptions& transfer);
  ~WeightStore();
  WeightStore(const WeightStore&) = delete;
  WeightStore& operator=(const WeightStore&) = delete;

  void handle(const protocol::publication::Event& event);
  void filled(const SlotFilled& message);

 private:
  struct Slot {
    comm::ExposedRegion region;
    comm::SharedFile file;
    std::vector<TensorEntry> tensors; // with checksums once filled
  };
  WeightStore(Host host, std::byte* data, std::size_t bytes) : host_(std::move(host)), data_(data), bytes_(bytes) {}
  Status expose(std::uint32_t slot);
  void fill(const protocol::publication::FillSlot& order);
  void grant(const protocol::publication::Grant& grant);
  void refuse(const protocol::publication::Refuse& refusal);
  void published(PolicyVersion version, bool ok, const Error& error);
  [[nodiscard]] std::span<std::byte> memory(std::uint32_t slot) const { return {data_ + slot * layout_.bytes, layout_.bytes}; }

  Host host_;
  FileDescriptor memory_file_; // open: readers of this machine map it
  std::byte* data_;
  std::size_t bytes_;
  SlotLayout layout_;
  std::unique_ptr<comm::TransferEngine> engine_;
  std::array<Slot, protocol::WeightPublication::kSlots> slots_;
  std::unique_ptr<protocol::WeightPublication> core_;
  double fill_seconds_ = 0;
  WorkThread hasher_{8, {}};
};

} // namespace troupe::actors
