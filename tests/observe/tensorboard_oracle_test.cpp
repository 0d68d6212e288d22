// Event files are what tensorboard itself reads: its own loader gives back every tag, step, time and value.
#include <gtest/gtest.h>
#include <unistd.h>

#include <cmath>
#include <cstdlib>
#include <fstream>
#include <limits>
#include <map>
#include <nlohmann/json.hpp>

#include "observe/tensorboard.h"

namespace troupe::observe {
namespace {

namespace fs = std::filesystem;
using nlohmann::json;
const fs::path kSite = fs::path(TROUPE_SOURCE_DIR) / ".deps" / "oracle" / "site";

class TensorboardOracle : public testing::Test {
 protected:
  void SetUp() override {
    if (!fs::exists(kSite / ".complete")) GTEST_SKIP() << "tensorboard is not there: run scripts/setup.sh --slow (it needs a network once)";
    fs::create_directories(folder);
  }
  void TearDown() override { fs::remove_all(folder); }
  json read() const {
    const std::string out = folder / "scalars.json";
    const std::string line = "PYTHONPATH=" + kSite.string() + " python3 " + TROUPE_SOURCE_DIR + "/tests/observe/read_events.py " +
                             (folder / "tb").string() + " > " + out + " 2> " + (folder / "err").string();
    EXPECT_EQ(std::system(line.c_str()), 0) << line;
    std::ifstream in(out);
    return json::parse(in, nullptr, false);
  }
  fs::path folder = fs::temp_directory_path() / ("troupe_tb_oracle." + std::to_string(::getpid()));
};

TEST_F(TensorboardOracle, ReadsEveryTagStepTimeAndValue) {
  std::map<std::string, std::vector<std::array<double, 3>>> wanted;
  const auto write = [&](TensorboardWriter& writer, std::uint64_t step, const std::vector<Metric>& metrics) {
    const double time = 1'700'000'000.25 + static_cast<double>(step);
    MetricBatch batch{step, "rl", 0, metrics};
    ASSERT_TRUE(writer.write(batch, time));
    for (const Metric& metric : metrics)
      if (std::isfinite(metric.value)) wanted[metric.name].push_back({static_cast<double>(step), time, static_cast<float>(metric.value)});
  };
  auto writer = TensorboardWriter::create(folder / "tb", 1'700'000'000);
  ASSERT_TRUE(writer);
  for (std::uint64_t step = 1; step <= 300; ++step) { // more than one byte of varint, and more than EventAccumulator's usual reservoir allows
    const double x = static_cast<double>(step);
    write(*writer, step, {{"loss/mean", 1 / x}, {"reward/mean", std::sin(x)}, {"optim/lr", 1e-30 * x}, {"time/step", 1e30 * x}, {"broken", NAN}});
  }
  write(*writer, std::uint64_t{1} << 40, {{"late", -0.0}, {"tag with blanks, \xC3\xA9 and \xE2\x82\xAC", 3}, {std::string(300, 'n'), 4}});
  std::vector<Metric> many;
  for (int i = 0; i < 500; ++i) many.push_back({"many/" + std::to_string(i), static_cast<double>(i)});
  write(*writer, 301, many); // one event of several kilobytes
  const json read_back = read();
  ASSERT_TRUE(read_back.is_object());
  EXPECT_EQ(read_back.size(), wanted.size());
  for (const auto& [name, points] : wanted) {
    ASSERT_TRUE(read_back.contains(name)) << name;
    ASSERT_EQ(read_back[name].size(), points.size()) << name;
    for (std::size_t i = 0; i < points.size(); ++i)
      for (const std::size_t k : {0, 1, 2}) EXPECT_EQ(read_back[name][i][k].get<double>(), points[i][k]) << name << " " << i;
  }
}

// A resumed run opens a second file in the same folder: both are read, in order of time.
TEST_F(TensorboardOracle, AResumedRunGoesOnInTheSameFolder) {
  for (const std::uint64_t part : {0u, 1u}) {
    auto writer = TensorboardWriter::create(folder / "tb", 1'700'000'000 + 100.0 * static_cast<double>(part));
    ASSERT_TRUE(writer);
    for (std::uint64_t step = 1; step <= 3; ++step) {
      const std::uint64_t at = 3 * part + step;
      ASSERT_TRUE(writer->write({at, "sft", 0, {{"loss/mean", static_cast<double>(at)}}}, 1'700'000'000 + 100.0 * static_cast<double>(part) + static_cast<double>(at)));
    }
  }
  const json points = read()["loss/mean"];
  ASSERT_EQ(points.size(), 6u);
  for (std::size_t i = 0; i < 6; ++i) EXPECT_EQ(points[i][0], i + 1);
}

// Killed in the middle of a record: what came before is there, and nothing else.
TEST_F(TensorboardOracle, AFileCutAnywhereKeepsItsWholeRecords) {
  auto writer = TensorboardWriter::create(folder / "whole", 1'700'000'000);
  ASSERT_TRUE(writer);
  ASSERT_TRUE(writer->write({1, "rl", 0, {{"a", 1}}}, 1'700'000'001));
  const auto one = fs::file_size(writer->path());
  ASSERT_TRUE(writer->write({2, "rl", 0, {{"a", 2}}}, 1'700'000'002));
  fs::create_directories(folder / "tb");
  fs::copy_file(writer->path(), folder / "tb" / writer->path().filename());
  fs::resize_file(folder / "tb" / writer->path().filename(), one + 9);
  const json points = read()["a"];
  ASSERT_EQ(points.size(), 1u);
  EXPECT_EQ(points[0][2], 1.0);
}

} // namespace
} // namespace troupe::observe
