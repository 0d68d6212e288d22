/// @file
/// What the model tests share: golden tensors, comparisons, generation through the paged cache.
#pragma once

#include <gtest/gtest.h>

#include <ATen/core/Tensor.h>
#include <ATen/ops/topk.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <map>
#include <nlohmann/json.hpp>
#include <numeric>
#include <string>
#include <vector>

#include "base/rng.h"
#include "formats/safetensors.h"
#include "model/load.h"
#include "model/model.h"
#include "tensor/autograd.h"

namespace troupe::model::test {

/// Every checkpoint of tests/golden/model: at least one for each row of the registry.
inline constexpr const char* kFixtures[] = {
    "qwen3/base",       "qwen3/yarn_untied", "llama3/base",      "qwen3_moe/base",   "gpt_oss/base",    "deepseek_v3/base",
    "deepseek_v3/yarn", "deepseek_v4/base",  "deepseek_v4/clamp", "qwen3_5/base", "qwen3_5_moe/base", "muse_spark/base"};

inline std::filesystem::path golden_folder(const std::string& name) {
  return std::filesystem::path(TROUPE_GOLDEN_DIR) / "model" / name;
}

inline nlohmann::json golden_json(const std::string& name) {
  std::ifstream in(golden_folder(name) / "golden.json");
  return nlohmann::json::parse(in);
}

template <class T>
T value_or_die(Result<T> result) {
  if (!result) ADD_FAILURE() << result.error().to_string();
  return std::move(*result);
}

inline Model golden_model(const std::string& name) { return value_or_die(load_model(golden_folder(name))); }

/// The tensors of golden.safetensors.
class Golden {
 public:
  explicit Golden(const std::string& name)
      : file_(value_or_die(formats::SafetensorsFile::open(golden_folder(name) / "golden.safetensors"))) {}

  [[nodiscard]] bool has(const std::string& name) const { return file_.find(name) != nullptr; }
  [[nodiscard]] std::vector<float> floats(const std::string& name) const {
    const formats::TensorView* tensor = file_.find(name);
    EXPECT_NE(tensor, nullptr) << name;
    std::vector<float> values(static_cast<std::size_t>(tensor->elements()));
    EXPECT_TRUE(formats::convert_to_float(tensor->dtype, tensor->bytes, values));
    return values;
  }
  [[nodiscard]] std::vector<std::int32_t> ids(const std::string& name) const {
    const formats::TensorView* tensor = file_.find(name);
    EXPECT_NE(tensor, nullptr) << name;
    std::vector<std::int32_t> values(static_cast<std::size_t>(tensor->elements()));
    for (std::size_t i = 0; i < values.size(); ++i) {
      if (tensor->dtype == formats::DType::kI64) {
        std::int64_t wide = 0;
        std::memcpy(&wide, tensor->bytes.data() + 8 * i, sizeof wide);
        values[i] = static_cast<std::int32_t>(wide);
      } else {
        std::memcpy(&values[i], tensor->bytes.data() + 4 * i, sizeof(std::int32_t));
      }
    }
    return values;
  }
  [[nodiscard]] const formats::SafetensorsFile& file() const { return file_; }

 private:
  formats::SafetensorsFile file_;
};

inline std::vector<float> values(const at::Tensor& tensor) {
  const at::Tensor flat = tensor.detach().contiguous();
  return {flat.data_ptr<float>(), flat.data_ptr<float>() + flat.numel()};
}

inline double max_difference(const std::vector<float>& a, const std::vector<float>& b) {
  EXPECT_EQ(a.size(), b.size());
  double worst = 0;
  for (std::size_t i = 0; i < std::min(a.size(), b.size()); ++i)
    worst = std::max(worst, std::isnan(a[i]) ? INFINITY : static_cast<double>(std::abs(a[i] - b[i])));
  return worst;
}

inline double norm(const std::vector<float>& a) {
  double sum = 0;
  for (const float v : a) sum += static_cast<double>(v) * v;
  return std::sqrt(sum);
}

/// ||a - b|| / ||b||.
inline double relative_difference(const std::vector<float>& a, const std::vector<float>& b) {
  EXPECT_EQ(a.size(), b.size());
  std::vector<float> difference(a.size());
  for (std::size_t i = 0; i < a.size(); ++i) difference[i] = a[i] - b[i];
  return norm(difference) / std::max(norm(b), 1e-30);
}

/// Whether rows [begin, end) of `a` and of `b` from `b_begin` on have the same bits.
inline bool same_rows(const std::vector<float>& a, std::size_t a_begin, const std::vector<float>& b,
                      std::size_t b_begin, std::size_t rows, std::size_t width) {
  return std::memcmp(a.data() + a_begin * width, b.data() + b_begin * width, rows * width * sizeof(float)) == 0;
}

inline std::vector<std::int32_t> random_ids(std::uint64_t seed, std::size_t count, std::int32_t vocab) {
  Rng rng(seed, RngStream::kTest);
  std::vector<std::int32_t> ids(count);
  for (auto& id : ids) id = static_cast<std::int32_t>(rng.below(static_cast<std::uint64_t>(vocab)));
  return ids;
}

inline Batch one_document(const std::vector<std::int32_t>& ids) {
  return pack_documents(std::vector<std::vector<std::int32_t>>{ids});
}

/// The forward pass in which an indexer decides between entries of equal score as LibTorch's topk does, which made the
/// goldens: scores of exactly 0 are frequent there, and our rule is the lower index.
inline at::Tensor forward_like_golden(Model& model, const Batch& batch, Trace& trace) {
  for (std::size_t i = 0; i < model.spec().layers.size(); ++i) {
    if (model.spec().layers[i].attention.compress.index_top == 0) continue;
    Trace probe;
    probe.replay = trace.replay;
    {
      const tensor::NoGrad no_grad;
      (void)model.forward(batch, &probe);
    }
    for (Trace::Listed& found : probe.listed) {
      if (found.place != static_cast<int>(i)) continue;
      const auto [best, index] = found.scores.topk(found.most, -1);
      for (std::int64_t row = 0; row < index.size(0); ++row) {
        std::int32_t* list = found.lists.data() + row * found.most;
        std::int32_t* end = list;
        for (std::int64_t j = 0; j < found.most; ++j)
          if (best.data_ptr<float>()[row * found.most + j] > -INFINITY)
            *end++ = static_cast<std::int32_t>(index.data_ptr<std::int64_t>()[row * found.most + j]);
        std::sort(list, end);
        std::fill(end, list + found.most, -1);
      }
      trace.replay.push_back(found);
    }
  }
  return model.forward(batch, &trace);
}

/// Logits of every row of a batch, as forward_like_golden has them.
inline std::vector<float> golden_logits_of(Model& model, const Batch& batch) {
  Trace trace;
  const at::Tensor hidden = forward_like_golden(model, batch, trace);
  return values(model.logits(hidden));
}

/// Logits of every row of a batch.
inline std::vector<float> logits_of(Model& model, const Batch& batch) {
  const tensor::NoGrad no_grad;
  return values(model.logits(model.forward(batch)));
}

/// A sequence in a cache of its own pages: feeds tokens in chunks and returns the logits of all of them.
class CachedSequence {
 public:
  CachedSequence(Model& model, KvCache& cache, std::vector<std::int32_t> pages, std::int32_t state = 0)
      : model_(model), cache_(cache), pages_(std::move(pages)), state_(state) {}

