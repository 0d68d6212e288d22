/// @file
/// Counter-based randomness: a number is a pure function of (key, counter), so it never depends on which worker asks, or when.
#pragma once

#include <array>
#include <cstdint>

namespace troupe {

/// Philox4x32 with 10 rounds. Source: Salmon et al., 2011, "Parallel random numbers: as easy as 1, 2, 3".
[[nodiscard]] std::array<std::uint32_t, 4> philox4x32(std::array<std::uint32_t, 4> counter, std::array<std::uint32_t, 2> key);

/// What a stream of numbers is for; part of the key, so that streams never overlap.
enum class RngStream : std::uint32_t { kSampling = 1, kShuffle = 2, kInit = 3, kTask = 4, kSplit = 5, kTest = 6 };

/// One named stream of the run's randomness.
class Rng {
 public:
  Rng(std::uint64_t seed, RngStream stream, std::uint64_t a = 0, std::uint32_t b = 0);

  /// The 64 bits at `index`; the same whatever was asked before.
  [[nodiscard]] std::uint64_t bits_at(std::uint64_t index) const;
  /// In [0, 1), 53 bits.
  [[nodiscard]] double uniform_at(std::uint64_t index) const;

  /// The next 64 bits of the stream.
  std::uint64_t next() { return bits_at(position_++); }
  double uniform() { return uniform_at(position_++); }
  /// Uniform in [0, bound), bound >= 1, without modulo bias.
  std::uint64_t below(std::uint64_t bound);
  /// Standard normal (Box-Muller; uses two positions).
  double normal();

  [[nodiscard]] std::uint64_t position() const { return position_; }
  void seek(std::uint64_t position) { position_ = position; }

 private:
  std::array<std::uint32_t, 2> key_;
  std::uint64_t a_;
  std::uint64_t position_ = 0;
};

/// 64-bit mix of several words (for deriving keys and splits). Stable for ever: written into files.
[[nodiscard]] std::uint64_t mix64(std::uint64_t a, std::uint64_t b);

} // namespace troupe
