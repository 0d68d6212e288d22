#include <cstring>

#include "formats/dtype.h"
#include "formats/gguf.h"

namespace troupe::formats {

namespace {

std::uint8_t byte_at(const std::byte* p, std::size_t i) { return std::to_integer<std::uint8_t>(p[i]); }

float half_at(const std::byte* p) {
  std::uint16_t bits = 0;
  std::memcpy(&bits, p, sizeof bits);
  return half_to_float(bits);
}

/// Scale, then 32 signed bytes.
void q8_0(const std::byte* block, float* out) {
  const float scale = half_at(block);
  for (std::size_t i = 0; i < 32; ++i)
    out[i] = scale * static_cast<float>(static_cast<std::int8_t>(byte_at(block, 2 + i)));
}

/// Scale, then 16 bytes: low nibbles are values 0..15, high ones 16..31, both minus 8.
void q4_0(const std::byte* block, float* out) {
  const float scale = half_at(block);
  for (std::size_t i = 0; i < 16; ++i) {
    const int pair = byte_at(block, 2 + i);
    out[i] = scale * static_cast<float>((pair & 15) - 8);
    out[i + 16] = scale * static_cast<float>((pair >> 4) - 8);
  }
}

/// Scale and least value, then 16 bytes as in q4_0 but unsigned.
void q4_1(const std::byte* block, float* out) {
  const float scale = half_at(block);
  const float least = half_at(block + 2);
  for (std::size_t i = 0; i < 16; ++i) {
    const int pair = byte_at(block, 4 + i);
    out[i] = scale * static_cast<float>(pair & 15) + least;
    out[i + 16] = scale * static_cast<float>(pair >> 4) + least;
  }
}

/// Two halves (scale of scales, scale of minima), 12 bytes with eight 6-bit scales and eight 6-bit minima, 128 bytes of
/// nibbles: each run of 32 bytes holds sub-block 2j in its low and 2j+1 in its high nibbles.
void q4_k(const std::byte* block, float* out) {
  const float scale = half_at(block);
  const float minimum = half_at(block + 2);
  const std::byte* packed = block + 4;
  for (std::size_t sub = 0; sub < 8; ++sub) {
    int s = 0;
    int m = 0;
    if (sub < 4) {
      s = byte_at(packed, sub) & 63;
      m = byte_at(packed, sub + 4) & 63;
    } else {
      s = (byte_at(packed, sub + 4) & 15) | (byte_at(packed, sub - 4) >> 6 << 4);
      m = (byte_at(packed, sub + 4) >> 4) | (byte_at(packed, sub) >> 6 << 4);
    }
    const float factor = scale * static_cast<float>(s);
    const float offset = minimum * static_cast<float>(m);
    const std::byte* nibbles = block + 16 + sub / 2 * 32;
    const int shift = sub % 2 == 0 ? 0 : 4;
    for (std::size_t i = 0; i < 32; ++i)
      out[sub * 32 + i] = factor * static_cast<float>((byte_at(nibbles, i) >> shift) & 15) - offset;
  }
}

/// 128 bytes of low nibbles, 64 bytes of high bit pairs, 16 signed scales (one per 16 values), one half for all; values
/// minus 32.
void q6_k(const std::byte* block, float* out) {
  const std::byte* scales = block + 192;
  const float scale = half_at(block + 208);
  for (std::size_t half = 0; half < 2; ++half) {
    const std::byte* low = block + half * 64;
    const std::byte* high = block + 128 + half * 32;
    for (std::size_t quarter = 0; quarter < 4; ++quarter)
      for (std::size_t i = 0; i < 32; ++i) {
        const int nibble = (byte_at(low, (quarter % 2) * 32 + i) >> (quarter < 2 ? 0 : 4)) & 15;
        const int pair = (byte_at(high, i) >> (2 * quarter)) & 3;
        const auto s = static_cast<std::int8_t>(byte_at(scales, half * 8 + quarter * 2 + i / 16));
        out[half * 128 + quarter * 32 + i] =
            scale * static_cast<float>(s) * static_cast<float>((nibble | (pair << 4)) - 32);
      }
  }
}

template <std::size_t kValues, std::size_t kBytes>
void each_block(std::span<const std::byte> bytes, std::span<float> out, void (*decode)(const std::byte*, float*)) {
  for (std::size_t block = 0; block < out.size() / kValues; ++block)
    decode(bytes.data() + block * kBytes, out.data() + block * kValues);
}

}  // namespace

Status dequantise(const GgufTensor& tensor, std::span<float> out) {
  if (static_cast<std::int64_t>(out.size()) != tensor.elements())
    return fail(ErrorCode::kInvalidArgument, "tensor '" + tensor.name + "' has " + std::to_string(tensor.elements()) +
                                                 " values, not " + std::to_string(out.size()));
  switch (GgufType{tensor.type}) {
    case GgufType::kF32:
      (void)convert_to_float(DType::kF32, tensor.bytes, out);
      return {};
    case GgufType::kF16:
      (void)convert_to_float(DType::kF16, tensor.bytes, out);
      return {};
    case GgufType::kBF16:
      (void)convert_to_float(DType::kBF16, tensor.bytes, out);
      return {};
    case GgufType::kQ8_0:
      each_block<32, 34>(tensor.bytes, out, q8_0);
      return {};
    case GgufType::kQ4_0:
      each_block<32, 18>(tensor.bytes, out, q4_0);
      return {};
    case GgufType::kQ4_1:
      each_block<32, 20>(tensor.bytes, out, q4_1);
      return {};
    case GgufType::kQ4_K:
      each_block<256, 144>(tensor.bytes, out, q4_k);
      return {};
    case GgufType::kQ6_K:
      each_block<256, 210>(tensor.bytes, out, q6_k);
      return {};
  }
  return fail(ErrorCode::kInvalidArgument, "tensor '" + tensor.name + "' is stored as " + gguf_type_name(tensor.type) +
                                               "; readable are F32, F16, BF16, Q8_0, Q4_0, Q4_1, Q4_K and Q6_K");
}

}  // namespace troupe::formats
