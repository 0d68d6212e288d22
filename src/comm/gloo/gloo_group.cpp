#include "comm/gloo/gloo_group.h"

#include <ATen/ATen.h>
#include <signal.h>
#include <torch/csrc/distributed/c10d/ProcessGroupGloo.hpp>

#include <algorithm>
#include <condition_variable>
#include <functional>
#include <mutex>
#include <optional>
#include <stdexcept>
#include <thread>

namespace troupe::comm {
namespace {

using Clock = std::chrono::steady_clock;
using std::chrono::milliseconds;

milliseconds to_milliseconds(Duration d) { return std::max(milliseconds(1), std::chrono::duration_cast<milliseconds>(d)); }

// What a C++ library says of itself, without the stack that follows.
std::string first_line(const char* text) {
  std::string line(text);
  line.resize(std::min(line.find('\n'), line.size()));
  if (const auto at = line.find("] "); line.starts_with("[") && at != std::string::npos) line.erase(0, at + 2); // "[file.cc:123] "
  return line;
}

// Our store as c10d wants one. It throws; c10d expects that.
class C10dStore final : public c10d::Store {
 public:
  C10dStore(std::shared_ptr<comm::Store> store, Clock::time_point until) : store_(std::move(store)), until_(until) {}

  c10::intrusive_ptr<c10d::Store> clone() override { return c10::make_intrusive<C10dStore>(store_, until_); }
  void set(const std::string& key, const std::vector<std::uint8_t>& value) override {
    check_or_throw(store_->set(key, std::string(value.begin(), value.end())));
  }
  std::vector<std::uint8_t> get(const std::string& key) override {
    const auto value = store_->get(key, until_ - Clock::now());
    if (!value) throw std::runtime_error(value.error().message);
    return {value->begin(), value->end()};
  }
  void wait(const std::vector<std::string>& keys) override {
    for (const std::string& key : keys) (void)get(key);
  }
  void wait(const std::vector<std::string>& keys, const milliseconds&) override { wait(keys); }
  bool check(const std::vector<std::string>& keys) override {
    return std::all_of(keys.begin(), keys.end(), [&](const auto& key) { return store_->get(key, Duration{0}).has_value(); });
  }
  std::int64_t add(const std::string&, std::int64_t) override { throw std::runtime_error("the store of a mesh does not count"); }
  bool deleteKey(const std::string&) override { return false; }
  std::int64_t getNumKeys() override { throw std::runtime_error("the store of a mesh does not list its keys"); }

 private:
  static void check_or_throw(const Status& status) {
    if (!status) throw std::runtime_error(status.error().message);
  }
  std::shared_ptr<comm::Store> store_;
  Clock::time_point until_; // of the building of the group: c10d asks for nothing later
};

// While this lives, threads are born with SIGPIPE blocked: Gloo writes to connections that a dead peer has closed.
class WithoutSigpipe {
 public:
  WithoutSigpipe() {
    sigset_t pipe;
    sigemptyset(&pipe);
    sigaddset(&pipe, SIGPIPE);
    pthread_sigmask(SIG_BLOCK, &pipe, &before_);
  }
  ~WithoutSigpipe() { pthread_sigmask(SIG_SETMASK, &before_, nullptr); }
  WithoutSigpipe(const WithoutSigpipe&) = delete;
  WithoutSigpipe& operator=(const WithoutSigpipe&) = delete;

 private:
  sigset_t before_{};
};

// Starts an operation of any group of this process, one at a time: c10d's flight recorder, which all groups share, adds a group to its map at
// the first operation of that group, without a lock (LibTorch 2.11; two groups that start together end in a segmentation fault).
template <class Start>
auto start_alone(const Start& start) {
  static std::mutex starting;
  const std::lock_guard lock(starting);
  return start();
}

class GlooGroup final : public Collectives {
 public:
  GlooGroup(std::shared_ptr<comm::Store> store, const GroupOptions& options) : store_(std::move(store)), options_(options) {
    // Part of the deadline is for finding out who is missing.
    asking_ = std::min<Duration>(std::chrono::seconds(1), options_.deadline / 5);
    timeout_ = to_milliseconds(options_.deadline - asking_);
  }

