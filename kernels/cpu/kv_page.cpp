// Rows in and out of the pages of the KV cache.
#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>

#include "base/check.h"
#include "kernels/attention.h"
#include "kernels/cpu/parallel.h"
#include "kernels/cpu/table.h"

namespace troupe::kernels {
namespace {

constexpr double kOperationsPerFloat = 30;  // a key's floats lie a cache line apart

/// Where key `slot` of head `head` begins in a page of floats; its dimensions are 16 floats apart.
std::int64_t key_offset(const AttentionShape& shape, std::int64_t capacity, std::int64_t head, std::int64_t slot) {
  return (head * capacity + slot / kLanes * kLanes) * shape.head_dim + slot % kLanes;
}

std::int64_t value_offset(const AttentionShape& shape, std::int64_t capacity, std::int64_t head, std::int64_t slot) {
  return (head * capacity + slot) * shape.head_dim;
}

/// The same in a page of bfloat16, in numbers of 16 bits: channel d of a key, and of a value.
std::int64_t key_place(const AttentionShape& shape, std::int64_t capacity, std::int64_t head, std::int64_t slot,
                       std::int64_t d) {
  return (head * capacity + slot / kLanes * kLanes) * shape.head_dim + (d / 2 * kLanes + slot % kLanes) * 2 + d % 2;
}
std::int64_t value_place(const AttentionShape& shape, std::int64_t capacity, std::int64_t head, std::int64_t slot,
                         std::int64_t d) {
  return (head * capacity + slot / 2 * 2) * shape.head_dim + d * 2 + slot % 2;
}

/// As `rounded` of the vectors: the operands of products with bfloat16.
std::uint16_t to_bfloat16(float x) {
  const auto raw = std::bit_cast<std::uint32_t>(x);
  if (std::isnan(x)) return static_cast<std::uint16_t>((raw | 0x00400000U) >> 16);
  if ((raw & 0x7f800000U) == 0) return static_cast<std::uint16_t>((raw & 0x80000000U) >> 16);
  return static_cast<std::uint16_t>((raw + 0x7fffU + (raw >> 16 & 1U)) >> 16);
}

void put(float* page, std::int64_t place, float x) {
  const std::uint16_t bits = to_bfloat16(x);
  std::memcpy(reinterpret_cast<char*>(page) + 2 * place, &bits, sizeof(bits));
}
float get(const float* page, std::int64_t place) {
  std::uint16_t bits = 0;
  std::memcpy(&bits, reinterpret_cast<const char*>(page) + 2 * place, sizeof(bits));
  return std::bit_cast<float>(static_cast<std::uint32_t>(bits) << 16);
}

void check_place(const KvPage& page, std::int64_t first, std::int64_t rows) {
  TROUPE_CHECK(page.capacity % kLanes == 0 && first >= 0 && first + rows <= page.capacity, "a KV page: outside it");
}

}  // namespace

void store_in_page(const AttentionShape& shape, const float* k, const float* v, std::int64_t stride, std::int64_t rows,
                   const KvPage& page, std::int64_t first) {
  check_place(page, first, rows);
  const std::int64_t hd = shape.head_dim;
  for (std::int64_t t = 0; t < rows; ++t) {
    for (std::int64_t head = 0; head < shape.kv_heads; ++head) {
      const float* key = k + t * stride + head * hd;
      const float* value = v + t * stride + head * hd;
      if (shape.precision == Precision::kBfloat16) {
        for (std::int64_t d = 0; d < hd; ++d) put(page.k, key_place(shape, page.capacity, head, first + t, d), key[d]);
        for (std::int64_t d = 0; d < hd; ++d) put(page.v, value_place(shape, page.capacity, head, first + t, d), value[d]);
      } else {
        float* target = page.k + key_offset(shape, page.capacity, head, first + t);
        for (std::int64_t d = 0; d < hd; ++d) target[d * kLanes] = key[d];
        std::copy_n(value, hd, page.v + value_offset(shape, page.capacity, head, first + t));
      }
    }
  }
}

void store_in_pages(const AttentionShape& shape, const PageStore* stores, std::int64_t count) {
  std::int64_t rows = 0;
  for (std::int64_t i = 0; i < count; ++i) rows += stores[i].rows;
  const double operations = kOperationsPerFloat * static_cast<double>(rows * shape.kv_heads * shape.head_dim);
  run_ranges(count, 1, threads_for(operations), [&](std::int64_t begin, std::int64_t end) {
    for (std::int64_t i = begin; i < end; ++i) {
      const PageStore& s = stores[i];
      store_in_page(shape, s.k, s.v, s.stride, s.rows, s.page, s.first);
    }
  });
}

void load_from_page(const AttentionShape& shape, const KvPage& page, std::int64_t first, std::int64_t rows, float* k,
                    float* v, std::int64_t stride) {
  check_place(page, first, rows);
  const std::int64_t hd = shape.head_dim;
  for (std::int64_t t = 0; t < rows; ++t) {
    for (std::int64_t head = 0; head < shape.kv_heads; ++head) {
      float* key = k + t * stride + head * hd;
      float* value = v + t * stride + head * hd;
      if (shape.precision == Precision::kBfloat16) {
        for (std::int64_t d = 0; d < hd; ++d) key[d] = get(page.k, key_place(shape, page.capacity, head, first + t, d));
        for (std::int64_t d = 0; d < hd; ++d) value[d] = get(page.v, value_place(shape, page.capacity, head, first + t, d));
      } else {
        const float* source = page.k + key_offset(shape, page.capacity, head, first + t);
        for (std::int64_t d = 0; d < hd; ++d) key[d] = source[d * kLanes];
        std::copy_n(page.v + value_offset(shape, page.capacity, head, first + t), hd, value);
      }
    }
  }
}

}  // namespace troupe::kernels