  std::vector<float> feed(std::span<const std::int32_t> ids) {
    CachedBatch batch;
    batch.ids.assign(ids.begin(), ids.end());
    batch.positions.resize(ids.size());
    std::iota(batch.positions.begin(), batch.positions.end(), cached_);
    batch.segments = {{0, static_cast<std::int32_t>(ids.size()), cached_, pages_, state_}};
    cached_ += static_cast<std::int32_t>(ids.size());
    return values(model_.logits(model_.forward(batch, cache_)));
  }

  /// Feeds everything, `chunk` tokens at a time.
  std::vector<float> feed_in_chunks(const std::vector<std::int32_t>& ids, std::size_t chunk) {
    std::vector<float> all;
    for (std::size_t first = 0; first < ids.size(); first += chunk) {
      const auto part = feed(std::span(ids).subspan(first, std::min(chunk, ids.size() - first)));
      all.insert(all.end(), part.begin(), part.end());
    }
    return all;
  }

 private:
  Model& model_;
  KvCache& cache_;
  std::vector<std::int32_t> pages_;
  std::int32_t state_;
  std::int32_t cached_ = 0;
};

inline std::vector<std::int32_t> page_list(int first, int count) {
  std::vector<std::int32_t> pages(static_cast<std::size_t>(count));
  std::iota(pages.begin(), pages.end(), first);
  return pages;
}

inline std::int32_t best(const std::vector<float>& logits, std::size_t row, std::size_t width) {
  const auto first = logits.begin() + static_cast<std::ptrdiff_t>(row * width);
  return static_cast<std::int32_t>(std::max_element(first, first + static_cast<std::ptrdiff_t>(width)) - first);
}

/// Prompt and `count` greedy tokens after it, through the paged cache.
inline std::vector<std::int32_t> greedy(Model& model, std::vector<std::int32_t> ids, std::size_t count,
                                        const std::vector<std::int32_t>& stop = {}) {
  const auto vocab = static_cast<std::size_t>(model.spec().vocab_size);
  const int pages = static_cast<int>((ids.size() + count) / 16 + 1);
  KvCache cache(model.spec(), pages, 16, 1, false, model.precision());
  CachedSequence sequence(model, cache, page_list(0, pages));
  std::vector<float> logits = sequence.feed(ids);
  for (std::size_t i = 0; i < count; ++i) {
    ids.push_back(best(logits, logits.size() / vocab - 1, vocab));
    if (std::find(stop.begin(), stop.end(), ids.back()) != stop.end()) break;
    if (i + 1 < count) logits = sequence.feed(std::span(ids).last(1));
  }
  return ids;
}

/// Scores every next token inside each document; rows and targets in batch order.
struct NextTokens {
  std::vector<std::int64_t> rows;
  std::vector<std::int32_t> targets;
};

inline NextTokens next_tokens(const Batch& batch) {
  NextTokens next;
  for (const Segment& segment : batch.segments)
    for (std::int32_t row = segment.begin; row + 1 < segment.end; ++row) {
      next.rows.push_back(row);
      next.targets.push_back(batch.ids[static_cast<std::size_t>(row) + 1]);
    }
  return next;
}

}  // namespace troupe::model::test
