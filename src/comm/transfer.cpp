#include "comm/transfer.h"

#include <poll.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include <condition_variable>
#include <cstring>
#include <deque>
#include <future>
#include <map>
#include <mutex>
#include <optional>
#include <thread>
#include <utility>

#include "base/check.h"
#include "base/file.h"
#include "comm/ucx.h"

namespace troupe::comm {

using internal::ucx;

namespace {

Error ucx_error(std::string_view action, ucs_status_t status) {
  const ErrorCode code = status == UCS_ERR_INVALID_PARAM ? ErrorCode::kInvalidArgument : ErrorCode::kUnavailable;
  return Error{code, "UCX could not " + std::string(action) + ": " + ucx().ucs_status_string(status), ""};
}

Status to_status(std::string_view action, ucs_status_t status) {
  if (status == UCS_OK) return {};
  return tl::unexpected(ucx_error(action, status));
}

} // namespace

namespace internal {

// Everything the engine's thread owns. The mutex guards the queue and `stopping` only; the rest is touched by the thread alone.
struct EngineState {
  struct Endpoint {
    ucp_ep_h handle = nullptr;
    ucs_status_t failed = UCS_OK;
  };
  struct Operation {
    EngineState* engine;
    const char* what;
    ucp_rkey_h key = nullptr;
    ucp_ep_h endpoint = nullptr;
    bool flush = false; // a put is done when it is flushed
    Completion done;
  };

  ucp_context_h context = nullptr;
  ucp_worker_h worker = nullptr;
  std::string address;
  FileDescriptor wake;
  int ucx_event = -1;
  std::map<std::string, Endpoint> endpoints;
  std::mutex mutex;
  std::deque<std::function<void()>> queue;
  bool stopping = false;
  std::thread thread;

  ~EngineState() {
    if (worker != nullptr) ucx().ucp_worker_destroy(worker);
    if (context != nullptr) ucx().ucp_cleanup(context);
  }

  // Runs `task` on the engine's thread. False when the engine has stopped.
  bool post(std::function<void()> task) {
    {
      const std::lock_guard lock(mutex);
      if (stopping) return false;
      queue.push_back(std::move(task));
    }
    const std::uint64_t one = 1;
    [[maybe_unused]] const auto n = ::write(wake.get(), &one, sizeof one);
    return true;
  }

