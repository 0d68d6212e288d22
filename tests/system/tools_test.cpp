// A release's directory as people have them: tokenizer, chat template with tools, weights. Supervised conversations and a task whose tool the
// policy calls, in one run.
#include "../serve/folder.h"
#include "support.h"

namespace troupe::test {
namespace {

// Shows tools, calls and what tools say, and hides earlier reasoning as Qwen3 does.
constexpr const char* kTemplate =
    "{% if tools %}<|im_start|>system\n{% for t in tools %}{{ t.function.name }}{% endfor %}<|im_end|>\n{% endif %}"
    "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}{% for c in m.tool_calls or [] %}<tool_call>{{ {'name': c.function.name, 'arguments': c.function.arguments} | tojson }}</tool_call>"
    "{% endfor %}<|im_end|>\n{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}";
// One token of the model, so that a model which knows nothing says it now and then.
constexpr const char* kCall = R"(<tool_call>{"name": "multiply", "arguments": {"a": 12, "b": 12}}</tool_call>)";

class ToolsTest : public RunTest {
 protected:
  fs::path write_release() {
    serve::test::write_model_folder(folder);
    const fs::path model = folder / "model";
    json tokenizer = json::parse(read_file(model / "tokenizer.json").value());
    json call = tokenizer["added_tokens"].back();
    call["id"] = tokenizer["model"]["vocab"].size();
    call["content"] = kCall;
    call["special"] = false;
    tokenizer["added_tokens"].push_back(call);
    tokenizer["model"]["vocab"][kCall] = call["id"];
    std::ofstream(model / "tokenizer.json") << tokenizer.dump();
    std::ofstream(model / "chat_template.jinja") << kTemplate;
    return model;
  }
};

TEST_F(ToolsTest, ATaskWithAToolInAReleasesOwnTemplate) {
  const fs::path model = write_release();
  std::ofstream sft(folder / "sft.jsonl");
  for (int i = 0; i < 40; ++i)
    sft << R"({"messages": [{"role": "user", "content": "12 times 12?"}, {"role": "assistant", "content": "", "tool_calls": [{"type": "function", "function": {"name": "multiply", "arguments": {"a": 12, "b": 12}}}]}, {"role": "tool", "content": "144"}, {"role": "assistant", "content": ")"
        << i << R"("}], "tools": [{"type": "function", "function": {"name": "multiply"}}]})" << "\n";
  sft.close();
  std::string experiment = kExperiment;
  const auto begin = experiment.find("[model]"), end = experiment.find("[rollout]");
  experiment.replace(begin, end - begin,
                     "[model]\npath = \"" + model.string() + "\"\n[tokenizer]\nformat = \"template\"\n[task]\ntype = \"program\"\ncommand = [\"python3\", \"" +
                         TROUPE_SOURCE_DIR + "/examples/tools/calculator.py\"]\n");
  std::ofstream(folder / "small.toml") << experiment;
  start({"--set", "stage.sft.steps=3", "--set", "stage.sft.data={path=\"" + (folder / "sft.jsonl").string() + "\",context_tokens=200,tokens_per_batch=800}",
         "--set", "stage.rl.steps=4", "--set", "rollout.sampling={max_new_tokens=12,temperature=3.0}", "--set", "rollout.turns_max=4", "--set", "eval.before=false",
         "--set", "eval.after=false"});
  ASSERT_EQ(finish(), 0) << read_file(folder / "run.err").value_or("");
  const json s = summary();
  expect_sound_summary(s);
  EXPECT_EQ(s["exit"], "done");
  EXPECT_EQ(s["logprob_diff_max"], 0);
  const std::string samples = read_file(fs::path(run_dir()) / "samples.jsonl").value_or("");
  EXPECT_NE(samples.find("<|im_start|>tool\\n144<|im_end|>"), std::string::npos) << "a call was answered by the tool: " << samples.substr(0, 3000);
  EXPECT_EQ(read_file(fs::path(run_dir()) / "events.jsonl").value_or("").find("samples_failed"), std::string::npos);
}

TEST_F(ToolsTest, AFormatThatShowsNoToolsIsToldOnce) {
  start({"--set", std::string("task={type=\"program\",command=[\"python3\",\"") + TROUPE_SOURCE_DIR + "/examples/tools/calculator.py\"]}", "--set",
         "tokenizer={type=\"bytes\",format=\"chatml\"}", "--set", "model.context=200", "--set", "stage=[{type=\"rl\",steps=4,rl={algorithm=\"grpo\",group_size=4,prompts_per_step=2}}]",
         "--set", "eval.before=false", "--set", "eval.after=false"});
  EXPECT_EQ(finish(), 1);
  const std::string said = read_file(folder / "run.err").value_or("");
  EXPECT_NE(said.find("the task offers tools, but the prompt format \"chatml\" cannot show any"), std::string::npos) << said;
}

} // namespace
} // namespace troupe::test
