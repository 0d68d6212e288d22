/// @file
/// Small states for the tests, a pure function of their step.
#pragma once

#include <gtest/gtest.h>
#include <unistd.h>

#include <cstring>
#include <filesystem>
#include <span>
#include <string>
#include <vector>

#include "base/rng.h"
#include "checkpoint/repository.h"

namespace troupe::checkpoint {

/// A folder of its own, removed at the end.
class ScratchFolder {
 public:
  ScratchFolder() {
    std::string name = testing::TempDir() + "troupe_checkpoint_XXXXXX";
    path_ = ::mkdtemp(name.data());
  }
  ScratchFolder(const ScratchFolder&) = delete;
  ScratchFolder& operator=(const ScratchFolder&) = delete;
  ~ScratchFolder() {
    std::error_code ignored;
    std::filesystem::remove_all(path_, ignored);
  }
  [[nodiscard]] const std::filesystem::path& path() const { return path_; }

 private:
  std::filesystem::path path_;
};

struct State {
  StateLayout layout;
  std::vector<std::byte> region;
  Record record;
};

inline State state_of(std::uint64_t step, std::uint32_t epoch = 0, std::int64_t rows = 5) {
  State state;
  state.layout = *make_layout({{.name = "model.embed_tokens.weight", .dtype = "F32", .shape = {rows, 7}},
                               {.name = "model.norm.weight", .dtype = "BF16", .shape = {9}},
                               {.name = "optimizer.exp_avg/model.norm.weight", .dtype = "F32", .shape = {9}},
                               {.name = "optimizer.step", .dtype = "I64", .shape = {}},
                               {.name = "empty", .dtype = "F32", .shape = {0, 4}}});
  state.region.resize(state.layout.bytes);
  Rng rng(step, RngStream::kTest);
  for (const TensorEntry& tensor : state.layout.tensors)
    for (std::uint64_t i = 0; i < tensor.bytes; ++i)
      state.region[tensor.offset + i] = static_cast<std::byte>(rng.next());
  state.record.version = {epoch, step};
  state.record.term = 1;
  state.record.stage = 2;
  state.record.seed = 0xFFFFFFFFFFFFFFF1;
  state.record.run_id = "run";
  state.record.config_digest = "c0ffee";
  state.record.model_digest = "0123";
  state.record.optimizer = {{"groups", {{{"name", "decay"}, {"step", step}}}}};
  state.record.schedule = {{"last", 0.1 * static_cast<double>(step)}};
  state.record.data_cursor = {{"epoch", 0}, {"index", 17 * step}};
  std::string ledger(100 + step % 7, '\0');
  for (char& c : ledger) c = static_cast<char>(rng.next());
  state.record.blobs = {{"ledger", ledger}, {"buffer", ""}};
  return state;
}

inline bool same_bytes(std::span<const std::byte> a, std::span<const std::byte> b) {
  return a.size() == b.size() && (a.empty() || std::memcmp(a.data(), b.data(), a.size()) == 0);
}

/// That what was loaded is the state of its step, in every part.
inline void expect_state(const Loaded& loaded, const State& state) {
  EXPECT_TRUE(same_bytes(loaded.region(), state.region));
  const Record &a = loaded.record(), &b = state.record;
  EXPECT_EQ(a.version, b.version);
  EXPECT_EQ(to_json(a), to_json(b));
  ASSERT_NE(a.blob("ledger"), nullptr);
  EXPECT_EQ(*a.blob("ledger"), *b.blob("ledger"));
}

/// Names of everything in a folder, also hidden ones.
inline std::vector<std::string> entries(const std::filesystem::path& folder) {
  std::vector<std::string> names;
  for (const auto& entry : std::filesystem::directory_iterator(folder))
    names.push_back(entry.path().filename().string());
  std::sort(names.begin(), names.end());
  return names;
}

}  // namespace troupe::checkpoint