  void run();
  Endpoint& endpoint_of(const std::string& address_of_peer);
  void close(Endpoint& endpoint);
  void start_operation(bool is_get, const RemoteRegion& region, std::uint64_t offset, void* local, std::size_t bytes, Completion done);
  void finish(Operation* operation, ucs_status_t status);
  static void on_complete(void* request, ucs_status_t status, void* user_data);
};

void EngineState::run() {
  for (;;) {
    std::deque<std::function<void()>> tasks;
    bool stop = false;
    {
      const std::lock_guard lock(mutex);
      tasks.swap(queue);
      stop = stopping;
    }
    for (auto& task : tasks) task();
    while (ucx().ucp_worker_progress(worker) != 0) {
    }
    if (stop) break;
    if (ucx().ucp_worker_arm(worker) != UCS_OK) continue; // events arrived meanwhile
    pollfd fds[2] = {{ucx_event, POLLIN, 0}, {wake.get(), POLLIN, 0}};
    ::poll(fds, 2, 1000); // the time-out lets UCX run its keep-alive rounds
    std::uint64_t count = 0;
    [[maybe_unused]] const auto n = ::read(wake.get(), &count, sizeof count);
  }
  for (auto& [name, endpoint] : endpoints) close(endpoint);
  while (ucx().ucp_worker_progress(worker) != 0) {
  }
}

EngineState::Endpoint& EngineState::endpoint_of(const std::string& peer) {
  const auto [it, fresh] = endpoints.try_emplace(peer);
  Endpoint& endpoint = it->second;
  if (!fresh && endpoint.failed == UCS_OK) return endpoint;
  if (!fresh) close(endpoint); // the peer failed before: try a new connection once
  endpoint.failed = UCS_OK;
  ucp_ep_params_t params{};
  params.field_mask = UCP_EP_PARAM_FIELD_REMOTE_ADDRESS | UCP_EP_PARAM_FIELD_ERR_HANDLING_MODE | UCP_EP_PARAM_FIELD_ERR_HANDLER;
  params.address = reinterpret_cast<const ucp_address_t*>(peer.data());
  params.err_mode = UCP_ERR_HANDLING_MODE_PEER;
  params.err_handler.arg = &endpoint;
  params.err_handler.cb = [](void* arg, ucp_ep_h, ucs_status_t status) { static_cast<Endpoint*>(arg)->failed = status; };
  if (const auto status = ucx().ucp_ep_create(worker, &params, &endpoint.handle); status != UCS_OK) endpoint.failed = status;
  return endpoint;
}

void EngineState::close(Endpoint& endpoint) {
  if (endpoint.handle == nullptr) return;
  ucp_request_param_t params{};
  params.op_attr_mask = UCP_OP_ATTR_FIELD_FLAGS;
  params.flags = UCP_EP_CLOSE_FLAG_FORCE;
  void* request = ucx().ucp_ep_close_nbx(std::exchange(endpoint.handle, nullptr), &params);
  if (request == nullptr || UCS_PTR_IS_ERR(request)) return;
  while (ucx().ucp_request_check_status(request) == UCS_INPROGRESS) ucx().ucp_worker_progress(worker);
  ucx().ucp_request_free(request);
}

void EngineState::finish(Operation* operation, ucs_status_t status) {
  if (status == UCS_OK && std::exchange(operation->flush, false)) {
    ucp_request_param_t params{};
    params.op_attr_mask = UCP_OP_ATTR_FIELD_CALLBACK | UCP_OP_ATTR_FIELD_USER_DATA;
    params.cb.send = &EngineState::on_complete;
    params.user_data = operation;
    void* request = ucx().ucp_ep_flush_nbx(operation->endpoint, &params);
    if (request != nullptr && !UCS_PTR_IS_ERR(request)) return; // on_complete follows
    status = request == nullptr ? UCS_OK : UCS_PTR_STATUS(request);
  }
  if (operation->key != nullptr) ucx().ucp_rkey_destroy(operation->key);
  const std::unique_ptr<Operation> owned(operation);
  owned->done(to_status(owned->what, status));
}

void EngineState::on_complete(void* request, ucs_status_t status, void* user_data) {
  auto* operation = static_cast<Operation*>(user_data);
  operation->engine->finish(operation, status);
  ucx().ucp_request_free(request);
}

void EngineState::start_operation(bool is_get, const RemoteRegion& region, std::uint64_t offset, void* local, std::size_t bytes,
                                  Completion done) {
  auto owned = std::make_unique<Operation>(Operation{this, is_get ? "read from the peer" : "write to the peer", nullptr, nullptr, !is_get, std::move(done)});
  Operation* operation = owned.release(); // UCX carries it; finish() takes it back
  Endpoint& endpoint = endpoint_of(region.worker);
  ucs_status_t status = endpoint.failed;
  if (status == UCS_OK) status = ucx().ucp_ep_rkey_unpack(endpoint.handle, region.key.data(), &operation->key);
  if (status != UCS_OK) {
    operation->flush = false;
    return finish(operation, status);
  }
  operation->endpoint = endpoint.handle;
  ucp_request_param_t params{};
  params.op_attr_mask = UCP_OP_ATTR_FIELD_CALLBACK | UCP_OP_ATTR_FIELD_USER_DATA;
  params.cb.send = &EngineState::on_complete;
  params.user_data = operation;
  const std::uint64_t remote = region.address + offset;
  void* request = is_get ? ucx().ucp_get_nbx(endpoint.handle, local, bytes, remote, operation->key, &params)
                         : ucx().ucp_put_nbx(endpoint.handle, local, bytes, remote, operation->key, &params);
  if (request == nullptr) finish(operation, UCS_OK);
  else if (UCS_PTR_IS_ERR(request)) finish(operation, UCS_PTR_STATUS(request));
}

} // namespace internal

namespace {

using internal::EngineState;

Result<std::shared_ptr<EngineState>> make_state(const TransferOptions& options) {
  auto state = std::make_shared<EngineState>();
  if (const auto& opened = internal::open_ucx(); !opened) return tl::unexpected(opened.error());
  ucp_config_t* config = nullptr;
  if (const auto s = ucx().ucp_config_read(nullptr, nullptr, &config); s != UCS_OK) return tl::unexpected(ucx_error("read its configuration", s));
  ucx().ucp_config_modify(config, "MM_ERROR_HANDLING", "y"); // without it shared memory is off in peer-failure mode
  ucx().ucp_config_modify(config, "KEEPALIVE_INTERVAL", (std::to_string(options.keepalive / std::chrono::milliseconds(1)) + "ms").c_str());
  ucx().ucp_config_modify(config, "TLS", options.shared_memory ? "tcp,posix,sysv,cma,self" : "tcp,self");
  ucx().ucp_config_modify(config, "TCP_BRIDGE_ENABLE", "y"); // off in newer releases; a host's address is often that of a bridge
  if (!options.net_device.empty()) ucx().ucp_config_modify(config, "NET_DEVICES", options.net_device.c_str());
  ucp_params_t params{};
  params.field_mask = UCP_PARAM_FIELD_FEATURES;
  params.features = UCP_FEATURE_RMA | UCP_FEATURE_WAKEUP;
  const auto init = ucx().ucp_init_version(UCP_API_MAJOR, UCP_API_MINOR, &params, config, &state->context);
  ucx().ucp_config_release(config);
  if (init != UCS_OK) return tl::unexpected(ucx_error("start", init));
  ucp_worker_params_t worker{};
  worker.field_mask = UCP_WORKER_PARAM_FIELD_THREAD_MODE;
  worker.thread_mode = UCS_THREAD_MODE_SERIALIZED;
  if (const auto s = ucx().ucp_worker_create(state->context, &worker, &state->worker); s != UCS_OK) return tl::unexpected(ucx_error("create a worker", s));
  if (const auto s = ucx().ucp_worker_get_efd(state->worker, &state->ucx_event); s != UCS_OK) return tl::unexpected(ucx_error("give an event descriptor", s));
  ucp_address_t* address = nullptr;
  std::size_t length = 0;
  if (const auto s = ucx().ucp_worker_get_address(state->worker, &address, &length); s != UCS_OK) return tl::unexpected(ucx_error("give its address", s));
  state->address.assign(reinterpret_cast<const char*>(address), length);
  ucx().ucp_worker_release_address(state->worker, address);
  state->wake = FileDescriptor(::eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC));
  if (!state->wake.valid()) return tl::unexpected(system_error("create", "eventfd", errno));
  return state;
}

// Hands the completion over to a waiting thread; shared, since the waiter may give up first.
struct Waiter {
  std::mutex mutex;
  std::condition_variable changed;
  std::optional<Status> status;
};

template <class Start>
Status wait_for(TransferEngine& engine, const std::string& worker, Duration deadline, Start start) {
  auto waiter = std::make_shared<Waiter>();
  start([waiter](Status status) {
    const std::lock_guard lock(waiter->mutex);
    waiter->status = std::move(status);
    waiter->changed.notify_one();
  });
  std::unique_lock lock(waiter->mutex);
  if (waiter->changed.wait_for(lock, deadline, [&] { return waiter->status.has_value(); })) return *waiter->status;
  lock.unlock();
  engine.drop_peer(worker); // completes the operation: afterwards nobody touches the caller's memory
  lock.lock();
  waiter->changed.wait(lock, [&] { return waiter->status.has_value(); });
  return fail(ErrorCode::kTimeout, "the peer did not answer within " + format_duration(deadline));
}

} // namespace

