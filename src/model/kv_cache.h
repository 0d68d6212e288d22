/// @file
/// Memory for keys and values in pages, for all layers. Which sequence owns which page is generate/'s business.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "kernels/attention.h"
#include "model/spec.h"

namespace troupe::model {

/// Pages of `page_tokens` tokens. A page number is valid in every layer. Memory is float32 and untouched until it is
/// written.
class KvCache {
 public:
  /// Preconditions: pages >= 1; page_tokens a multiple of 16. Aborts when the address space cannot be reserved.
  KvCache(const ModelSpec& spec, int pages, int page_tokens);

  /// Bytes that one page takes over all layers.
  [[nodiscard]] static std::int64_t bytes_per_page(const ModelSpec& spec, int page_tokens);

  [[nodiscard]] int pages() const { return pages_; }
  [[nodiscard]] int page_tokens() const { return page_tokens_; }
  [[nodiscard]] std::int64_t bytes() const { return bytes_; }

  /// Copies one page of every layer (copy on write of a shared page that is not full).
  void copy_page(int source, int destination);

  /// The memory of a page in one layer, in the kernels' own order.
  [[nodiscard]] kernels::KvPage page(int layer, int index) const;

 private:
  struct Unmap {
    std::size_t bytes;
    void operator()(float* memory) const;
  };
  struct Layer {
    std::int64_t half_floats = 0;  ///< Of the keys, and of the values, of one page.
    std::int64_t offset = 0;       ///< Floats before the layer's first page.
  };

  int pages_;
  int page_tokens_;
  std::int64_t bytes_ = 0;
  std::vector<Layer> layers_;
  std::unique_ptr<float, Unmap> memory_;
};

}  // namespace troupe::model
