#include "actors/runtime/frame.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <nlohmann/json.hpp>

#include "base/json.h"

namespace troupe::actors {

using nlohmann::json;

comm::TransferOptions weight_transfer(const WorkerFrame& frame) {
  comm::TransferOptions options;
  options.net_device = frame.bulk_device;
  options.shared_memory = frame.bulk_device == "lo"; // UCX takes two network namespaces of one machine for one, and hangs
  return options;
}

std::string encode_frame(const WorkerFrame& f) {
  return json{{"run_id", f.run_id},
              {"run_folder", f.run_folder},
              {"term", f.term},
              {"epoch", f.epoch},
              {"name", f.name},
              {"role", f.role},
              {"index", f.index},
              {"incarnation", f.incarnation},
              {"node", f.node},
              {"head_host", f.head_host},
              {"head_port", f.head_port},
              {"certificate", f.credential.certificate},
              {"key", f.credential.key},
              {"authority", f.credential.authority},
              {"joined", f.joined},
              {"bulk_device", f.bulk_device},
              {"lease_ms", f.lease_ms},
              {"head_wait_ms", f.head_wait_ms},
              {"experiment", f.experiment}}
      .dump();
}

namespace {

template <class T>
Status take(const json& object, const char* key, T& into) {
  auto value = json_field<T>(object, key);
  if (!value) return fail(ErrorCode::kCorrupt, "the start frame is damaged: " + value.error().message);
  into = *std::move(value);
  return {};
}

} // namespace

Result<WorkerFrame> decode_frame(std::string_view text) {
  TROUPE_TRY(const json j, parse_json(text, "the start frame"));
  WorkerFrame f;
  TROUPE_TRY_STATUS(take(j, "run_id", f.run_id));
  TROUPE_TRY_STATUS(take(j, "run_folder", f.run_folder));
  TROUPE_TRY_STATUS(take(j, "term", f.term));
  TROUPE_TRY_STATUS(take(j, "epoch", f.epoch));
  TROUPE_TRY_STATUS(take(j, "name", f.name));
  TROUPE_TRY_STATUS(take(j, "role", f.role));
  TROUPE_TRY_STATUS(take(j, "index", f.index));
  TROUPE_TRY_STATUS(take(j, "incarnation", f.incarnation));
  TROUPE_TRY_STATUS(take(j, "node", f.node));
  TROUPE_TRY_STATUS(take(j, "head_host", f.head_host));
  TROUPE_TRY_STATUS(take(j, "head_port", f.head_port));
  TROUPE_TRY_STATUS(take(j, "certificate", f.credential.certificate));
  TROUPE_TRY_STATUS(take(j, "key", f.credential.key));
  TROUPE_TRY_STATUS(take(j, "authority", f.credential.authority));
  const auto joined = j.find("joined");
  if (joined == j.end() || !joined->is_boolean()) return fail(ErrorCode::kCorrupt, "the start frame is damaged: field \"joined\" is missing or of the wrong kind");
  f.joined = joined->get<bool>();
  TROUPE_TRY_STATUS(take(j, "bulk_device", f.bulk_device));
  TROUPE_TRY_STATUS(take(j, "lease_ms", f.lease_ms));
  TROUPE_TRY_STATUS(take(j, "head_wait_ms", f.head_wait_ms));
  TROUPE_TRY_STATUS(take(j, "experiment", f.experiment));
  return f;
}

Result<FileDescriptor> frame_file(std::string_view text) {
  FileDescriptor fd(::memfd_create("troupe-frame", MFD_CLOEXEC));
  if (!fd.valid()) return tl::unexpected(system_error("create", "memory file", errno));
  TROUPE_TRY_STATUS(write_all(fd.get(), std::as_bytes(std::span(text)), "memory file"));
  ::lseek(fd.get(), 0, SEEK_SET);
  return fd;
}

Result<WorkerFrame> read_frame() {
  if (::fcntl(kFrameDescriptor, F_GETFD) < 0)
    return fail(ErrorCode::kInvalidArgument, "this program is started by troupe's node agent and has no use of its own; see `troupe --help`");
  const FileDescriptor fd(kFrameDescriptor);
  std::string text;
  char chunk[65536];
  for (ssize_t n; (n = ::read(fd.get(), chunk, sizeof chunk)) > 0;) text.append(chunk, static_cast<std::size_t>(n));
  return decode_frame(text);
}

} // namespace troupe::actors
