// The server over loopback: answers, streams, batching, ends.
#include "serve/support.h"

#include <future>

namespace troupe::serve {
namespace {

using namespace test;
using testing::HasSubstr;

const char* const kChat = "/v1/chat/completions";
const char* const kText = "/v1/completions";

class GreedyOf : public testing::TestWithParam<const char*> {};

TEST_P(GreedyOf, AnswersAreTheGoldenIds) {
  Running tiny(golden(GetParam()));
  const auto prompt = golden_ids(GetParam(), "greedy.prompt");
  auto wanted = golden_ids(GetParam(), "greedy.output_ids");
  wanted.erase(wanted.begin(), wanted.begin() + static_cast<std::ptrdiff_t>(prompt.size()));
  const auto& stops = tiny.model.format.stop_ids();
  const auto end = std::find_first_of(wanted.begin(), wanted.end(), stops.begin(), stops.end());
  const bool stopped = end != wanted.end();
  wanted.erase(end, wanted.end());
  const auto answer = tiny.ask(kText, {{"prompt", prompt}, {"temperature", 0}, {"max_tokens", 32}, {"logprobs", 0}});
  const auto& choice = answer["choices"][0];
  EXPECT_EQ(choice["text"], tiny.model.tokenizer.decode(wanted, true));
  EXPECT_EQ(choice["finish_reason"], stopped ? "stop" : "length");
  EXPECT_EQ(answer["usage"]["prompt_tokens"], prompt.size());
  EXPECT_EQ(answer["usage"]["completion_tokens"], wanted.size() + (stopped ? 1 : 0));
  EXPECT_GE(choice["logprobs"]["tokens"].size(), wanted.size());
}
INSTANTIATE_TEST_SUITE_P(Families, GreedyOf, testing::Values("qwen3/base", "llama3/base", "qwen3_moe/base", "qwen3_5/base", "gpt_oss/base", "deepseek_v3/base", "deepseek_v4/base"),
                         [](const auto& name) {
                           std::string text = name.param;
                           std::replace(text.begin(), text.end(), '/', '_');
                           return text;
                         });

ordered_json question(int i) {
  return {{"messages", user("what is " + std::to_string(7 * i) + "?")}, {"max_tokens", 20 + 7 * i}, {"seed", i}, {"temperature", i % 2}, {"logprobs", true}, {"top_logprobs", 2}};
}

TEST(Server, AnAnswerDoesNotDependOnWhoElseIsServed) {
  Running tiny(golden("qwen3/base"));
  std::vector<ordered_json> alone;
  for (int i = 0; i < 8; ++i) alone.push_back(tiny.ask(kChat, question(i))["choices"]);
  for (int round = 0; round < 2; ++round) {
    std::vector<std::future<ordered_json>> together;
    for (int i = 0; i < 8; ++i) together.push_back(std::async(std::launch::async, [&, i] { return tiny.ask(kChat, question(i)); }));
    for (int i = 0; i < 8; ++i) EXPECT_EQ(together[static_cast<std::size_t>(i)].get()["choices"], alone[static_cast<std::size_t>(i)]) << i;
  }
}

TEST(Server, AStreamJoinedIsTheWholeAnswer) {
  Running tiny(golden("qwen3/base"));
  ordered_json body{{"messages", user("tell me")}, {"max_tokens", 40}, {"seed", 5}, {"n", 2}, {"logprobs", true}, {"top_logprobs", 1}};
  const auto whole = tiny.ask(kChat, body);
  body["stream"] = true;
  body["stream_options"] = {{"include_usage", true}};
  const auto answer = tiny.post(kChat, body);
  ASSERT_TRUE(answer);
  ASSERT_EQ(answer->status, 200) << answer->body;
  EXPECT_THAT(answer->get_header_value("Content-Type"), HasSubstr("text/event-stream"));
  std::array<std::string, 2> text;
  std::array<ordered_json, 2> reason, logprobs{ordered_json::array(), ordered_json::array()};
  const auto all = events(answer->body);
  EXPECT_GE(all.size(), 3u);
  for (std::size_t e = 0; e + 1 < all.size(); ++e) {
    EXPECT_EQ(all[e]["object"], "chat.completion.chunk");
    EXPECT_EQ(all[e]["id"], all[0]["id"]);
    EXPECT_TRUE(all[e]["usage"].is_null());
    for (const auto& choice : all[e]["choices"]) {
      const auto i = choice["index"].get<std::size_t>();
      EXPECT_EQ(text[i].empty() && !choice["delta"].contains("content") && reason[i].is_null() && !choice["delta"].contains("role"), false) << choice;
      text[i] += choice["delta"].value("content", "");
      for (const auto& entry : choice["logprobs"]["content"]) logprobs[i].push_back(entry);
      EXPECT_TRUE(reason[i].is_null()) << "nothing follows the end";
      reason[i] = choice["finish_reason"];
    }
  }
  for (std::size_t i = 0; i < 2; ++i) {
    EXPECT_EQ(text[i], whole["choices"][i]["message"]["content"]);
    EXPECT_EQ(reason[i], whole["choices"][i]["finish_reason"]);
    EXPECT_EQ(logprobs[i], whole["choices"][i]["logprobs"]["content"]);
  }
  EXPECT_NE(text[0], text[1]) << "samples of their own";
  EXPECT_EQ(all.back()["usage"], whole["usage"]);
  EXPECT_TRUE(all.back()["choices"].empty());
}

TEST(Server, CompletionsStreamToo) {
  Running tiny(golden("llama3/base"));
  ordered_json body{{"prompt", ordered_json::array({"one", "two"})}, {"max_tokens", 24}, {"seed", 1}, {"logprobs", 2}};
  const auto whole = tiny.ask(kText, body);
  EXPECT_EQ(whole["object"], "text_completion");
  ASSERT_EQ(whole["choices"].size(), 2u);
  body["stream"] = true;
  const auto answer = tiny.post(kText, body);
  ASSERT_TRUE(answer);
  std::array<std::string, 2> text;
  std::array<ordered_json, 2> values{ordered_json::array(), ordered_json::array()};
  for (const auto& event : events(answer->body))
    for (const auto& choice : event["choices"]) {
      text[choice["index"].get<std::size_t>()] += choice["text"].get<std::string>();
      for (const auto& value : choice["logprobs"]["token_logprobs"]) values[choice["index"].get<std::size_t>()].push_back(value);
    }
  for (std::size_t i = 0; i < 2; ++i) {
    EXPECT_EQ(text[i], whole["choices"][i]["text"]);
    EXPECT_EQ(values[i], whole["choices"][i]["logprobs"]["token_logprobs"]);
    EXPECT_EQ(whole["choices"][i]["logprobs"]["text_offset"][0], 0);
  }
}

TEST(Server, StopStringsEndTheTextAndAreNotInIt) {
  Running tiny(golden("qwen3/base"));
  const ordered_json free{{"prompt", "stop here"}, {"max_tokens", 60}, {"seed", 3}};
  const std::string text = tiny.ask(kText, free)["choices"][0]["text"];
  ASSERT_GT(text.size(), 20u);
  for (std::size_t at = 4; at + 6 < text.size(); at += 5) {
    std::size_t begin = at;
    while ((static_cast<unsigned char>(text[begin]) & 0xC0) == 0x80) ++begin; // of a character
    std::size_t end = begin + 3;
    while (end < text.size() && (static_cast<unsigned char>(text[end]) & 0xC0) == 0x80) ++end;
    const std::string stop = text.substr(begin, end - begin);
    ordered_json body = free;
    body["stop"] = ordered_json::array({stop, "never said"});
    const auto whole = tiny.ask(kText, body)["choices"][0];
    EXPECT_EQ(whole["text"], text.substr(0, text.find(stop)));
    EXPECT_EQ(whole["finish_reason"], "stop");
    body["stream"] = true;
    std::string joined;
    for (const auto& event : events(tiny.post(kText, body)->body)) joined += event["choices"][0]["text"].get<std::string>();
    EXPECT_EQ(joined, whole["text"]) << stop;
  }
}

TEST(Server, LogProbsAreOfTheWholeDistribution) {
  Running tiny(golden("qwen3/base"));
  const auto answer = tiny.ask(kChat, {{"messages", user("hm")}, {"max_tokens", 8}, {"temperature", 0}, {"logprobs", true}, {"top_logprobs", 20}});
  const auto& content = answer["choices"][0]["logprobs"]["content"];
  ASSERT_FALSE(content.empty());
  for (const auto& entry : content) {
    ASSERT_EQ(entry["top_logprobs"].size(), 20u);
    EXPECT_EQ(entry["top_logprobs"][0]["logprob"], entry["logprob"]) << "greedy takes the best";
    double sum = 0, last = 0;
    for (const auto& one : entry["top_logprobs"]) {
      sum += std::exp(one["logprob"].get<double>());
      EXPECT_LE(one["logprob"].get<double>(), last);
      last = one["logprob"].get<double>();
    }
    EXPECT_LE(sum, 1 + 1e-5);
    EXPECT_FALSE(entry["bytes"].empty());
  }
}

TEST(Server, ASeedMakesAnswersRepeatAndWithoutOneTheyDiffer) {
  Running tiny(golden("qwen3/base"));
  ordered_json body{{"messages", user("again")}, {"max_tokens", 30}, {"seed", -4}};
  const auto first = tiny.ask(kChat, body);
  EXPECT_EQ(tiny.ask(kChat, body)["choices"], first["choices"]);
  EXPECT_NE(tiny.ask(kChat, body)["id"], first["id"]);
  body.erase("seed");
  EXPECT_NE(tiny.ask(kChat, body)["choices"], tiny.ask(kChat, body)["choices"]);
}

TEST(Server, SaysWhatItServesAndHowItIs) {
  Running tiny(golden("qwen3/base"));
  EXPECT_EQ(tiny.client().Get("/health")->body, R"({"status":"ok"})");
  const auto models = ordered_json::parse(tiny.client().Get("/v1/models")->body);
  EXPECT_EQ(models["data"][0]["id"], "tiny");
  EXPECT_EQ(ordered_json::parse(tiny.client().Get("/v1/models/tiny")->body)["object"], "model");
  EXPECT_EQ(tiny.client().Get("/v1/models/other")->status, 404);
  (void)tiny.ask(kChat, {{"messages", user("hm")}, {"max_tokens", 8}, {"temperature", 0}});
  EXPECT_EQ(tiny.figure("troupe_http_requests_total{route=\"/v1/chat/completions\",status=\"200\"}"), 1);
  EXPECT_GE(tiny.figure("troupe_completion_tokens_total"), 1);
  EXPECT_EQ(tiny.figure("troupe_completions_held"), 0);
  EXPECT_EQ(tiny.figure("troupe_first_token_seconds_count"), 1);
  EXPECT_GT(tiny.figure("troupe_kv_pages"), 0);
}

TEST(Server, TheSecondQuestionOfAConversationComputesOnlyWhatIsNew) {
  Running tiny(golden("qwen3/base"));
  const std::string first = "a question that is longer than some pages of the cache are";
  auto messages = user(first);
  const auto reply = tiny.ask(kChat, {{"messages", messages}, {"max_tokens", 20}, {"temperature", 0}});
  const double before = tiny.figure("troupe_engine_tokens_shared_total");
  messages.push_back({{"role", "assistant"}, {"content", reply["choices"][0]["message"]["content"]}});
  messages.push_back({{"role", "user"}, {"content", "and?"}});
  (void)tiny.ask(kChat, {{"messages", messages}, {"max_tokens", 4}, {"temperature", 0}});
  EXPECT_GE(tiny.figure("troupe_engine_tokens_shared_total") - before, static_cast<double>(first.size()));
}

TEST(Server, EndsAfterWhatRuns) {
  Running slow(slow_model());
  auto running = std::async(std::launch::async, [&] { return slow.post(kText, {{"prompt", "long"}, {"max_tokens", 150}, {"temperature", 0}}); });
  ASSERT_TRUE(slow.wait_until_held(1));
  auto drained = std::async(std::launch::async, [&] { return slow.server->drain(); });
  for (int i = 0; i < 200; ++i) {
    const auto health = slow.client().Get("/health");
    if (!health || health->status == 503) break;
    std::this_thread::sleep_for(std::chrono::milliseconds(5));
  }
  if (const auto refused = slow.post(kText, {{"prompt", "more"}})) { // unless it is over already
    EXPECT_EQ(refused->status, 503) << refused->body;
    EXPECT_EQ(ordered_json::parse(refused->body)["error"]["code"], "unavailable");
  }
  EXPECT_TRUE(drained.get());
  const auto answer = running.get();
  ASSERT_TRUE(answer);
  EXPECT_EQ(answer->status, 200) << answer->body;
  EXPECT_FALSE(slow.client().Get("/health")) << "nobody listens any more";
}

TEST(Server, CutsOffWhatIsLongerThanTheDeadline) {
  ServeOptions options;
  options.drain_deadline = std::chrono::milliseconds(200);
  Running slow(slow_model(), options);
  auto whole = std::async(std::launch::async, [&] { return slow.post(kText, {{"prompt", "long"}, {"max_tokens", 3900}, {"temperature", 0}}); });
  auto stream = std::async(std::launch::async, [&] { return slow.post(kText, {{"prompt", "long"}, {"max_tokens", 3900}, {"temperature", 0}, {"stream", true}}); });
  ASSERT_TRUE(slow.wait_until_held(2));
  const auto begin = std::chrono::steady_clock::now();
  EXPECT_FALSE(slow.server->drain());
  EXPECT_LT(std::chrono::steady_clock::now() - begin, std::chrono::seconds(10));
  const auto answer = whole.get();
  ASSERT_TRUE(answer);
  EXPECT_EQ(answer->status, 503);
  const auto cut = stream.get();
  EXPECT_TRUE(!cut || cut->body.find("[DONE]") == std::string::npos) << "a stream that was cut off does not look complete";
}

} // namespace
} // namespace troupe::serve
