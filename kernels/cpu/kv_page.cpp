// Rows in and out of the pages of the KV cache.
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

/// Where key `slot` of head `head` begins in a page; its dimensions are 16 floats apart.
std::int64_t key_offset(const AttentionShape& shape, std::int64_t capacity, std::int64_t head, std::int64_t slot) {
  return (head * capacity + slot / kLanes * kLanes) * shape.head_dim + slot % kLanes;
}

std::int64_t value_offset(const AttentionShape& shape, std::int64_t capacity, std::int64_t head, std::int64_t slot) {
  return (head * capacity + slot) * shape.head_dim;
}

/// As `rounded` of the vectors: the operands of products with bfloat16.
float to_bfloat16(float x) {
  const auto raw = std::bit_cast<std::uint32_t>(x);
  if (std::isnan(x)) return std::bit_cast<float>((raw | 0x00400000U) & 0xffff0000U);
  if ((raw & 0x7f800000U) == 0) return std::bit_cast<float>(raw & 0x80000000U);
  return std::bit_cast<float>((raw + 0x7fffU + (raw >> 16 & 1U)) & 0xffff0000U);
}

}  // namespace

void store_in_page(const AttentionShape& shape, const float* k, const float* v, std::int64_t stride, std::int64_t rows,
                   const KvPage& page, std::int64_t first) {
  TROUPE_CHECK(page.capacity % kLanes == 0 && first >= 0 && first + rows <= page.capacity,
               "store_in_page: outside the page");
  const auto head_bytes = static_cast<std::size_t>(shape.head_dim) * sizeof(float);
  const bool rounds = shape.precision == Precision::kBfloat16;
  for (std::int64_t t = 0; t < rows; ++t) {
    for (std::int64_t head = 0; head < shape.kv_heads; ++head) {
      const float* key = k + t * stride + head * shape.head_dim;
      const float* value = v + t * stride + head * shape.head_dim;
      float* target = page.k + key_offset(shape, page.capacity, head, first + t);
      float* value_target = page.v + value_offset(shape, page.capacity, head, first + t);
      if (rounds) {
        for (std::int64_t d = 0; d < shape.head_dim; ++d) target[d * kLanes] = to_bfloat16(key[d]);
        for (std::int64_t d = 0; d < shape.head_dim; ++d) value_target[d] = to_bfloat16(value[d]);
      } else {
        for (std::int64_t d = 0; d < shape.head_dim; ++d) target[d * kLanes] = key[d];
        std::memcpy(value_target, value, head_bytes);
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
  TROUPE_CHECK(page.capacity % kLanes == 0 && first >= 0 && first + rows <= page.capacity,
               "load_from_page: outside the page");
  const auto head_bytes = static_cast<std::size_t>(shape.head_dim) * sizeof(float);
  for (std::int64_t t = 0; t < rows; ++t) {
    for (std::int64_t head = 0; head < shape.kv_heads; ++head) {
      float* key = k + t * stride + head * shape.head_dim;
      const float* source = page.k + key_offset(shape, page.capacity, head, first + t);
      for (std::int64_t d = 0; d < shape.head_dim; ++d) key[d] = source[d * kLanes];
      std::memcpy(v + t * stride + head * shape.head_dim, page.v + value_offset(shape, page.capacity, head, first + t),
                  head_bytes);
    }
  }
}

}  // namespace troupe::kernels
