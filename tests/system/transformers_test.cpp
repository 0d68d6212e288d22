// Exports are what transformers loads: the same names, the same tokens, the same greedy ids.
#include "data/chat.h"
#include "data/tokenizer.h"
#include "model/support.h"
#include "support.h"

namespace troupe::test {
namespace {

const fs::path kSite = fs::path(TROUPE_SOURCE_DIR) / ".deps" / "oracle" / "site";

class TransformersTest : public RunTest {
 protected:
  void SetUp() override {
    RunTest::SetUp();
    if (!fs::exists(kSite / ".complete")) GTEST_SKIP() << "transformers is not there: run scripts/setup.sh --slow (it needs a network once)";
  }

  /// What transformers makes of jobs {folder, cases}: see transformers_greedy.py.
  json transformers(const json& jobs) const {
    std::ofstream(folder / "jobs.json") << jobs;
    const std::string line = "PYTHONPATH=" + kSite.string() + " HF_HUB_OFFLINE=1 TRANSFORMERS_VERBOSITY=error python3 " + TROUPE_SOURCE_DIR +
                             "/tests/system/transformers_greedy.py < " + (folder / "jobs.json").string() + " > " + (folder / "results.json").string();
    EXPECT_EQ(std::system(line.c_str()), 0) << line;
    json results = json::parse(read_file(folder / "results.json").value_or(""), nullptr, false);
    if (!results.is_array() || results.size() != jobs.size()) {
      ADD_FAILURE() << results;
      return json::array_t(jobs.size(), json::array());
    }
    return results;
  }
  json transformers(const fs::path& exported, const json& cases) const {
    return transformers(json::array({json{{"folder", exported.string()}, {"cases", cases}}}))[0];
  }

  void run_and_export(const std::string& text) {
    std::ofstream(folder / "small.toml") << text;
    start();
    ASSERT_EQ(finish(), 0);
    ASSERT_EQ(summary()["exit"], "done");
  }
  fs::path exported() const { return fs::path(run_dir()) / "export"; }
};

std::vector<std::int32_t> greedy_after(model::Model& model, const std::vector<std::int32_t>& prompt, std::size_t count, const std::vector<std::int32_t>& stop) {
  const auto ids = model::test::greedy(model, prompt, count, stop);
  return {ids.begin() + static_cast<std::ptrdiff_t>(prompt.size()), ids.end()};
}

std::string replaced(std::string text, const std::string& from, const std::string& to) {
  const auto at = text.find(from);
  EXPECT_NE(at, std::string::npos) << from;
  return text.replace(at, from.size(), to);
}

// Trained long enough to have opinions; context 32 as in training.
TEST_F(TransformersTest, LoadsTheExportOfARunAndContinuesAlike) {
  ASSERT_NO_FATAL_FAILURE(run_and_export(replaced(kExperiment, "steps = 20", "steps = 200")));
  model::Model model = model::test::value_or_die(model::load_model(exported()));
  const auto tokenizer = model::test::value_or_die(data::Tokenizer::load(exported()));
  const auto format = model::test::value_or_die(data::PromptFormat::create("plain", tokenizer));
  json cases = json::array();
  for (const char* text : {"12+34=", "99+99=", "10+10=", "57+8", "1", "=+="}) cases.push_back({{"text", text}, {"tokens", 12}});
  const json results = transformers(exported(), cases);
  ASSERT_EQ(results.size(), cases.size());
  std::size_t stopped = 0;
  for (std::size_t i = 0; i < cases.size(); ++i) {
    const auto prompt = tokenizer.encode(cases[i]["text"].get<std::string>(), data::Special::kPlain);
    EXPECT_EQ(results[i]["prompt"].get<std::vector<std::int32_t>>(), prompt) << cases[i];
    const auto ours = greedy_after(model, prompt, 12, format.stop_ids());
    EXPECT_EQ(results[i]["output"].get<std::vector<std::int32_t>>(), ours) << cases[i];
    stopped += ours.size() < 12 ? 1 : 0;
  }
  EXPECT_GT(stopped, 0u) << "the stop token of the export is part of what is compared";
}

TEST_F(TransformersTest, RendersTheChatTemplateOfTheExportAlike) {
  std::string text = replaced(kExperiment, "type = \"characters\"", "type = \"bytes\"");
  text = replaced(text, "alphabet = \"0123456789+=\"\nformat = \"plain\"", "format = \"chatml\"");
  text = replaced(text, "context_tokens = 16", "context_tokens = 64");
  ASSERT_NO_FATAL_FAILURE(run_and_export(replaced(text, "context = 32", "context = 96")));
  const auto tokenizer = model::test::value_or_die(data::Tokenizer::load(exported()));
  const auto format = model::test::value_or_die(data::PromptFormat::create("chatml", tokenizer));
  const std::vector<data::Message> messages{{"system", "Add."}, {"user", "12+34="}, {"assistant", "46"}, {"user", " and\n 1+1?"}};
  json chat = json::array();
  for (const auto& message : messages) chat.push_back({{"role", message.role}, {"content", message.content}});
  const json results = transformers(exported(), json::array({json{{"text", "x"}, {"tokens", 1}, {"chat", chat}}}));
  ASSERT_EQ(results.size(), 1u);
  EXPECT_EQ(results[0]["chat"].get<std::vector<std::int32_t>>(), format.render(messages, true, tokenizer)->ids);
}

/// Every family and rotary scaling that can be exported, single file and shards, and the 16-bit types.
struct Export {
  const char* golden;
  const char* dtype;
  bool sharded;
};
constexpr Export kExports[] = {{"qwen3/base", "float32", false},
                               {"qwen3/yarn_untied", "float32", true},
                               {"llama3/base", "float32", false},
                               {"qwen3/base", "bfloat16", true},
                               {"llama3/base", "float16", false}};

TEST_F(TransformersTest, ContinuesEveryKindOfExportAlike) {
  json jobs = json::array();
  for (const Export& e : kExports) {
    model::ExportOptions options;
    options.dtype = e.dtype;
    if (e.sharded) options.shard_max = Bytes{200'000};
    const fs::path target = folder / std::to_string(jobs.size());
    ASSERT_TRUE(model::export_model(model::test::golden_model(e.golden), target, options));
    EXPECT_EQ(fs::exists(target / "model.safetensors.index.json"), e.sharded);
    json cases = json::array();
    for (std::uint64_t seed = 0; seed < 4; ++seed) cases.push_back({{"ids", model::test::random_ids(seed, 8 + 7 * seed, 128)}, {"tokens", 24}});
    jobs.push_back({{"folder", target.string()}, {"cases", cases}});
  }
  const json results = transformers(jobs);
  for (std::size_t k = 0; k < jobs.size(); ++k) {
    model::Model model = model::test::value_or_die(model::load_model(jobs[k]["folder"].get<std::string>())); // with the rounding of the stored type
    ASSERT_EQ(results[k].size(), 4u);
    for (std::size_t i = 0; i < results[k].size(); ++i) {
      const auto prompt = jobs[k]["cases"][i]["ids"].get<std::vector<std::int32_t>>();
      EXPECT_EQ(results[k][i]["output"].get<std::vector<std::int32_t>>(), greedy_after(model, prompt, 24, {2})) // the fixtures' eos_token_id
          << kExports[k].golden << " " << kExports[k].dtype << ", prompt " << i;
    }
  }
}

} // namespace
} // namespace troupe::test
