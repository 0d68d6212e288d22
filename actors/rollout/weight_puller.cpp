#include "actors/rollout/weight_puller.h"

#include <algorithm>
#include <cstring>
#include <span>

#include "base/hash.h"

namespace troupe::actors {
namespace {

constexpr std::size_t kPiece = 256 << 10; // stays in the cache between the checksum and the copy

Status check(const TensorEntry& tensor, std::size_t bytes) {
  if (tensor.offset > bytes || tensor.bytes > bytes - tensor.offset) return fail(ErrorCode::kCorrupt, "the ticket places " + tensor.name + " outside its slot");
  return {};
}

Status compare(const WeightTicket& ticket, const TensorEntry& tensor, std::uint64_t checksum) {
  if (checksum == tensor.checksum) return {};
  return fail(ErrorCode::kCorrupt, tensor.name + " of " + to_string(ticket.version) + " arrived with a wrong checksum");
}

// From the rank's memory file. The checksum is that of the bytes that were copied.
Status copy_slot(const comm::SharedMapping& slot, const WeightTicket& ticket, std::span<std::byte> to) {
  Hasher64 hasher;
  for (const TensorEntry& tensor : ticket.tensors) {
    TROUPE_TRY_STATUS(check(tensor, std::min(to.size(), slot.bytes().size())));
    hasher.reset();
    for (std::size_t done = 0; done < tensor.bytes; done += kPiece) {
      const std::size_t n = std::min<std::size_t>(kPiece, tensor.bytes - done);
      const auto piece = to.subspan(tensor.offset + done, n);
      std::memcpy(piece.data(), slot.bytes().data() + tensor.offset + done, n);
      hasher.update(piece);
    }
    TROUPE_TRY_STATUS(compare(ticket, tensor, hasher.digest()));
  }
  return {};
}

Status fetch_slot(comm::TransferEngine& engine, const WeightTicket& ticket, std::span<std::byte> to) {
  TROUPE_TRY_STATUS(engine.get_blocking(ticket.region, 0, to.data(), to.size(), std::chrono::milliseconds(ticket.deadline_ms)));
  for (const TensorEntry& tensor : ticket.tensors) {
    TROUPE_TRY_STATUS(check(tensor, to.size()));
    TROUPE_TRY_STATUS(compare(ticket, tensor, hash64(std::as_bytes(to.subspan(tensor.offset, tensor.bytes)))));
  }
  return {};
}

} // namespace

Result<std::unique_ptr<WeightPuller>> WeightPuller::start(const comm::TransferOptions& options) {
  TROUPE_TRY(auto engine, comm::TransferEngine::start(options));
  return std::unique_ptr<WeightPuller>(new WeightPuller(std::move(engine)));
}

// The rank's two slots stay mapped; those of a rank that is gone are let go. Null: it is on another machine.
const comm::SharedMapping* WeightPuller::map(const comm::SharedFile& file) {
  for (const auto& [known, mapping] : mappings_)
    if (known == file) return &mapping;
  std::erase_if(mappings_, [&](const auto& entry) { return entry.first.pid != file.pid || entry.first.inode != file.inode; });
  auto mapped = comm::SharedMapping::open(file);
  if (!mapped) return nullptr;
  mappings_.emplace_back(file, std::move(*mapped));
  return &mappings_.back().second;
}

Result<std::shared_ptr<const comm::HugeBuffer>> WeightPuller::read(const WeightTicket& ticket) {
  if (!buffer_ || buffer_.use_count() > 1 || buffer_->bytes().size() != ticket.region.bytes) {
    TROUPE_TRY(auto buffer, comm::HugeBuffer::create(ticket.region.bytes));
    buffer_ = std::make_shared<comm::HugeBuffer>(std::move(buffer));
  }
  const comm::SharedMapping* slot = map(ticket.file);
  TROUPE_TRY_STATUS(slot != nullptr ? copy_slot(*slot, ticket, buffer_->bytes()) : fetch_slot(*engine_, ticket, buffer_->bytes()));
  return buffer_;
}

void WeightPuller::pull(const WeightTicket& ticket, Pulled done) {
  if (!thread_.post([this, ticket, done] { done(ticket, read(ticket)); }))
    done(ticket, fail(ErrorCode::kResourceExhausted, "other weights are still being pulled"));
}

Status install_weights(model::Model& model, const WeightTicket& ticket, std::span<const std::byte> bytes) {
  auto& parameters = model.parameters();
  if (parameters.size() != ticket.tensors.size())
    return fail(ErrorCode::kInvalidArgument, "the weights have " + std::to_string(ticket.tensors.size()) + " tensors, this model " + std::to_string(parameters.size()));
  for (std::size_t i = 0; i < parameters.size(); ++i) {
    const TensorEntry& tensor = ticket.tensors[i];
    if (tensor.name != parameters[i].name || tensor.dtype != "F32" || tensor.shape != parameters[i].value.sizes().vec())
      return fail(ErrorCode::kInvalidArgument, "tensor " + tensor.name + " of the weights is not this model's " + parameters[i].name);
  }
  for (std::size_t i = 0; i < parameters.size(); ++i)
    std::memcpy(parameters[i].value.data_ptr(), bytes.data() + ticket.tensors[i].offset, ticket.tensors[i].bytes);
  return {};
}

} // namespace troupe::actors