  Status connect() {
    const WithoutSigpipe for_its_threads;
    try {
      auto gloo = c10d::ProcessGroupGloo::Options::create(timeout_);
      gloo->devices = {c10d::ProcessGroupGloo::createDeviceForHostname(options_.address)};
      gloo->threads = 1;
      const auto store = c10::make_intrusive<C10dStore>(store_, Clock::now() + timeout_);
      gloo_ = std::make_unique<c10d::ProcessGroupGloo>(store, static_cast<int>(rank()), static_cast<int>(ranks()), gloo);
    } catch (const std::exception& e) {
      return fail(ErrorCode::kUnavailable, "rank/" + std::to_string(rank()) + " could not connect to the other ranks of " + options_.name + " (" +
                                               std::to_string(ranks()) + " ranks): " + first_line(e.what()));
    }
    watch_ = std::thread([this] { watch(); });
    return {};
  }

  ~GlooGroup() override {
    if (!watch_.joinable()) return;
    abort("the group was closed");
    {
      const std::lock_guard lock(mutex_);
      closing_ = true;
      changed_.notify_one();
    }
    watch_.join();
  }

  std::uint32_t rank() const override { return options_.rank; }
  std::uint32_t ranks() const override { return options_.ranks; }

  Status all_reduce(std::span<float> values) override { return sum(values, at::kFloat); }
  Status all_reduce(std::span<double> values) override { return sum(values, at::kDouble); }

  Status broadcast(std::span<std::byte> bytes, std::uint32_t root) override {
    if (root >= ranks()) return fail(ErrorCode::kInvalidArgument, "there is no rank/" + std::to_string(root) + " in a group of " + std::to_string(ranks()));
    return run("broadcast", bytes.empty(), [&] {
      std::vector<at::Tensor> tensors{at::from_blob(bytes.data(), {static_cast<std::int64_t>(bytes.size())}, at::kByte)};
      c10d::BroadcastOptions options;
      options.rootRank = root;
      options.timeout = timeout_;
      return gloo_->broadcast(tensors, options);
    });
  }

  Result<std::vector<std::string>> all_gather(std::string_view blob) override {
    std::vector<std::int64_t> sizes(ranks(), 0);
    const auto mine = static_cast<std::int64_t>(blob.size());
    TROUPE_TRY_STATUS(gather("all_gather", &mine, sizeof mine, sizes.data()));
    const auto longest = static_cast<std::size_t>(*std::max_element(sizes.begin(), sizes.end()));
    std::string padded(blob);
    padded.resize(longest);
    std::string all(longest * ranks(), '\0');
    TROUPE_TRY_STATUS(gather("all_gather", padded.data(), longest, all.data()));
    std::vector<std::string> blobs;
    for (std::size_t r = 0; r < ranks(); ++r) blobs.push_back(all.substr(r * longest, static_cast<std::size_t>(sizes[r])));
    return blobs;
  }

  Status barrier() override {
    const char here = 0;
    std::string all(ranks(), '\0');
    return gather("barrier", &here, 1, all.data());
  }

  bool broken() const override {
    const std::lock_guard lock(mutex_);
    return failure_.has_value();
  }

  void abort(const std::string& reason) override {
    const std::lock_guard lock(mutex_);
    if (!reason_) reason_ = reason;
    cut_ = true;
    changed_.notify_one();
  }

 private:
  template <class T>
  Status sum(std::span<T> values, at::ScalarType type) {
    return run("all_reduce", values.empty(), [&] {
      std::vector<at::Tensor> tensors{at::from_blob(values.data(), {static_cast<std::int64_t>(values.size())}, type)};
      c10d::AllreduceOptions options;
      options.timeout = timeout_;
      return gloo_->allreduce(tensors, options);
    });
  }

  // `bytes` bytes of every rank, one after the other, into `all`.
  Status gather(const char* name, const void* mine, std::size_t bytes, void* all) {
    return run(name, bytes == 0, [&] {
      const auto n = static_cast<std::int64_t>(bytes);
      std::vector<at::Tensor> in{at::from_blob(const_cast<void*>(mine), {n}, at::kByte)};
      std::vector<std::vector<at::Tensor>> out(1);
      for (std::uint32_t r = 0; r < ranks(); ++r) out[0].push_back(at::from_blob(static_cast<std::byte*>(all) + r * bytes, {n}, at::kByte));
      c10d::AllgatherOptions options;
      options.timeout = timeout_;
      return gloo_->allgather(out, in, options);
    });
  }

  // One operation: numbered, watched, and the end of the group when it fails. All ranks skip an empty one alike.
  template <class Start>
  Status run(const char* name, bool empty, const Start& start) {
    {
      const std::lock_guard lock(mutex_);
      operation_ = std::string(name) + ", operation " + std::to_string(++sequence_);
      if (failure_) return tl::unexpected(*failure_);
      if (!reason_ && !empty) until_ = Clock::now() + timeout_;
      changed_.notify_one();
    }
    std::string trouble;
    if (!reason() && !empty) {
      try {
        start_alone(start)->wait();
      } catch (const std::exception& e) {
        trouble = first_line(e.what());
      }
    }
    bool late = false;
    {
      const std::lock_guard lock(mutex_);
      late = late_;
      until_.reset();
    }
    if (trouble.empty() && !reason()) return {};
    return fail_with(trouble, late);
  }