TransferEngine::TransferEngine(std::shared_ptr<internal::EngineState> state) : state_(std::move(state)) {}

Result<std::unique_ptr<TransferEngine>> TransferEngine::start(const TransferOptions& options) {
  TROUPE_TRY(auto state, make_state(options));
  state->thread = std::thread([raw = state.get()] { raw->run(); });
  return std::unique_ptr<TransferEngine>(new TransferEngine(std::move(state)));
}

TransferEngine::~TransferEngine() {
  {
    const std::lock_guard lock(state_->mutex);
    state_->stopping = true;
  }
  const std::uint64_t one = 1;
  [[maybe_unused]] const auto n = ::write(state_->wake.get(), &one, sizeof one);
  state_->thread.join();
}

Result<ExposedRegion> TransferEngine::expose(void* data, std::size_t bytes) {
  // Shared: set_value may still be running when the waiter has gone on.
  auto promise = std::make_shared<std::promise<Result<ExposedRegion>>>();
  auto future = promise->get_future();
  const bool posted = state_->post([promise, data, bytes, state = state_] {
    ucp_mem_map_params_t params{};
    params.field_mask = UCP_MEM_MAP_PARAM_FIELD_ADDRESS | UCP_MEM_MAP_PARAM_FIELD_LENGTH;
    params.address = data;
    params.length = bytes;
    ucp_mem_h memory = nullptr;
    if (const auto s = ucx().ucp_mem_map(state->context, &params, &memory); s != UCS_OK) return promise->set_value(tl::unexpected(ucx_error("register memory", s)));
    void* key = nullptr;
    std::size_t key_bytes = 0;
    if (const auto s = ucx().ucp_rkey_pack(state->context, memory, &key, &key_bytes); s != UCS_OK) {
      ucx().ucp_mem_unmap(state->context, memory);
      return promise->set_value(tl::unexpected(ucx_error("pack a remote key", s)));
    }
    ExposedRegion region;
    region.descriptor_ = {state->address, std::string(static_cast<const char*>(key), key_bytes), reinterpret_cast<std::uint64_t>(data), bytes};
    region.memory_ = memory;
    region.engine_ = state;
    ucx().ucp_rkey_buffer_release(key);
    promise->set_value(std::move(region));
  });
  if (!posted) return fail(ErrorCode::kCancelled, "the transfer engine has stopped");
  return future.get();
}

