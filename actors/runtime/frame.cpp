#include "actors/runtime/frame.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <nlohmann/json.hpp>

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

Result<WorkerFrame> decode_frame(std::string_view text) {
  try {
    const json j = json::parse(text);
    WorkerFrame f;
    j.at("run_id").get_to(f.run_id);
    j.at("run_folder").get_to(f.run_folder);
    j.at("term").get_to(f.term);
    j.at("epoch").get_to(f.epoch);
    j.at("name").get_to(f.name);
    j.at("role").get_to(f.role);
    j.at("index").get_to(f.index);
    j.at("incarnation").get_to(f.incarnation);
    j.at("node").get_to(f.node);
    j.at("head_host").get_to(f.head_host);
    j.at("head_port").get_to(f.head_port);
    j.at("certificate").get_to(f.credential.certificate);
    j.at("key").get_to(f.credential.key);
    j.at("authority").get_to(f.credential.authority);
    j.at("joined").get_to(f.joined);
    j.at("bulk_device").get_to(f.bulk_device);
    j.at("lease_ms").get_to(f.lease_ms);
    j.at("head_wait_ms").get_to(f.head_wait_ms);
    j.at("experiment").get_to(f.experiment);
    return f;
  } catch (const json::exception& e) {
    return fail(ErrorCode::kCorrupt, std::string("the start frame is damaged: ") + e.what());
  }
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
