// `troupe serve` and `troupe chat` as programs: a folder on disk, signals, pipes.
#include "serve/program.h"

#include <httplib.h>
#include <poll.h>
#include <pty.h>

#include <nlohmann/json.hpp>

namespace troupe::serve {
namespace {

using nlohmann::json;
using testing::HasSubstr;
using testing::Not;

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

// A pseudo-terminal with `troupe chat` on it: keys go in, what is shown comes out.
class OnATerminal {
 public:
  explicit OnATerminal(const std::string& arguments) {
    child_ = ::forkpty(&terminal_, nullptr, nullptr, nullptr);
    if (child_ != 0) return;
    ::execl("/bin/sh", "sh", "-c", ("exec " + std::string(TROUPE_BINARY_DIR) + "/bin/troupe " + arguments).c_str(), nullptr);
    ::_exit(127);
  }
  ~OnATerminal() {
    if (child_ > 0) ::kill(child_, SIGKILL), ::waitpid(child_, nullptr, 0);
    ::close(terminal_);
  }
  void press(const std::string& keys) { ASSERT_EQ(::write(terminal_, keys.data(), keys.size()), static_cast<ssize_t>(keys.size())); }
  // What has been shown since the last call, once it contains `text`; after 20 seconds as it is.
  std::string until(const std::string& text) {
    const auto deadline = std::chrono::steady_clock::now() + std::chrono::seconds(20);
    for (;;) {
      if (const auto at = shown_.find(text); at != std::string::npos) {
        std::string before = shown_.substr(0, at + text.size());
        shown_.erase(0, before.size());
        return before;
      }
      pollfd ready{terminal_, POLLIN, 0};
      char buffer[4096];
      if (std::chrono::steady_clock::now() > deadline || ::poll(&ready, 1, 20'000) <= 0) break;
      const ssize_t n = ::read(terminal_, buffer, sizeof buffer);
      if (n <= 0) break;
      shown_.append(buffer, static_cast<std::size_t>(n));
    }
    ADD_FAILURE() << "waited for \"" << text << "\", was shown: " << shown_;
    return std::exchange(shown_, {});
  }
  int end() {
    int status = 0;
    ::waitpid(std::exchange(child_, -1), &status, 0);
    return WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
  }

 private:
  pid_t child_ = -1;
  int terminal_ = -1;
  std::string shown_;
};

TEST_F(Programs, CtrlCEndsAReplyAndNotTheConversation) {
  json config = json::parse(std::ifstream(folder / "model/config.json"));
  config["max_position_embeddings"] = 200'000; // a reply that would go on for many seconds
  std::ofstream(folder / "model/config.json") << config;
  OnATerminal chat("chat " + folder.string() + "/model --temperature 0 --max-tokens 150000 --threads 1");
  chat.until("> ");
  chat.press("abc\n");
  chat.until("LLLLLLLLLLLLLLLLLLLL");
  chat.press("\x03");
  chat.until("troupe: stopped");
  chat.until("> ");
  chat.press("half a line\x03");
  EXPECT_THAT(chat.until("\r\n> "), Not(HasSubstr("L"))) << "a line given up is not said";
  chat.press("/save " + (folder / "saved.json").string() + "\n");
  chat.until("> ");
  chat.press("/quit\n");
  EXPECT_EQ(chat.end(), 0);
  const json conversation = json::parse(std::ifstream(folder / "saved.json"))["messages"];
  ASSERT_EQ(conversation.size(), 2u) << "the question, and the reply as far as it came";
  EXPECT_THAT(conversation[1]["content"].get<std::string>(), HasSubstr("LLLLLLLLLL"));
}

} // namespace
} // namespace troupe::serve
