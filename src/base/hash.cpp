#include "base/hash.h"

#include <cinttypes>
#include <cstdio>

#include "base/hash_kernels.h"

namespace troupe {
namespace {

const hash_kernels::Functions& functions() {
  static const hash_kernels::Functions chosen = __builtin_cpu_supports("avx2") ? hash_kernels::avx2() : hash_kernels::baseline();
  return chosen;
}

} // namespace

std::uint64_t hash64(std::span<const std::byte> bytes, std::uint64_t seed) { return functions().one_shot(bytes.data(), bytes.size(), seed); }
std::uint64_t hash64(std::string_view text, std::uint64_t seed) { return functions().one_shot(text.data(), text.size(), seed); }

Hasher64::Hasher64() : stream_(functions().create()) {}
Hasher64::~Hasher64() { functions().destroy(stream_); }
void Hasher64::reset() { functions().reset(stream_); }
void Hasher64::update(std::span<const std::byte> bytes) { functions().update(stream_, bytes.data(), bytes.size()); }
std::uint64_t Hasher64::digest() const { return functions().digest(stream_); }

std::string hex64(std::uint64_t value) {
  char text[17];
  std::snprintf(text, sizeof text, "%016" PRIx64, value);
  return text;
}

} // namespace troupe
