#include "base/rng.h"

#include <cmath>
#include <numbers>

namespace troupe {

std::array<std::uint32_t, 4> philox4x32(std::array<std::uint32_t, 4> c, std::array<std::uint32_t, 2> k) {
  for (int round = 0; round < 10; ++round) {
    const std::uint64_t p0 = std::uint64_t{0xD2511F53u} * c[0];
    const std::uint64_t p1 = std::uint64_t{0xCD9E8D57u} * c[2];
    c = {static_cast<std::uint32_t>(p1 >> 32) ^ c[1] ^ k[0], static_cast<std::uint32_t>(p1),
         static_cast<std::uint32_t>(p0 >> 32) ^ c[3] ^ k[1], static_cast<std::uint32_t>(p0)};
    k[0] += 0x9E3779B9u;
    k[1] += 0xBB67AE85u;
  }
  return c;
}

std::uint64_t mix64(std::uint64_t a, std::uint64_t b) {
  std::uint64_t z = a + 0x9E3779B97F4A7C15ull * (b + 1);
  z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9ull;
  z = (z ^ (z >> 27)) * 0x94D049BB133111EBull;
  return z ^ (z >> 31);
}

Rng::Rng(std::uint64_t seed, RngStream stream, std::uint64_t a, std::uint32_t b) : a_(a) {
  const std::uint64_t key = mix64(mix64(seed, static_cast<std::uint64_t>(stream)), b);
  key_ = {static_cast<std::uint32_t>(key), static_cast<std::uint32_t>(key >> 32)};
}

std::uint64_t Rng::bits_at(std::uint64_t index) const {
  const auto block = philox4x32({static_cast<std::uint32_t>(index / 2), static_cast<std::uint32_t>((index / 2) >> 32),
                                 static_cast<std::uint32_t>(a_), static_cast<std::uint32_t>(a_ >> 32)},
                                key_);
  const int half = index % 2 ? 2 : 0;
  return (std::uint64_t{block[half + 1]} << 32) | block[half];
}

double Rng::uniform_at(std::uint64_t index) const { return static_cast<double>(bits_at(index) >> 11) * 0x1.0p-53; }

std::uint64_t Rng::below(std::uint64_t bound) {
  const std::uint64_t limit = ~std::uint64_t{0} - (~std::uint64_t{0} % bound + 1) % bound; // last value of a whole multiple
  for (;;)
    if (const std::uint64_t x = next(); x <= limit) return x % bound;
}

double Rng::normal() {
  const double u = 1.0 - uniform(), v = uniform(); // u in (0, 1]
  return std::sqrt(-2.0 * std::log(u)) * std::cos(2.0 * std::numbers::pi * v);
}

} // namespace troupe