void ExposedRegion::release() {
  if (memory_ == nullptr) return;
  auto promise = std::make_shared<std::promise<void>>();
  auto unmap = [promise, context = engine_->context, memory = static_cast<ucp_mem_h>(memory_)] {
    ucx().ucp_mem_unmap(context, memory);
    promise->set_value();
  };
  auto done = promise->get_future();
  if (engine_->post(unmap)) done.wait();
  else unmap(); // the thread is gone: nobody else touches the context
  memory_ = nullptr;
}

ExposedRegion::~ExposedRegion() { release(); }

ExposedRegion& ExposedRegion::operator=(ExposedRegion&& other) noexcept {
  if (this == &other) return *this;
  release();
  descriptor_ = std::move(other.descriptor_);
  memory_ = std::exchange(other.memory_, nullptr);
  engine_ = std::move(other.engine_);
  return *this;
}

void TransferEngine::get(const RemoteRegion& from, std::uint64_t offset, void* destination, std::size_t bytes, Completion done) {
  if (offset > from.bytes || bytes > from.bytes - offset)
    return done(fail(ErrorCode::kInvalidArgument, "the range to read lies outside the peer's region of " + std::to_string(from.bytes) + " bytes"));
  auto task = [state = state_.get(), from, offset, destination, bytes, done] { state->start_operation(true, from, offset, destination, bytes, done); };
  if (!state_->post(std::move(task))) done(fail(ErrorCode::kCancelled, "the transfer engine has stopped"));
}

void TransferEngine::put(const RemoteRegion& to, std::uint64_t offset, const void* source, std::size_t bytes, Completion done) {
  if (offset > to.bytes || bytes > to.bytes - offset)
    return done(fail(ErrorCode::kInvalidArgument, "the range to write lies outside the peer's region of " + std::to_string(to.bytes) + " bytes"));
  auto task = [state = state_.get(), to, offset, source, bytes, done] {
    state->start_operation(false, to, offset, const_cast<void*>(source), bytes, done); // UCX reads it only
  };
  if (!state_->post(std::move(task))) done(fail(ErrorCode::kCancelled, "the transfer engine has stopped"));
}

Status TransferEngine::get_blocking(const RemoteRegion& from, std::uint64_t offset, void* destination, std::size_t bytes, Duration deadline) {
  return wait_for(*this, from.worker, deadline, [&](Completion done) { get(from, offset, destination, bytes, std::move(done)); });
}

Status TransferEngine::put_blocking(const RemoteRegion& to, std::uint64_t offset, const void* source, std::size_t bytes, Duration deadline) {
  return wait_for(*this, to.worker, deadline, [&](Completion done) { put(to, offset, source, bytes, std::move(done)); });
}

void TransferEngine::drop_peer(const std::string& worker) {
  state_->post([state = state_.get(), worker] {
    const auto it = state->endpoints.find(worker);
    if (it == state->endpoints.end()) return;
    state->close(it->second);
    state->endpoints.erase(it);
  });
}

} // namespace troupe::comm