  Status fail_with(const std::string& trouble, bool late) {
    std::string why = late ? "it was not done within " + format_duration(timeout_) : trouble;
    close_connections(); // so that nobody waits for this rank
    if (!reason()) why = ask_who_is_there(why);
    const std::lock_guard lock(mutex_);
    if (reason_) why = *reason_;
    failure_ = Error{late ? ErrorCode::kTimeout : ErrorCode::kUnavailable,
                     operation_ + " of rank/" + std::to_string(rank()) + " in " + options_.name + " (" + std::to_string(ranks()) + " ranks), failed: " + why, ""};
    return tl::unexpected(*failure_);
  }

  void close_connections() {
    const std::lock_guard lock(mutex_);
    cut_ = true;
    changed_.notify_one();
  }

  // Every rank whose operation fails says so in the store: whoever does not is the cause.
  std::string ask_who_is_there(const std::string& trouble) {
    const auto until = Clock::now() + asking_;
    (void)store_->set("failed/" + std::to_string(rank()), trouble);
    std::string silent;
    for (std::uint32_t r = 0; r < ranks(); ++r) {
      if (r == rank() || reason()) continue;
      const auto answer = store_->get("failed/" + std::to_string(r), std::max<Duration>(until - Clock::now(), milliseconds(1)));
      if (!answer && answer.error().code != ErrorCode::kTimeout) return answer.error().message + " (" + trouble + ")"; // it knows better
      if (!answer) silent += (silent.empty() ? "" : ", ") + ("rank/" + std::to_string(r));
    }
    return silent.empty() ? trouble : "no sign of life from " + silent + " (" + trouble + ")";
  }

  [[nodiscard]] std::optional<std::string> reason() const {
    const std::lock_guard lock(mutex_);
    return reason_;
  }

  // Cuts the connections when told to, or when an operation is late. Gloo counts time anew for every part of an operation.
  void watch() {
    std::unique_lock lock(mutex_);
    while (!closing_) {
      if (std::exchange(cut_, false)) {
        lock.unlock();
        cut();
        lock.lock();
      } else if (!until_) {
        changed_.wait(lock);
      } else if (changed_.wait_until(lock, *until_) == std::cv_status::timeout && until_ && Clock::now() >= *until_) {
        until_.reset();
        late_ = cut_ = true;
      }
    }
  }

  // A receive that nobody answers and that ends at once: Gloo then fails every operation of the group and closes all its connections, which
  // wakes this rank and the others. Asked of every peer: of one whose connection is closed already it fails without doing that.
  void cut() {
    constexpr int kNobodySends = 0x7ffffff0;
    for (std::uint32_t peer = 0; peer < ranks(); ++peer) {
      if (peer == rank()) continue;
      try {
        std::vector<at::Tensor> one{at::zeros({1}, at::kByte)};
        start_alone([&] { return gloo_->recv(one, static_cast<int>(peer), kNobodySends); })->wait(milliseconds(1));
      } catch (const std::exception&) { // as meant
      }
    }
  }

  std::shared_ptr<comm::Store> store_;
  const GroupOptions options_;
  Duration asking_{};
  milliseconds timeout_{};
  std::unique_ptr<c10d::ProcessGroupGloo> gloo_;
  mutable std::mutex mutex_;
  std::condition_variable changed_;
  std::uint64_t sequence_ = 0;
  std::string operation_;
  std::optional<Clock::time_point> until_; // of the operation that runs
  std::optional<std::string> reason_;      // of an abort
  std::optional<Error> failure_;           // the first; every later operation has it too
  bool cut_ = false, late_ = false, closing_ = false;
  std::thread watch_;
};

} // namespace

Result<std::unique_ptr<Collectives>> connect_gloo(std::shared_ptr<Store> store, const GroupOptions& options) {
  if (options.ranks < 2 || options.rank >= options.ranks)
    return fail(ErrorCode::kInvalidArgument, "a group has at least two ranks, numbered from 0; got rank " + std::to_string(options.rank) + " of " + std::to_string(options.ranks));
  auto group = std::make_unique<GlooGroup>(std::move(store), options);
  TROUPE_TRY_STATUS(group->connect());
  return std::unique_ptr<Collectives>(std::move(group));
}

} // namespace troupe::comm
