/// @file
/// How the types of src/base and src/comm go over the wire.
#pragma once

#include <caf/inspector_access.hpp>
#include <caf/fwd.hpp>

#include "base/ids.h"
#include "base/result.h"
#include "comm/shared_file.h"
#include "comm/transfer.h"

namespace troupe {

template <class Inspector>
bool inspect(Inspector& f, PolicyVersion& x) {
  return f.object(x).fields(f.field("epoch", x.epoch), f.field("step", x.step));
}

template <class Inspector>
bool inspect(Inspector& f, SampleId& x) {
  return f.object(x).fields(f.field("prompt", x.prompt), f.field("sample", x.sample));
}

template <class Inspector>
bool inspect(Inspector& f, ErrorCode& x) {
  const auto get = [&x] { return static_cast<std::uint8_t>(x); };
  const auto set = [&x](std::uint8_t value) {
    x = static_cast<ErrorCode>(value);
    return true;
  };
  return f.apply(get, set);
}

template <class Inspector>
bool inspect(Inspector& f, Error& x) {
  return f.object(x).fields(f.field("code", x.code), f.field("message", x.message), f.field("where", x.where));
}

} // namespace troupe

namespace troupe::comm {

template <class Inspector>
bool inspect(Inspector& f, RemoteRegion& x) {
  return f.object(x).fields(f.field("worker", x.worker), f.field("key", x.key), f.field("address", x.address), f.field("bytes", x.bytes));
}

template <class Inspector>
bool inspect(Inspector& f, SharedFile& x) {
  return f.object(x).fields(f.field("machine", x.machine), f.field("pid", x.pid), f.field("descriptor", x.descriptor), f.field("device", x.device),
                            f.field("inode", x.inode), f.field("offset", x.offset), f.field("bytes", x.bytes));
}

} // namespace troupe::comm
