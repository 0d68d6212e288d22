#include "actors/rank/weight_store.h"

#include <caf/all.hpp>
#include <sys/mman.h>
#include <unistd.h>

#include <chrono>
#include <cstring>

#include "actors/messages/all.h"
#include "base/file.h"
#include "base/hash.h"
#include "base/units.h"
#include "base/log.h"

namespace troupe::actors {
namespace {

namespace pub = protocol::publication;
using Clock = std::chrono::steady_clock;

constexpr std::uint64_t kAlignment = 64; // one cache line
constexpr std::uint64_t kPage = 4096;
std::uint64_t aligned(std::uint64_t bytes, std::uint64_t to) { return (bytes + to - 1) / to * to; }

template <class... F>
struct Overloaded : F... {
  using F::operator()...;
};

} // namespace

SlotLayout slot_layout(const model::Model& model) {
  SlotLayout layout;
  for (const model::Parameter& parameter : model.parameters()) {
    TensorEntry entry;
    entry.name = parameter.name;
    entry.dtype = "F32";
    entry.shape = parameter.value.sizes().vec();
    entry.offset = layout.bytes;
    entry.bytes = static_cast<std::uint64_t>(parameter.value.numel()) * sizeof(float);
    layout.bytes += aligned(entry.bytes, kAlignment);
    layout.tensors.push_back(std::move(entry));
  }
  layout.bytes = aligned(layout.bytes, kPage); // a slot can be mapped alone
  return layout;
}

Result<std::unique_ptr<WeightStore>> WeightStore::create(int descriptor, Host host, std::uint32_t epoch, const protocol::PublicationOptions& options,
                                                         const comm::TransferOptions& transfer) {
  FileDescriptor fd(descriptor);
  SlotLayout layout = slot_layout(*host.model);
  const std::size_t bytes = layout.bytes * protocol::WeightPublication::kSlots;
  if (::ftruncate(fd.get(), static_cast<off_t>(bytes)) != 0)
    return tl::unexpected(system_error("reserve " + format_bytes(bytes) + " in", "the memory file for weights", errno));
  void* data = ::mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd.get(), 0);
  if (data == MAP_FAILED) return tl::unexpected(system_error("map", "the memory file for weights", errno));
  std::unique_ptr<WeightStore> store(new WeightStore(std::move(host), static_cast<std::byte*>(data), bytes));
  store->layout_ = std::move(layout);
  for (std::uint32_t slot = 0; slot < store->slots_.size(); ++slot) {
    TROUPE_TRY(store->slots_[slot].file, comm::share_file(fd.get(), slot * store->layout_.bytes, store->layout_.bytes));
  }
  store->memory_file_ = std::move(fd);
  TROUPE_TRY(store->engine_, comm::TransferEngine::start(transfer));
  store->core_ = std::make_unique<protocol::WeightPublication>(options, epoch);
  for (std::uint32_t slot = 0; slot < store->slots_.size(); ++slot) TROUPE_TRY_STATUS(store->expose(slot));
  return store;
}

WeightStore::~WeightStore() {
  for (Slot& slot : slots_) slot.region = {};
  ::munmap(data_, bytes_);
}

Status WeightStore::expose(std::uint32_t slot) {
  slots_[slot].region = {}; // keys of the earlier registration stop working here
  TROUPE_TRY(slots_[slot].region, engine_->expose(memory(slot).data(), memory(slot).size()));
  return {};
}

void WeightStore::handle(const pub::Event& event) {
  const auto now = Clock::now();
  for (const pub::Effect& effect : core_->handle(event, now)) {
    std::visit(Overloaded{
                   [&](const pub::RenewSlot& e) {
                     if (const auto done = expose(e.slot); !done) log_error(done.error().to_string());
                   },
                   [&](const pub::FillSlot& e) { fill(e); },
                   [&](const pub::Ready& e) { published(e.version, true, {}); },
                   [&](const pub::Rejected& e) { published(e.version, false, e.error); },
                   [&](const pub::Grant& e) { grant(e); },
                   [&](const pub::Refuse& e) { refuse(e); },
                   [&](const pub::Expired& e) { log_warning("the lease of " + worker_name(e.reader) + " on " + to_string(e.version) + " ran out"); },
                   [&](const protocol::Note& e) { log(e.level, e.text); },
                   [&](const protocol::ArmTimer& e) { caf::delayed_anon_send(host_.self, std::max(e.at - now, Duration{1}), Tick{0}); },
               },
               effect);
  }
}

void WeightStore::fill(const pub::FillSlot& order) {
  const auto copy = [this, order, host = host_] {
    const auto start = Clock::now();
    SlotFilled message{order.slot, order.version, false, "", {}, 0};
    const PolicyVersion now = host.version(); // newer when the slot was not free before the next step: then that one is published
    if (now.epoch != order.version.epoch || now < order.version) {
      message.reason = "the trainer holds " + to_string(now);
      caf::anon_send(host.self, message);
      return;
    }
    message.version = now;
    const auto target = memory(order.slot);
    const auto& parameters = host.model->parameters();
    for (std::size_t i = 0; i < parameters.size(); ++i)
      std::memcpy(target.data() + layout_.tensors[i].offset, parameters[i].value.const_data_ptr(), layout_.tensors[i].bytes);
    // The copy holds up training; the checksums do not.
    const bool queued = hasher_.post([this, message, target, host, start]() mutable {
      message.tensors = layout_.tensors;
      for (TensorEntry& tensor : message.tensors) tensor.checksum = hash64(target.subspan(tensor.offset, tensor.bytes));
      message.ok = true;
      message.seconds = seconds(Clock::now() - start);
      caf::anon_send(host.self, message);
    });
    if (!queued) {
      message.reason = "too many publications are waiting for their checksums";
      caf::anon_send(host.self, message);
    }
  };
  if (!host_.work->post(copy)) handle(pub::FillFailed{order.slot, order.version, "the rank has too many orders waiting"});
}

void WeightStore::filled(const SlotFilled& message) {
  if (!message.ok) return handle(pub::FillFailed{message.slot, message.version, message.reason});
  slots_[message.slot].tensors = message.tensors;
  fill_seconds_ = message.seconds;
  handle(pub::Filled{message.slot, message.version});
}

void WeightStore::published(PolicyVersion version, bool ok, const Error& error) {
  caf::anon_send(host_.head, WeightsPublished{version, ok, error, layout_.bytes, fill_seconds_});
}

void WeightStore::grant(const pub::Grant& e) {
  const Slot& slot = slots_[e.slot];
  LeaseGranted message{worker_name(e.reader), e.reader.incarnation, true, {}, {}};
  message.ticket.version = e.version;
  message.ticket.lease = e.request;
  message.ticket.deadline_ms = static_cast<std::uint64_t>(std::max<std::int64_t>(1, (e.deadline - Clock::now()) / std::chrono::milliseconds(1)));
  message.ticket.region = slot.region.descriptor();
  message.ticket.file = slot.file;
  message.ticket.tensors = slot.tensors;
  caf::anon_send(host_.head, message);
}

void WeightStore::refuse(const pub::Refuse& e) {
  LeaseGranted message{worker_name(e.reader), e.reader.incarnation, false, e.error, {}};
  message.ticket.lease = e.request;
  caf::anon_send(host_.head, message);
}

} // namespace troupe::actors
