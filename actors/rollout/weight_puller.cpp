#include "actors/rollout/weight_puller.h"

#include <cstring>
#include <span>

#include "base/hash.h"

namespace troupe::actors {
namespace {

Result<std::shared_ptr<const std::vector<std::byte>>> read_slot(comm::TransferEngine& engine, const WeightTicket& ticket) {
  auto bytes = std::make_shared<std::vector<std::byte>>(ticket.region.bytes);
  TROUPE_TRY_STATUS(engine.get_blocking(ticket.region, 0, bytes->data(), bytes->size(), std::chrono::milliseconds(ticket.deadline_ms)));
  for (const TensorEntry& tensor : ticket.tensors) {
    if (tensor.offset > bytes->size() || tensor.bytes > bytes->size() - tensor.offset)
      return fail(ErrorCode::kCorrupt, "the ticket places " + tensor.name + " outside its slot");
    if (hash64(std::span<const std::byte>(*bytes).subspan(tensor.offset, tensor.bytes)) != tensor.checksum)
      return fail(ErrorCode::kCorrupt, tensor.name + " of " + to_string(ticket.version) + " arrived with a wrong checksum");
  }
  return bytes;
}

} // namespace

Result<std::unique_ptr<WeightPuller>> WeightPuller::start() {
  TROUPE_TRY(auto engine, comm::TransferEngine::start({}));
  return std::unique_ptr<WeightPuller>(new WeightPuller(std::move(engine)));
}

void WeightPuller::pull(const WeightTicket& ticket, Pulled done) {
  if (!thread_.post([this, ticket, done] { done(ticket, read_slot(*engine_, ticket)); }))
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
