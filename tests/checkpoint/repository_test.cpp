#include "checkpoint/repository.h"

#include <gtest/gtest.h>

#include <fstream>

#include "formats/safetensors.h"
#include "tests/checkpoint/state.h"

namespace troupe::checkpoint {
namespace {

Result<Committed> write(Repository& repository, const State& state, int keep = 0) {
  return repository.write(state.layout, state.region, state.record, keep);
}

std::vector<std::string> names(const Repository& repository) {
  std::vector<std::string> all;
  const auto commits = repository.list();
  for (const CommitName& commit : *commits) all.push_back(commit.folder.filename());
  return all;
}

TEST(Repository, RoundTripIsBitExactInEveryPart) {
  const ScratchFolder scratch;
  Repository repository(scratch.path() / "checkpoints");
  const State state = state_of(10, 3);
  const auto committed = write(repository, state);
  ASSERT_TRUE(committed.has_value()) << committed.error().message;
  EXPECT_EQ(committed->folder.filename(), "step-10.e3");
  EXPECT_FALSE(committed->existed);
  EXPECT_EQ(entries(repository.folder()), std::vector<std::string>{"step-10.e3"});
  std::uint64_t bytes = 0;
  for (const auto& entry : std::filesystem::directory_iterator(committed->folder)) bytes += entry.file_size();
  EXPECT_EQ(committed->bytes, bytes);

  const auto newest = repository.newest_valid();
  ASSERT_TRUE(newest.has_value() && newest->loaded.has_value());
  EXPECT_TRUE(newest->skipped.empty());
  expect_state(*newest->loaded, state);
  EXPECT_EQ(newest->loaded->layout().digest(), state.layout.digest());
  EXPECT_EQ(newest->loaded->tensor("optimizer.step").size(), 8u);
  EXPECT_TRUE(newest->loaded->tensor("nothing").empty());
}

TEST(Repository, EqualStatesHaveEqualBytes) {
  const ScratchFolder scratch;
  Repository one(scratch.path() / "one"), two(scratch.path() / "two");
  ASSERT_TRUE(write(one, state_of(5)).has_value());
  ASSERT_TRUE(write(two, state_of(5)).has_value());
  for (const char* file : {"commit.json", "state.safetensors", "ledger.blob", "buffer.blob"})
    EXPECT_EQ(*read_file(one.folder() / "step-5.e0" / file), *read_file(two.folder() / "step-5.e0" / file)) << file;
}

TEST(Repository, TheStateIsASafetensorsFile) {
  const ScratchFolder scratch;
  Repository repository(scratch.path());
  const State state = state_of(1);
  ASSERT_TRUE(write(repository, state).has_value());
  const auto file = formats::SafetensorsFile::open(scratch.path() / "step-1.e0/state.safetensors");
  ASSERT_TRUE(file.has_value()) << file.error().message;
  for (const TensorEntry& tensor : state.layout.tensors) {
    const auto* found = file->find(tensor.name);
    ASSERT_NE(found, nullptr) << tensor.name;
    EXPECT_EQ(found->shape, tensor.shape);
    EXPECT_TRUE(same_bytes(found->bytes, std::span(state.region).subspan(tensor.offset, tensor.bytes)));
  }
}

TEST(Repository, LoadsIntoAnotherOrderOrNotAtAll) {
  const ScratchFolder scratch;
  Repository repository(scratch.path());
  const State state = state_of(1);
  ASSERT_TRUE(write(repository, state).has_value());
  const auto loaded = repository.load(scratch.path() / "step-1.e0");
  ASSERT_TRUE(loaded.has_value());

  std::vector<TensorEntry> reversed(state.layout.tensors.rbegin(), state.layout.tensors.rend());
  const StateLayout target = *make_layout(reversed);
  std::vector<std::byte> region(target.bytes);
  ASSERT_TRUE(loaded->copy_to(target, region).has_value());
  for (const TensorEntry& tensor : target.tensors)
    EXPECT_TRUE(same_bytes(std::span(region).subspan(tensor.offset, tensor.bytes), loaded->tensor(tensor.name)));

  reversed[4].shape = {7, 5};
  reversed[3].dtype = "F16";
  reversed[2].name = "renamed";
  const StateLayout other = *make_layout(reversed);
  std::vector<std::byte> untouched(other.bytes);
  const Status refused = loaded->copy_to(other, untouched);
  ASSERT_FALSE(refused.has_value());
  EXPECT_NE(refused.error().message.find("renamed is missing; model.norm.weight is BF16 [9] instead of F16 [9]; "
                                         "model.embed_tokens.weight is F32 [5, 7] instead of F32 [7, 5]; "
                                         "optimizer.exp_avg/model.norm.weight is not wanted"),
            std::string::npos)
      << refused.error().message;
  EXPECT_EQ(std::count(untouched.begin(), untouched.end(), std::byte{0}),
            static_cast<std::ptrdiff_t>(untouched.size()));
  EXPECT_FALSE(loaded->copy_to(target, std::span(region).first(10)).has_value());
}

TEST(Repository, OrdersByEpochThenStep) {
  const ScratchFolder scratch;
  Repository repository(scratch.path());
  for (const auto& [step, epoch] : {std::pair{9u, 0u}, {100u, 0u}, {20u, 1u}})
    ASSERT_TRUE(write(repository, state_of(step, epoch)).has_value());
  for (const char* stray : {"step-1", "step-01.e0", "step-1.e0x", "step-.e0", "step--1.e0", "notes"})
    std::filesystem::create_directory(scratch.path() / stray);
  EXPECT_EQ(names(repository), (std::vector<std::string>{"step-20.e1", "step-100.e0", "step-9.e0"}));
  EXPECT_EQ(repository.newest_valid()->loaded->record().version, (PolicyVersion{1, 20}));
  for (const PolicyVersion v : {PolicyVersion{0, 0}, {4000000000u, 1ull << 63}})
    EXPECT_EQ(parse_commit_name(commit_name(v)), v);
}

TEST(Repository, AnEmptyOrMissingFolderHasNothing) {
  const ScratchFolder scratch;
  const Repository repository(scratch.path() / "none");
  EXPECT_TRUE(repository.list()->empty());
  EXPECT_FALSE(repository.newest_valid()->loaded.has_value());
  EXPECT_TRUE(repository.sweep().has_value());
}

TEST(Repository, AnOldIncarnationIsFenced) {
  const ScratchFolder scratch;
  Repository repository(scratch.path());
  ASSERT_TRUE(write(repository, state_of(20, 2)).has_value());
  const auto late = write(repository, state_of(30, 1));
  ASSERT_FALSE(late.has_value());
  EXPECT_EQ(late.error().code, ErrorCode::kFenced);
  EXPECT_EQ(entries(scratch.path()), std::vector<std::string>{"step-20.e2"});
}

TEST(Repository, WritingACommitAgainIsNoChangeAndNeverAnOverwrite) {
  const ScratchFolder scratch;
  Repository repository(scratch.path());
  State state = state_of(4);
  ASSERT_TRUE(write(repository, state).has_value());
  state.record.term = 2;  // the head was lost and came back
  const auto again = write(repository, state);
  ASSERT_TRUE(again.has_value());
  EXPECT_TRUE(again->existed);
  state.region[0] ^= std::byte{1};
  EXPECT_EQ(write(repository, state).error().code, ErrorCode::kAlreadyExists);
  expect_state(*repository.newest_valid()->loaded, state_of(4));
  EXPECT_EQ(entries(scratch.path()), std::vector<std::string>{"step-4.e0"});

  std::ofstream(scratch.path() / "step-4.e0/commit.json") << "{";  // a damaged one gives way
  ASSERT_TRUE(write(repository, state_of(4)).has_value());
  expect_state(*repository.newest_valid()->loaded, state_of(4));
}

TEST(Repository, KeepsTheNewestOnes) {
  const ScratchFolder scratch;
  Repository repository(scratch.path());
  for (std::uint64_t step = 1; step <= 5; ++step) ASSERT_TRUE(write(repository, state_of(step), 2).has_value());
  EXPECT_EQ(entries(scratch.path()), (std::vector<std::string>{"step-4.e0", "step-5.e0"}));
}

TEST(Repository, AReaderKeepsWhatRetentionDeletes) {
  const ScratchFolder scratch;
  Repository repository(scratch.path());
  ASSERT_TRUE(write(repository, state_of(1)).has_value());
  const auto loaded = repository.load(scratch.path() / "step-1.e0");
  ASSERT_TRUE(write(repository, state_of(2), 1).has_value());
  EXPECT_EQ(entries(scratch.path()), std::vector<std::string>{"step-2.e0"});
  expect_state(*loaded, state_of(1));
}

TEST(Repository, RetentionDeletesNothingWhenTheNewestIsDamaged) {
  const ScratchFolder scratch;
  Repository repository(scratch.path());
  for (std::uint64_t step = 1; step <= 3; ++step) ASSERT_TRUE(write(repository, state_of(step)).has_value());
  std::filesystem::resize_file(scratch.path() / "step-3.e0/state.safetensors", 100);
  const auto kept_back = repository.retain(1);
  ASSERT_EQ(kept_back.size(), 1u);
  EXPECT_NE(kept_back[0].reason.find("100 bytes long instead of"), std::string::npos);
  EXPECT_EQ(names(repository).size(), 3u);
  const auto newest = repository.newest_valid();
  expect_state(*newest->loaded, state_of(2));
  ASSERT_EQ(newest->skipped.size(), 1u);
}

TEST(Repository, RefusesATensorThatIsNotWhatItsWriterVouchedFor) {
  const ScratchFolder scratch;
  Repository repository(scratch.path());
  State state = state_of(1);
  state.layout.tensors[1].checksum = 1;
  const auto refused = write(repository, state);
  ASSERT_FALSE(refused.has_value());
  EXPECT_EQ(refused.error().message, "tensor model.norm.weight is not what its writer put into the region");
  EXPECT_TRUE(entries(scratch.path()).empty());
}

TEST(Repository, RefusesInputThatDoesNotFit) {
  const ScratchFolder scratch;
  Repository repository(scratch.path());
  State state = state_of(1);
  EXPECT_EQ(repository.write(state.layout, std::span(state.region).first(64), state.record).error().code,
            ErrorCode::kInvalidArgument);
  for (const char* name : {"", "../ledger", "Ledger", "a.b", "commit/x"}) {
    state.record.blobs = {{name, "x"}};
    EXPECT_EQ(write(repository, state).error().code, ErrorCode::kInvalidArgument) << name;
  }
  state.record.blobs = {{"a", "x"}, {"a", "y"}};
  EXPECT_EQ(write(repository, state).error().code, ErrorCode::kInvalidArgument);
  EXPECT_TRUE(entries(scratch.path()).empty());
}

TEST(Repository, SweepsWhatKilledWritersLeft) {
  const ScratchFolder scratch;
  Repository repository(scratch.path());
  ASSERT_TRUE(write(repository, state_of(1)).has_value());
  for (const char* remains : {".tmp-step-2.e0.99", ".trash-step-0.e0"}) {
    std::filesystem::create_directory(scratch.path() / remains);
    std::ofstream(scratch.path() / remains / "state.safetensors") << "half";
  }
  EXPECT_EQ(names(repository), std::vector<std::string>{"step-1.e0"});
  ASSERT_TRUE(repository.sweep().has_value());
  EXPECT_EQ(entries(scratch.path()), std::vector<std::string>{"step-1.e0"});
}

}  // namespace
}  // namespace troupe::checkpoint
