#include "observe/jsonl.h"

#include <gtest/gtest.h>
#include <signal.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cmath>
#include <nlohmann/json.hpp>

namespace troupe::observe {
namespace {

namespace fs = std::filesystem;

class JsonlTest : public testing::Test {
 protected:
  void SetUp() override { ASSERT_TRUE(make_folders(folder)); }
  void TearDown() override { fs::remove_all(folder); }
  fs::path folder = fs::temp_directory_path() / ("troupe_jsonl_test." + std::to_string(::getpid()));
  fs::path path = folder / "metrics.jsonl";
};

TEST_F(JsonlTest, OneObjectPerStep) {
  auto writer = JsonlWriter::open(path);
  ASSERT_TRUE(writer);
  ASSERT_TRUE(writer->write(metrics_line({3, "rl", 1.5, {{"reward/mean", 0.25}, {"x", INFINITY}}})));
  EXPECT_EQ(*read_file(path), "{\"reward/mean\":0.25,\"stage\":\"rl\",\"step\":3,\"time\":1.5,\"x\":null}\n");
}

TEST_F(JsonlTest, KnowsItsNewestLine) {
  for (const std::string& before : {std::string(), std::string("{\"step\":1}\n"), std::string("{\"step\":1}\n{\"torn")}) {
    ASSERT_TRUE(write_file_atomic(path, before));
    auto writer = JsonlWriter::open(path);
    ASSERT_TRUE(writer);
    EXPECT_EQ(writer->last_line().value(), before.empty() ? "" : "{\"step\":1}");
    const std::string long_text(9000, 'x');
    ASSERT_TRUE(writer->write({{"x", long_text}}));
    EXPECT_EQ(writer->last_line().value(), "{\"x\":\"" + long_text + "\"}");
  }
}

TEST_F(JsonlTest, ContinuesAFileAndCutsATornLine) {
  for (const std::string& torn : {std::string("{\"step\":1}\n{\"st"), "{\"step\":1}\n" + std::string(9000, 'x')}) {
    ASSERT_TRUE(write_file_atomic(path, torn));
    auto writer = JsonlWriter::open(path);
    ASSERT_TRUE(writer);
    ASSERT_TRUE(writer->write({{"step", 2}}));
    EXPECT_EQ(*read_file(path), "{\"step\":1}\n{\"step\":2}\n");
  }
  ASSERT_TRUE(write_file_atomic(path, "never ended"));
  ASSERT_TRUE(JsonlWriter::open(path));
  EXPECT_EQ(*read_file(path), "");
}

TEST_F(JsonlTest, AFullDiskTakesTheWholeLineBack) {
  const pid_t child = ::fork();
  ASSERT_GE(child, 0);
  if (child == 0) {  // the limit on file sizes acts like a disk that ends in the middle of a line
    ::signal(SIGXFSZ, SIG_IGN);
    const rlimit limit{100, 100};
    if (::setrlimit(RLIMIT_FSIZE, &limit) != 0) ::_exit(3);
    auto writer = JsonlWriter::open(path);
    if (!writer || !writer->write({{"text", std::string(60, 'a')}})) ::_exit(4);
    const Status second = writer->write({{"text", std::string(60, 'b')}});
    if (second || second.error().code != ErrorCode::kResourceExhausted) ::_exit(5);
    if (!writer->write({{"s", 1}})) ::_exit(6);  // shorter ones still fit
    ::_exit(0);
  }
  int state = 0;
  ASSERT_EQ(::waitpid(child, &state, 0), child);
  ASSERT_TRUE(WIFEXITED(state));
  EXPECT_EQ(WEXITSTATUS(state), 0);
  EXPECT_EQ(*read_file(path), "{\"text\":\"" + std::string(60, 'a') + "\"}\n{\"s\":1}\n");
}

TEST_F(JsonlTest, SamplesMayHoldAnyBytes) {
  auto writer = JsonlWriter::open(path);
  ASSERT_TRUE(writer);
  SampleRecord sample;
  sample.prompt = "2+2=\n\xff";
  sample.completion = "4\"";
  sample.reward = 1;
  ASSERT_TRUE(writer->write(sample_line(sample)));
  const std::string text = *read_file(path);
  EXPECT_EQ(std::count(text.begin(), text.end(), '\n'), 1);
  const auto json = nlohmann::json::parse(text);
  EXPECT_EQ(json["completion"], "4\"");
  EXPECT_EQ(json["prompt"], "2+2=\n\xEF\xBF\xBD");
}

TEST_F(JsonlTest, EventsHaveATimeANameAndAnActor) {
  EXPECT_EQ(event_line(1769860800123, "worker_died", "rollout/1", {{"signal", 9}}).dump(),
            "{\"actor\":\"rollout/1\",\"event\":\"worker_died\",\"signal\":9,\"time\":\"2026-01-31T12:00:00.123Z\"}");
}

TEST_F(JsonlTest, AMissingFolderIsNamed) {
  const auto writer = JsonlWriter::open(folder / "none" / "x.jsonl");
  ASSERT_FALSE(writer);
  EXPECT_EQ(writer.error().code, ErrorCode::kNotFound);
}

}  // namespace
}  // namespace troupe::observe
