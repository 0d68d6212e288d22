#include "protocol/weight_publication.h"

#include <algorithm>
#include <utility>

#include "base/hash.h"

namespace troupe::protocol {

using namespace publication;

namespace {
Error error(ErrorCode code, std::string message) { return Error{code, std::move(message), {}}; }
} // namespace

WeightPublication::WeightPublication(const PublicationOptions& options, std::uint32_t epoch)
    : options_(options), epoch_(epoch) {}

std::vector<Effect> WeightPublication::handle(const Event& event, TimePoint now) {
  effects_.clear();
  now_ = now;
  expire();
  std::visit([this](const auto& e) { on(e); }, event);
  fill();
  arm();
  return std::exchange(effects_, {});
}

void WeightPublication::on(const Publish& e) {
  if (e.version.epoch > epoch_) on(NewEpoch{e.version.epoch});
  const std::optional<PolicyVersion> known = newest();
  if (known && e.version == *known) {
    effects_.emplace_back(Ready{e.version});
    return;
  }
  for (const Slot& slot : slots_) {
    if (slot.state == State::kFilling && slot.version == e.version) return;
  }
  if (known && known->epoch == e.version.epoch && e.version < *known) { // overtaken: the newer one stands for it
    effects_.emplace_back(Ready{*known});
    return;
  }
  const bool passed = e.version.epoch < epoch_ || (known && e.version < *known) || (wanted_ && e.version < *wanted_);
  if (passed) {
    const std::string than = known ? to_string(*known) : "epoch " + std::to_string(epoch_);
    effects_.emplace_back(
        Rejected{e.version, error(ErrorCode::kFenced, to_string(e.version) + " is older than " + than)});
    return;
  }
  wanted_ = e.version;
}

void WeightPublication::on(const Filled& e) {
  if (e.slot >= kSlots) return;
  Slot& slot = slots_[e.slot];
  const bool is_it = e.version.epoch == slot.version.epoch && e.version >= slot.version;
  if (slot.state != State::kFilling || !is_it) return;
  slot.version = e.version;
  if (e.version.epoch < epoch_) {
    slot.state = State::kEmpty;
    effects_.emplace_back(
        Rejected{e.version, error(ErrorCode::kFenced, to_string(e.version) + " was copied in an epoch that is over")});
    return;
  }
  slot.state = State::kReady;
  effects_.emplace_back(Ready{e.version});
}

void WeightPublication::on(const FillFailed& e) {
  if (e.slot >= kSlots) return;
  Slot& slot = slots_[e.slot];
  if (slot.state != State::kFilling || slot.version != e.version) return;
  slot.state = State::kEmpty;
  effects_.emplace_back(Rejected{e.version, error(ErrorCode::kUnavailable, "copying the weights failed: " + e.reason)});
}

void WeightPublication::on(const Lease& e) {
  const Reader reader{e.reader, e.request};
  const std::optional<std::uint32_t> index = newest_slot();
  const auto refuse = [&](ErrorCode code, std::string why) {
    effects_.emplace_back(Refuse{e.reader, e.request, error(code, std::move(why))});
  };
  if (e.wanted.epoch > epoch_)
    return refuse(ErrorCode::kFenced, "this store belongs to epoch " + std::to_string(epoch_));
  if (!index || slots_[*index].version < e.wanted) {
    return refuse(ErrorCode::kUnavailable, to_string(e.wanted) + " is not published yet");
  }
  for (Slot& slot : slots_) {  // a reader that asks again has given up what it read before; the transfer may still run
    const auto given_up = [&](const auto& lease) {
      return lease.first.id == e.reader && lease.first.request < e.request;
    };
    if (std::erase_if(slot.leases, given_up) > 0) slot.expired = true;
  }
  for (std::uint32_t i = 0; i < kSlots; ++i) {
    const auto open = slots_[i].leases.find(reader);
    if (open == slots_[i].leases.end()) continue;
    effects_.emplace_back(Grant{e.reader, e.request, i, slots_[i].generation, slots_[i].version, open->second});
    return;
  }
  Slot& slot = slots_[*index];
  if (slot.leases.size() >= options_.leases_max) {
    return refuse(ErrorCode::kResourceExhausted, std::to_string(options_.leases_max) + " readers hold leases already");
  }
  const TimePoint deadline = now_ + options_.lease;
  slot.leases.emplace(reader, deadline);
  effects_.emplace_back(Grant{e.reader, e.request, *index, slot.generation, slot.version, deadline});
}

void WeightPublication::on(const LeaseEnded& e) {
  for (Slot& slot : slots_) slot.leases.erase(Reader{e.reader, e.request});
}

void WeightPublication::on(const ReaderGone& e) {
  for (Slot& slot : slots_) {
    std::erase_if(slot.leases, [&](const auto& lease) { return lease.first.id == e.reader; });
  }
}

void WeightPublication::on(const NewEpoch& e) {
  if (e.epoch <= epoch_) return;
  epoch_ = e.epoch;
  wanted_.reset();
  for (Slot& slot : slots_) {
    slot.expired = slot.expired || !slot.leases.empty();
    for (const auto& [reader, deadline] : slot.leases)
      effects_.emplace_back(Expired{reader.id, reader.request, slot.version});
    slot.leases.clear();
    if (slot.state == State::kReady) slot.state = State::kEmpty;  // a slot being filled waits for its Filled
  }
}

void WeightPublication::on(const Wake&) {}

void WeightPublication::expire() {
  for (Slot& slot : slots_) {
    for (const auto& [reader, deadline] : slot.leases) {
      if (deadline > now_) continue;
      slot.expired = true;
      effects_.emplace_back(Expired{reader.id, reader.request, slot.version});
    }
    std::erase_if(slot.leases, [this](const auto& lease) { return lease.second <= now_; });
  }
}

void WeightPublication::fill() {
  if (!wanted_) return;
  const auto filling = [](const Slot& slot) { return slot.state == State::kFilling; };
  if (std::any_of(slots_.begin(), slots_.end(), filling)) return;
  const std::optional<std::uint32_t> keep = newest_slot();
  for (std::uint32_t i = 0; i < kSlots; ++i) {
    Slot& slot = slots_[i];
    if (i == keep || !slot.leases.empty()) continue;
    if (slot.expired) effects_.emplace_back(RenewSlot{i, ++slot.generation});
    slot.expired = false;
    slot.state = State::kFilling;
    slot.version = *wanted_;
    wanted_.reset();
    effects_.emplace_back(FillSlot{i, slot.version});
    return;
  }
}

void WeightPublication::arm() {
  std::optional<TimePoint> first;
  for (const Slot& slot : slots_) {
    for (const auto& [reader, deadline] : slot.leases) first = first ? std::min(*first, deadline) : deadline;
  }
  if (first) effects_.emplace_back(ArmTimer{*first});
}

std::optional<std::uint32_t> WeightPublication::newest_slot() const {
  std::optional<std::uint32_t> best;
  for (std::uint32_t i = 0; i < kSlots; ++i) {
    if (slots_[i].state == State::kReady && (!best || slots_[i].version > slots_[*best].version)) best = i;
  }
  return best;
}

std::optional<PolicyVersion> WeightPublication::newest() const {
  const std::optional<std::uint32_t> slot = newest_slot();
  return slot ? std::optional(slots_[*slot].version) : std::nullopt;
}

std::size_t WeightPublication::leases() const {
  std::size_t sum = 0;
  for (const Slot& slot : slots_) sum += slot.leases.size();
  return sum;
}

Status HeldWeights::offer(PolicyVersion version, std::optional<PolicyVersion> base) const {
  if (version_ && version.epoch < version_->epoch) {
    return fail(ErrorCode::kFenced, to_string(version) + " is of an older epoch than " + to_string(*version_));
  }
  if (version_ && version <= *version_) {
    return fail(ErrorCode::kAlreadyExists, to_string(version) + " is not newer than " + to_string(*version_));
  }
  if (base && base != version_) {
    return fail(ErrorCode::kUnavailable, "the delta to " + to_string(version) + " applies to " + to_string(*base) +
                                             ", not to " + (version_ ? to_string(*version_) : "nothing"));
  }
  return {};
}

Status HeldWeights::accept(PolicyVersion version, std::optional<PolicyVersion> base, std::uint64_t digest,
                           std::uint64_t expected) {
  TROUPE_TRY_STATUS(offer(version, base));
  if (digest != expected) {
    return fail(ErrorCode::kCorrupt,
                "the digest of " + to_string(version) + " is " + hex64(digest) + ", not " + hex64(expected));
  }
  version_ = version;
  return {};
}

} // namespace troupe::protocol
