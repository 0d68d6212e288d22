// `troupe serve` and `troupe chat` as programs: a folder on disk, signals, pipes.
#include "serve/program.h"

#include <httplib.h>

#include <nlohmann/json.hpp>

namespace troupe::serve {
namespace {

using nlohmann::json;
using testing::HasSubstr;

using Programs = test::Programs;

TEST_F(Programs, ServesAFolderSaysSoAndEndsWhenToldTo) {
  const int port = serve("--name letters --kv-cache 8MiB --threads 1");
  EXPECT_THAT(said(), HasSubstr("conversations are written in the model's own template"));
  httplib::Client client("127.0.0.1", port);
  const auto answer = client.Post("/v1/chat/completions", json{{"model", "letters"}, {"messages", {{{"role", "user"}, {"content", "hi"}}}}, {"max_tokens", 5}, {"temperature", 0}}.dump(), "application/json");
  ASSERT_TRUE(answer);
  EXPECT_EQ(answer->status, 200) << answer->body;
  const Output second = run("serve " + folder.string() + "/model --port " + std::to_string(port));
  EXPECT_EQ(second.code, 1);
  EXPECT_THAT(errors(), HasSubstr("another program listens on 127.0.0.1:" + std::to_string(port)));
  EXPECT_EQ(end(), 0);
  EXPECT_FALSE(client.Get("/health"));
}

TEST_F(Programs, RefusesWhatItCannotServe) {
  EXPECT_EQ(run("serve /nowhere").code, 2);
  EXPECT_THAT(errors(), HasSubstr("no such model"));
  EXPECT_EQ(run("serve " + folder.string() + "/model --host 0.0.0.0").code, 2);
  EXPECT_THAT(errors(), HasSubstr("--api-key-file"));
  EXPECT_EQ(run("serve " + folder.string() + "/model --port 99999").code, 2);
  EXPECT_EQ(run("serve " + folder.string() + "/model --kv-cache lots").code, 2);
  EXPECT_EQ(run("serve --help").code, 0);
  EXPECT_EQ(run("chat --help").code, 0);
}

TEST_F(Programs, ChatsThroughAPipe) {
  const std::string flags = "chat " + folder.string() + "/model --temperature 0 --max-tokens 12 --threads 1 ";
  const Output one = run(flags, "hello\n");
  EXPECT_EQ(one.code, 0) << errors();
  EXPECT_EQ(std::count(one.text.begin(), one.text.end(), '\n'), 1) << "a reply for a line, and nothing else: " << one.text;
  const std::string saved = (folder / "saved.json").string();
  const Output two = run(flags + "--system 'Be brief.'", "hello\nand you?\n/save " + saved + "\n/reset\n/system Sing.\nhello\n/quit\nnever\n");
  EXPECT_EQ(two.code, 0) << errors();
  EXPECT_EQ(std::count(two.text.begin(), two.text.end(), '\n'), 3) << two.text;
  const json conversation = json::parse(std::ifstream(saved))["messages"];
  ASSERT_EQ(conversation.size(), 5u);
  EXPECT_EQ(conversation[0], (json{{"role", "system"}, {"content", "Be brief."}}));
  EXPECT_EQ(conversation[3]["content"], "and you?");
  EXPECT_EQ(run(flags, "hello\n").text, one.text) << "greedy";
  const Output wrong = run(flags, "/nonsense\nhello\n");
  EXPECT_EQ(wrong.code, 1);
  EXPECT_THAT(errors(), HasSubstr("there is no command /nonsense"));
  EXPECT_EQ(wrong.text, one.text) << "it goes on";
}

} // namespace
} // namespace troupe::serve
