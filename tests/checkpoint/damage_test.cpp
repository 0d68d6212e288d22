#include <gtest/gtest.h>

#include <fstream>

#include "tests/checkpoint/state.h"

namespace troupe::checkpoint {
namespace {

namespace fs = std::filesystem;

void put(const fs::path& path, std::string_view bytes) {
  std::ofstream file(path, std::ios::binary | std::ios::trunc);
  file.write(bytes.data(), static_cast<std::streamsize>(bytes.size()));
}

/// Two commits; the newer one is the victim.
class Damage : public testing::Test {
 protected:
  void SetUp() override {
    for (const std::uint64_t step : {1, 2}) {
      const State state = state_of(step);
      ASSERT_TRUE(repository_.write(state.layout, state.region, state.record).has_value());
    }
    for (const auto& entry : fs::directory_iterator(victim_))
      files_[entry.path().filename()] = *read_file(entry.path());
    ASSERT_EQ(files_.size(), 4u);
  }

  /// The damage is found, said in one sentence, and the older commit is taken.
  void expect_fallback(const std::string& what) {
    const auto newest = repository_.newest_valid();
    ASSERT_TRUE(newest.has_value() && newest->loaded.has_value()) << what;
    ASSERT_EQ(newest->loaded->record().version.step, 1u) << what;
    ASSERT_EQ(newest->skipped.size(), 1u) << what;
    EXPECT_NE(newest->skipped[0].reason.find("step-2.e0"), std::string::npos) << newest->skipped[0].reason;
    EXPECT_EQ(newest->skipped[0].reason.find('\n'), std::string::npos);
  }

  ScratchFolder scratch_;
  Repository repository_{scratch_.path()};
  fs::path victim_ = scratch_.path() / "step-2.e0";
  std::map<std::string, std::string> files_;
};

TEST_F(Damage, EveryTruncationIsFound) {
  for (const auto& [name, bytes] : files_) {
    for (std::size_t length = 0; length < bytes.size();
         length += length % 64 == 63 || length < 70 || length + 70 > bytes.size() ? 1 : 31) {
      put(victim_ / name, bytes.substr(0, length));
      expect_fallback(name + " cut to " + std::to_string(length));
    }
    put(victim_ / name, bytes + '\0');
    expect_fallback(name + " longer");
    put(victim_ / name, bytes);
  }
  expect_state(*repository_.newest_valid()->loaded, state_of(2));
}

TEST_F(Damage, EveryFlippedByteIsFound) {
  for (const auto& [name, bytes] : files_) {
    for (std::size_t i = 0; i < bytes.size(); ++i) {
      std::string flipped = bytes;
      flipped[i] = static_cast<char>(flipped[i] ^ (1 << (i * 7 % 8)));
      put(victim_ / name, flipped);
      expect_fallback(name + " flipped at " + std::to_string(i));
    }
    put(victim_ / name, bytes);
  }
  expect_state(*repository_.newest_valid()->loaded, state_of(2));
}

TEST_F(Damage, TheDamagedTensorIsNamed) {
  std::string bytes = files_["state.safetensors"];
  const State state = state_of(2);
  bytes[bytes.size() - state.layout.bytes + state.layout.tensors[2].offset] ^= 4;
  put(victim_ / "state.safetensors", bytes);
  const auto loaded = repository_.load(victim_);
  ASSERT_FALSE(loaded.has_value());
  EXPECT_EQ(loaded.error().code, ErrorCode::kCorrupt);
  EXPECT_EQ(loaded.error().message,
            (victim_ / "state.safetensors").string() +
                " is damaged: tensor optimizer.exp_avg/model.norm.weight does not match its checksum");
}

TEST_F(Damage, MissingEmptyAndForeignFilesAreFound) {
  for (const auto& [name, bytes] : files_) {
    fs::remove(victim_ / name);
    expect_fallback(name + " missing");
    fs::create_directory(victim_ / name);
    expect_fallback(name + " is a folder");
    fs::remove(victim_ / name);
    fs::create_symlink(scratch_.path() / "step-1.e0" / name, victim_ / name);
    expect_fallback(name + " is a link");
    fs::remove(victim_ / name);
    if (name != "buffer.blob") {  // empty in both
      fs::copy_file(scratch_.path() / "step-1.e0" / name, victim_ / name);
      expect_fallback(name + " of another step");
    }
    put(victim_ / name, std::string(bytes.size(), '\0'));
    if (!bytes.empty()) expect_fallback(name + " zeroed");
    put(victim_ / name, bytes);
  }
  put(victim_ / "extra", "ignored");
  expect_state(*repository_.newest_valid()->loaded, state_of(2));
}

TEST_F(Damage, AWholeCommitUnderAnotherNameIsFound) {
  fs::remove_all(victim_);
  fs::copy(scratch_.path() / "step-1.e0", victim_);
  expect_fallback("a copy");
  fs::remove_all(victim_);
  fs::create_directory_symlink(scratch_.path() / "step-1.e0", victim_);
  expect_fallback("a link");
}

TEST_F(Damage, NothingLeftIsSaidNotGuessed) {
  for (const char* step : {"step-1.e0", "step-2.e0"}) fs::resize_file(scratch_.path() / step / "commit.json", 0);
  const auto newest = repository_.newest_valid();
  ASSERT_TRUE(newest.has_value());
  EXPECT_FALSE(newest->loaded.has_value());
  EXPECT_EQ(newest->skipped.size(), 2u);
}

}  // namespace
}  // namespace troupe::checkpoint
