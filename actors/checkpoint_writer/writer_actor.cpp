#include "actors/checkpoint_writer/writer_actor.h"

#include <caf/all.hpp>
#include <sys/mman.h>

#include <chrono>
#include <nlohmann/json.hpp>

#include "actors/messages/all.h"
#include "actors/runtime/work_thread.h"
#include "base/hash.h"
#include "checkpoint/repository.h"
#include "comm/transfer.h"

namespace troupe::actors {
namespace {

// Page-aligned memory of its own mapping, returned to the system as a whole.
class Mapping {
 public:
  [[nodiscard]] static Result<std::unique_ptr<Mapping>> create(std::size_t bytes) {
    void* data = ::mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (data == MAP_FAILED) return tl::unexpected(system_error("reserve", format_bytes(bytes) + " for a checkpoint", errno));
    return std::unique_ptr<Mapping>(new Mapping(data, bytes));
  }
  ~Mapping() { ::munmap(data_, bytes_); }
  Mapping(const Mapping&) = delete;
  Mapping& operator=(const Mapping&) = delete;
  [[nodiscard]] std::span<std::byte> bytes() const { return {static_cast<std::byte*>(data_), bytes_}; }

 private:
  Mapping(void* data, std::size_t bytes) : data_(data), bytes_(bytes) {}
  void* data_;
  std::size_t bytes_;
};

class WriterLogic final : public WorkerLogic {
 public:
  WriterLogic(WorkerContext context, std::unique_ptr<comm::TransferEngine> engine, const std::filesystem::path& folder)
      : context_(context), engine_(std::move(engine)), repository_(folder) {}

  // What is being written is finished first, so that its answer is not taken for that of a later save.
  void adopted(std::function<void(std::optional<PolicyVersion>)> hello) override {
    post([hello = std::move(hello)] { hello(std::nullopt); });
  }

  caf::message_handler handlers() override {
    return {
        [this](const PrepareMemory& order) { post([this, order] { prepare(order); }); },
        [this](const CommitState& order) { post([this, order] { commit(order); }); },
    };
  }

 private:
  void post(WorkThread::Command command) {
    if (!thread_.post(std::move(command))) context_.fail({ErrorCode::kResourceExhausted, "the checkpoint writer has too many orders waiting", ""});
  }

  void prepare(const PrepareMemory& order) {
    const auto ready = [&]() -> Result<comm::RemoteRegion> {
      if (memory_ && layout_text_ == order.layout) return region_.descriptor();
      const auto json = nlohmann::json::parse(order.layout, nullptr, false);
      if (json.is_discarded()) return fail(ErrorCode::kCorrupt, "the state's layout is not JSON");
      TROUPE_TRY(auto layout, checkpoint::layout_from_json(json));
      TROUPE_TRY_STATUS(checkpoint::check(layout));
      region_ = {};
      memory_.reset();
      TROUPE_TRY(memory_, Mapping::create(std::max<std::size_t>(layout.bytes, 1)));
      TROUPE_TRY(region_, engine_->expose(memory_->bytes().data(), memory_->bytes().size()));
      layout_ = std::move(layout);
      layout_text_ = order.layout;
      return region_.descriptor();
    }();
    if (!ready) return context_.fail(ready.error());
    caf::anon_send(context_.head, MemoryReady{*ready});
  }

  void commit(const CommitState& order) {
    const auto start = std::chrono::steady_clock::now();
    Committed answer;
    answer.save = order.save;
    const auto written = write(order);
    answer.ok = written.has_value();
    if (written) {
      answer.folder = written->folder;
      answer.bytes = written->bytes;
    } else {
      answer.error = written.error();
    }
    answer.seconds = seconds(std::chrono::steady_clock::now() - start);
    caf::anon_send(context_.head, answer);
  }

  Result<checkpoint::Committed> write(const CommitState& order) {
    if (!memory_) return fail(ErrorCode::kUnavailable, "the checkpoint writer has no state in memory: it was restarted");
    const auto region = memory_->bytes().first(layout_.bytes);
    if (hash64(region) != order.checksum)
      return fail(ErrorCode::kCorrupt, "the state in the checkpoint writer's memory does not have the rank's checksum");
    const auto json = nlohmann::json::parse(order.record, nullptr, false);
    if (json.is_discarded()) return fail(ErrorCode::kCorrupt, "the commit record is not JSON");
    TROUPE_TRY(auto record, checkpoint::record_from_json(json));
    for (checkpoint::Blob& blob : record.blobs)
      if (json.contains("blob_bytes") && json["blob_bytes"].contains(blob.name)) blob.bytes = json["blob_bytes"][blob.name].get<std::string>();
    return repository_.write(layout_, region, record, order.keep);
  }

  WorkerContext context_;
  std::unique_ptr<comm::TransferEngine> engine_;
  checkpoint::Repository repository_;
  std::string layout_text_;
  checkpoint::StateLayout layout_;
  std::unique_ptr<Mapping> memory_;
  comm::ExposedRegion region_;
  WorkThread thread_{64, {}, context_.progress};
};

} // namespace

Status run_checkpoint_writer(const WorkerFrame& frame, const std::filesystem::path& folder) {
  return run_worker(frame, [&](const WorkerContext& context) -> Result<std::unique_ptr<WorkerLogic>> {
    TROUPE_TRY(auto engine, comm::TransferEngine::start({}));
    return std::make_unique<WriterLogic>(context, std::move(engine), folder);
  });
}

} // namespace troupe::actors
