#include "observe/summary.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <nlohmann/json.hpp>

#include "base/file.h"

namespace troupe::observe {
namespace {

TEST(Summary, HasTheFieldsScriptsRelyOn) {
  const nlohmann::json json = summary_json({});
  for (const char* pointer :
       {"/wall_s", "/rss_peak_mib", "/steps", "/tokens", "/completions", "/eval/before", "/eval/after", "/restarts",
        "/prompts/dispatched", "/prompts/delivered", "/prompts/cancelled", "/policy_age_max", "/logprob_diff_max",
        "/logprob_tokens_compared", "/exit"})
    EXPECT_TRUE(json.contains(nlohmann::json::json_pointer(pointer))) << pointer;
  EXPECT_TRUE(json["logprob_diff_max"].is_null()) << "not measured is not 0";
  EXPECT_TRUE(json["eval"]["before"].is_null());
}

TEST(Summary, WritesAndReadsBack) {
  Summary summary;
  summary.wall_s = 12.5;
  summary.eval_after = 0.9;
  summary.prompts_cancelled = 3;
  summary.exit = "done";
  const std::filesystem::path path =
      std::filesystem::temp_directory_path() / ("troupe_summary." + std::to_string(::getpid()) + ".json");
  ASSERT_TRUE(write_summary(path, summary));
  const auto back = summary_from_json(nlohmann::json::parse(*read_file(path)));
  std::filesystem::remove(path);
  ASSERT_TRUE(back);
  EXPECT_EQ(summary_json(*back), summary_json(summary));
}

TEST(Summary, AMissingFieldIsNamed) {
  nlohmann::json json = summary_json({});
  json["prompts"].erase("delivered");
  const auto back = summary_from_json(json);
  ASSERT_FALSE(back);
  EXPECT_NE(back.error().message.find("/prompts/delivered"), std::string::npos);
  json = summary_json({});
  json["steps"] = "3";
  EXPECT_FALSE(summary_from_json(json));
}

TEST(Summary, TheTableSaysWhatWasNotMeasured) {
  Summary summary;
  summary.eval_after = 0.875;
  summary.exit = "done";
  const std::string table = summary_table(summary);
  EXPECT_NE(table.find("held-out accuracy after"), std::string::npos);
  EXPECT_NE(table.find("87.5%"), std::string::npos);
  EXPECT_NE(table.find("not compared over 0 tokens"), std::string::npos);
}

}  // namespace
}  // namespace troupe::observe
