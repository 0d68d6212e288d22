// What actors tell each other, as bytes off a socket: every input is read as every type of message.
#include <caf/binary_deserializer.hpp>
#include <caf/binary_serializer.hpp>
#include <caf/byte_buffer.hpp>
#include <caf/init_global_meta_objects.hpp>

#include <utility>

#include "actors/messages/all.h"
#include "fuzz/support.h"

using namespace troupe;

namespace {

// Reads one message. One that can be read is the same when it is written and read again.
template <class Message>
void read_as(std::span<const std::byte> bytes) {
  Message message{};
  caf::binary_deserializer source(nullptr, bytes.data(), bytes.size());
  if (!source.apply(message)) return;
  caf::byte_buffer written, again;
  caf::binary_serializer sink(nullptr, written);
  if (!sink.apply(message)) return; // it names an actor: that takes an actor system
  Message copy{};
  caf::binary_deserializer second(nullptr, written);
  TROUPE_CHECK(second.apply(copy), "what was written can be read");
  caf::binary_serializer third(nullptr, again);
  TROUPE_CHECK(third.apply(copy) && again == written, "a message is the same when it is read again");
}

template <std::size_t... I>
void read_as_each(std::span<const std::byte> bytes, std::index_sequence<I...>) {
  (read_as<caf::type_by_id_t<caf::id_block::troupe_messages::begin + I>>(bytes), ...);
}

} // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  [[maybe_unused]] static const bool ready = [] { // CAF's errors hold messages, and those their types
    caf::core::init_global_meta_objects();
    caf::init_global_meta_objects<caf::id_block::troupe_messages>();
    return true;
  }();
  const fuzz::MemoryBound bound(size, 1 << 20, 300);
  using Block = caf::id_block::troupe_messages;
  read_as_each({reinterpret_cast<const std::byte*>(data), size}, std::make_index_sequence<Block::end - Block::begin>());
  return 0;
}
