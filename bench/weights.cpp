// weights: a rank's weight store in one process, a rollout's puller in another; from the ticket to the last checksum.
#include <sys/mman.h>
#include <caf/all.hpp>

#include <cstring>
#include <future>

#include "actors/messages/all.h"
#include "actors/rank/weight_store.h"
#include "actors/rollout/weight_puller.h"
#include "actors/runtime/credentials.h"
#include "actors/runtime/system.h"
#include "bench/helper.h"
#include "bench/registry.h"

namespace troupe::bench {
namespace {

namespace fs = std::filesystem;
namespace pub = protocol::publication;
using Clock = std::chrono::steady_clock;

constexpr Duration kDeadline = std::chrono::minutes(1);
constexpr PolicyVersion kVersion{0, 1};
constexpr protocol::WorkerId kReader{protocol::Role::kRollout, 0, 0};

// Qwen3 of 8 layers x 1024: 512 MiB of matrices, and the norms.
Result<model::Model> big_model() {
  model::DecoderSizes sizes;
  sizes.vocab_size = 8192;
  sizes.width = 1024;
  sizes.layers = 8;
  sizes.heads = 16;
  sizes.kv_heads = 8;
  sizes.head_dim = 128;
  sizes.ffn_width = 3072;
  TROUPE_TRY(const auto spec, model::spec_from_sizes("qwen3", sizes));
  model::Model model = model::Model::zeros(spec);
  std::uint32_t state = 1;  // real pages, not the kernel's one page of zeros
  for (auto& parameter : model.parameters()) {
    float* values = parameter.value.data_ptr<float>();
    for (std::int64_t i = 0; i < parameter.value.numel(); ++i)
      values[i] = static_cast<float>((state = state * 1664525u + 1013904223u) >> 8);
  }
  return model;
}

actors::SystemOptions options_in(const fs::path& folder) {
  actors::SystemOptions options;
  options.credential = {(folder / "node.crt").string(), (folder / "node.key").string(),
                        (folder / "authority.crt").string()};
  return options;
}

/// What the head and the rank's control actor are to a weight store, in one actor: passes messages on, answers leases.
struct Desk {
  std::unique_ptr<actors::WeightStore> store;
  caf::typed_response_promise<actors::LeaseGranted> asked;
  std::promise<void> ready;
};

caf::behavior desk_behavior(caf::stateful_actor<std::shared_ptr<Desk>>* self, std::shared_ptr<Desk> desk) {
  self->state = std::move(desk);
  return {
      [self](const actors::PublishWeights& message) { self->state->store->handle(pub::Publish{message.version}); },
      [self](const actors::SlotFilled& message) { self->state->store->filled(message); },
      [self](const actors::Tick&) { self->state->store->handle(protocol::Wake{}); },
      [self](const actors::WeightsPublished& message) {
        if (message.ok) self->state->ready.set_value();
      },
      [self](const actors::LeaseWeights& message) {
        self->state->asked = self->make_response_promise<actors::LeaseGranted>();
        self->state->store->handle(pub::Lease{kReader, message.request, message.wanted});
        return self->state->asked;
      },
      [self](const actors::LeaseGranted& message) { self->state->asked.deliver(message); },
      [self](const actors::LeaseEnded& message) {
        self->state->store->handle(pub::LeaseEnded{kReader, message.request});
      },
  };
}

Result<actors::WeightTicket> lease(actors::System& system, const caf::actor& store, std::uint64_t request) {
  caf::scoped_actor self{system.caf()};
  Result<actors::WeightTicket> ticket = fail(ErrorCode::kTimeout, "the weight store granted no lease");
  self->request(store, kDeadline, actors::LeaseWeights{"rollout/0", 0, request, kVersion})
      .receive(
          [&](const actors::LeaseGranted& granted) {
            if (granted.ok)
              ticket = granted.ticket;
            else
              ticket = tl::unexpected(granted.error);
          },
          [&](const caf::error& error) { ticket = fail(ErrorCode::kUnavailable, caf::to_string(error)); });
  return ticket;
}

Result<double> pull_seconds(actors::WeightPuller& puller, const actors::WeightTicket& ticket) {
  std::promise<Status> ended;
  const auto start = Clock::now();
  puller.pull(ticket, [&](const actors::WeightTicket&, auto bytes) { ended.set_value(bytes.map([](const auto&) {})); });
  const Status status = ended.get_future().get();
  const double took = seconds(Clock::now() - start);
  if (!status) return tl::unexpected(status.error());
  return took;
}

}  // namespace

Status serve_weights(const fs::path& folder) {
  TROUPE_TRY(const model::Model model, big_model());
  actors::System system(options_in(folder));
  actors::WorkThread work(8, {});
  auto desk = std::make_shared<Desk>();
  auto ready = desk->ready.get_future();
  const caf::actor actor = system.caf().spawn(desk_behavior, desk);
  const int memory = ::memfd_create("troupe-bench-weights", MFD_CLOEXEC);
  if (memory < 0) return tl::unexpected(system_error("create", "a memory file", errno));
  const actors::WeightStore::Host host{actor, actor, &work, &model, [] { return kVersion; }};
  TROUPE_TRY(desk->store, actors::WeightStore::create(memory, host, kVersion.epoch, {}, {}));
  caf::anon_send(actor, actors::PublishWeights{kVersion});
  if (ready.wait_for(kDeadline) != std::future_status::ready)
    return fail(ErrorCode::kTimeout, "the weights were not published");
  TROUPE_TRY(const auto port, system.publish(actor, "127.0.0.1", 0));
  serve_until_killed(std::to_string(port));
}

Status run_weights(Context& context) {
  TROUPE_TRY(const auto folder, TemporaryFolder::create());
  TROUPE_TRY_STATUS(actors::make_credential(folder.path(), "bench").map([](const auto&) {}));
  TROUPE_TRY(const auto helper, start_helper("serve-weights", folder.path()));
  actors::System system(options_in(folder.path()));
  TROUPE_TRY(const auto store, system.connect("127.0.0.1", static_cast<std::uint16_t>(std::stoi(helper.says))));
  TROUPE_TRY(const auto puller, actors::WeightPuller::start({}));

  const int repeats = context.repeats(7);
  std::vector<double> took, copy;
  std::uint64_t bytes = 0;
  std::vector<std::byte> from, to;
  for (int i = 0; i <= repeats; ++i) {  // the first one connects
    TROUPE_TRY(const auto ticket, lease(system, store, static_cast<std::uint64_t>(i) + 1));
    TROUPE_TRY(const double s, pull_seconds(*puller, ticket));
    caf::anon_send(store, actors::LeaseEnded{"rollout/0", 0, ticket.lease, false});
    bytes = ticket.region.bytes;
    from.resize(bytes, std::byte{1});
    to.resize(bytes, std::byte{2});
    const auto start = Clock::now();
    std::memcpy(to.data(), from.data(), bytes);
    asm volatile("" : : "g"(to.data()) : "memory");
    if (i > 0) took.push_back(s), copy.push_back(seconds(Clock::now() - start));
  }
  const double gigabytes = static_cast<double>(bytes) * 1e-9;
  const nlohmann::json conditions = {{"bytes", bytes},
                                     {"dtype", "float32"},
                                     {"transport", "UCX, shared memory"},
                                     {"repeats", repeats},
                                     {"seconds", median(took)}};
  context.add({"weights.pull", gigabytes / median(took), "GB/s",
               Peer{"memcpy, one thread, warm", gigabytes / median(copy)}, conditions});
  return {};
}

}  // namespace troupe::bench
