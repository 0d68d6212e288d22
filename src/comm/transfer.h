/// @file
/// One-sided bulk transfer between processes (UCX): the owner of memory exposes it, a peer reads or writes it.
///
/// The descriptor of a region travels in a control message; the bytes never do. One thread of the engine owns UCX; it sleeps on UCX's
/// event descriptor. UCX notices neither a frozen peer nor a cut link: whoever knows better (the control plane) calls `drop_peer`.
/// The data plane is neither authenticated nor encrypted; by default it is bound to loopback and shared memory.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <utility>

#include "base/result.h"
#include "base/units.h"

namespace troupe::comm {

struct TransferOptions {
  std::string net_device = "lo";                ///< Network interface of the tcp transport; an empty string lets UCX choose.
  bool shared_memory = true;                    ///< Off between network namespaces, where UCX would hang in it.
  Duration keepalive = std::chrono::seconds(1); ///< How soon a killed peer is noticed on shared memory.
};

/// For the first line of a program, before it has threads: UCX need not patch the process's memory functions (0.4 s), because no
/// memory is registered here that the caller has not named. UCX_MEM_MMAP_HOOK_MODE in the environment has the last word.
void skip_memory_hooks();

/// Where a peer finds exposed memory. Plain data: goes into messages.
struct RemoteRegion {
  std::string worker; ///< The owner's UCX address.
  std::string key;    ///< Packed remote key.
  std::uint64_t address = 0;
  std::uint64_t bytes = 0;
};

namespace internal {
struct EngineState;
}

/// Memory that peers may access. Destroying it waits until UCX has forgotten it; the memory itself belongs to the caller.
class ExposedRegion {
 public:
  ExposedRegion() = default;
  ExposedRegion(ExposedRegion&& other) noexcept { *this = std::move(other); }
  ExposedRegion& operator=(ExposedRegion&& other) noexcept;
  ~ExposedRegion();
  [[nodiscard]] const RemoteRegion& descriptor() const { return descriptor_; }

 private:
  friend class TransferEngine;
  void release();
  RemoteRegion descriptor_;
  void* memory_ = nullptr; // ucp_mem_h
  std::shared_ptr<internal::EngineState> engine_;
};

/// Called once, on the engine's thread: must be short and must not block.
using Completion = std::function<void(Status)>;

/// Thread-safe. Destroying it fails all outstanding operations with kCancelled and joins the thread.
class TransferEngine {
 public:
  /// Errors: kUnavailable with UCX's own text.
  [[nodiscard]] static Result<std::unique_ptr<TransferEngine>> start(const TransferOptions& options);
  ~TransferEngine();
  TransferEngine(const TransferEngine&) = delete;
  TransferEngine& operator=(const TransferEngine&) = delete;

  /// Lets peers read and write `bytes` bytes at `data`, which must outlive the region.
  [[nodiscard]] Result<ExposedRegion> expose(void* data, std::size_t bytes);

  /// Copies [offset, offset + bytes) of the peer's region to `destination`, which must live until `done` was called.
  /// Errors: kInvalidArgument outside the region; kUnavailable when the peer died or was dropped.
  void get(const RemoteRegion& from, std::uint64_t offset, void* destination, std::size_t bytes, Completion done);
  /// The other direction; `done` means that the peer can see the bytes.
  void put(const RemoteRegion& to, std::uint64_t offset, const void* source, std::size_t bytes, Completion done);

  /// As get and put, on the caller's thread. Errors also: kTimeout; the peer is dropped then, so that nothing is written later.
  [[nodiscard]] Status get_blocking(const RemoteRegion& from, std::uint64_t offset, void* destination, std::size_t bytes, Duration deadline);
  [[nodiscard]] Status put_blocking(const RemoteRegion& to, std::uint64_t offset, const void* source, std::size_t bytes, Duration deadline);

  /// Closes the connection to a peer by force; its outstanding operations complete with kUnavailable.
  void drop_peer(const std::string& worker);

 private:
  explicit TransferEngine(std::shared_ptr<internal::EngineState> state);
  std::shared_ptr<internal::EngineState> state_;
};

} // namespace troupe::comm
