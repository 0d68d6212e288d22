// The program itself: `troupe inspect` on folders with and without weights, and on nonsense.
#include <gmock/gmock.h>
#include <sys/wait.h>

#include <cstdio>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <string>

namespace troupe::cli {
namespace {

namespace fs = std::filesystem;
using nlohmann::json;
using testing::HasSubstr;

struct Answer {
  int code = -1;
  std::string text;
};

Answer inspect(const std::string& arguments) {
  Answer answer;
  FILE* pipe = ::popen((std::string(TROUPE_BINARY_DIR) + "/bin/troupe inspect " + arguments + " 2>&1").c_str(), "r");
  char buffer[4096];
  for (std::size_t n; (n = std::fread(buffer, 1, sizeof buffer, pipe)) > 0;) answer.text.append(buffer, n);
  answer.code = WEXITSTATUS(::pclose(pipe));
  return answer;
}

std::string golden(const std::string& name) { return std::string(TROUPE_GOLDEN_DIR) + "/model/" + name; }

class InspectTest : public testing::Test {
 protected:
  void SetUp() override { fs::create_directories(folder); }
  void TearDown() override { fs::remove_all(folder); }
  fs::path folder = fs::path(testing::TempDir()) / ("inspect-" + std::to_string(::getpid()));
};

TEST_F(InspectTest, EveryGoldenCheckpointIsCompleteAndItsNumbersFit) {
  for (const auto& entry : fs::directory_iterator(golden(""))) {
    for (const char* variant : {"base", "yarn", "clamp", "yarn_untied"}) {
      const fs::path path = entry.path() / variant;
      if (!fs::exists(path / "model.safetensors")) continue;
      const Answer answer = inspect("--json " + path.string());
      ASSERT_EQ(answer.code, 0) << answer.text;
      const json found = json::parse(answer.text);
      EXPECT_TRUE(found["weights"]["problem"].is_null()) << path << found["weights"];
      EXPECT_TRUE(found["weights"]["missing"].empty());
      EXPECT_EQ(found["tokenizer"]["found"], false);
      EXPECT_GT(found["memory"]["cache_per_token"].get<double>(), 0);
      EXPECT_LE(found["parameters"]["active"], found["parameters"]["total"]);
      const Answer text = inspect(path.string() + " --layout shard=2");
      EXPECT_EQ(text.code, 0);
      for (const char* part : {"attention", "active for a token", "fullest of 2 ranks", "chat template:"}) EXPECT_THAT(text.text, HasSubstr(part));
    }
  }
}

TEST_F(InspectTest, AConfigurationAloneIsEnoughAndMissingShardsAreNamed) {
  Answer answer = inspect("--json " + golden("releases/deepseek_v4_flash"));
  ASSERT_EQ(answer.code, 0) << answer.text;
  json found = json::parse(answer.text);
  EXPECT_EQ(found["weights"]["missing"], json({"model.safetensors"}));
  EXPECT_EQ(found["parameters"]["total"], 284332230231);
  EXPECT_EQ(found["chat_template"]["where"], "built in");

  fs::copy(golden("releases/qwen3_0_6b/config.json"), folder);
  std::ofstream(folder / "model.safetensors.index.json")
      << R"({"weight_map": {"a": "model-00001-of-00002.safetensors", "b": "model-00002-of-00002.safetensors"}})";
  std::ofstream(folder / "model-00001-of-00002.safetensors") << "x";
  std::ofstream(folder / "chat_template.jinja") << "{{ messages }}";
  answer = inspect("--json " + folder.string());
  ASSERT_EQ(answer.code, 0) << answer.text;
  found = json::parse(answer.text);
  EXPECT_EQ(found["weights"]["missing"], json({"model-00002-of-00002.safetensors"}));
  EXPECT_THAT(found["chat_template"]["where"].get<std::string>(), HasSubstr("chat_template.jinja"));
}

TEST_F(InspectTest, DamagedWeightsAreAProblemAndNotAFailure) {
  fs::copy(golden("qwen3/base/config.json"), folder);
  std::ofstream(folder / "model.safetensors") << "not a tensor in sight";
  const Answer answer = inspect("--json " + folder.string());
  ASSERT_EQ(answer.code, 0) << answer.text;
  EXPECT_THAT(json::parse(answer.text)["weights"]["problem"].get<std::string>(), HasSubstr("model.safetensors"));
}

TEST_F(InspectTest, NonsenseIsAUsageErrorInOneLine) {
  for (const std::string& arguments : {std::string("/nowhere"), folder.string(), golden("qwen3/base") + " --layout width=3", golden("qwen3/base") + " --layout tensor=3"}) {
    const Answer answer = inspect(arguments);
    EXPECT_EQ(answer.code, 2) << arguments << ": " << answer.text;
    EXPECT_THAT(answer.text, HasSubstr("troupe: error: "));
    EXPECT_EQ(std::count(answer.text.begin(), answer.text.end(), '\n'), 1) << answer.text;
    const Answer as_json = inspect("--json " + arguments);
    EXPECT_EQ(as_json.code, 2);
    EXPECT_EQ(json::parse(as_json.text)["ok"], false);
  }
}

} // namespace
} // namespace troupe::cli
