// Clients that are wrong, slow, greedy or gone.
#include <arpa/inet.h>
#include <sys/socket.h>
#include <unistd.h>

#include <future>

#include "serve/support.h"

namespace troupe::serve {
namespace {

using namespace test;
using namespace std::chrono_literals;
using testing::HasSubstr;
using Clock = std::chrono::steady_clock;

const char* const kChat = "/v1/chat/completions";
const char* const kText = "/v1/completions";

// A connection by hand.
class Raw {
 public:
  explicit Raw(int port) : socket_(::socket(AF_INET, SOCK_STREAM, 0)) {
    sockaddr_in address{};
    address.sin_family = AF_INET;
    address.sin_port = htons(static_cast<std::uint16_t>(port));
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    EXPECT_EQ(::connect(socket_, reinterpret_cast<sockaddr*>(&address), sizeof address), 0);
  }
  ~Raw() { close(); }
  bool send(const std::string& text) { return ::send(socket_, text.data(), text.size(), MSG_NOSIGNAL) == static_cast<ssize_t>(text.size()); }
  // Everything until the other side closes.
  std::string read_all() {
    std::string all;
    char buffer[4096];
    for (ssize_t n; (n = ::recv(socket_, buffer, sizeof buffer, 0)) > 0;) all.append(buffer, static_cast<std::size_t>(n));
    return all;
  }
  void close() {
    if (socket_ >= 0) ::close(std::exchange(socket_, -1));
  }

 private:
  int socket_;
};

TEST(Hostile, EveryErrorHasItsStatusAndShape) {
  ServeOptions options;
  options.body_max = Bytes{20000};
  Running tiny(golden("qwen3/base"), options);
  struct Case {
    int status;
    const char* path;
    std::string body;
    const char* says;
  };
  std::string deep = "{\"messages\":";
  for (int i = 0; i < 5000; ++i) deep += '[';
  const std::vector<Case> cases{
      {400, kChat, "", "cannot be read"},
      {400, kChat, "{", "cannot be read"},
      {400, kChat, "[]", "not a JSON object"},
      {400, kChat, deep, "cannot be read"},
      {400, kChat, "{\"messages\": \"\xff\xfe\"}", "cannot be read"},
      {400, kChat, "{}", "messages must be a list"},
      {400, kChat, R"({"messages": []})", "messages must be a list"},
      {400, kChat, R"({"messages": [{"role": "wizard", "content": "x"}]})", "messages[0].role"},
      {400, kChat, R"({"messages": [{"role": "user", "content": 3}]})", "messages[0].content"},
      {400, kChat, R"({"messages": [{"role": "user", "content": [{"type": "image_url", "image_url": {}}]}]})", "messages[0].content"},
      {400, kChat, R"({"messages": [{"role": "user", "content": "x"}], "max_token": 3})", "'max_token' is not known"},
      {400, kChat, R"({"messages": [{"role": "user", "content": "x"}], "logit_bias": {"3": 1}})", "logit_bias"},
      {400, kChat, R"({"messages": [{"role": "user", "content": "x"}], "tools": [{"type": "function"}]})", "tools must be"},
      {400, kChat, R"({"messages": [{"role": "user", "content": "x"}], "tool_choice": "required"})", "tool_choice"},
      {400, kChat, R"({"messages": [{"role": "user", "content": "x"}], "response_format": {"type": "json_object"}})", "response_format"},
      {400, kChat, R"({"messages": [{"role": "user", "content": "x"}], "seed": 1e99})", "seed"},
      {400, kChat, R"({"messages": [{"role": "user", "content": "x"}], "stop": ["a", ""]})", "stop must be"},
      {400, kChat, R"({"messages": [{"role": "user", "content": "x"}], "top_logprobs": 3})", "needs logprobs"},
      {400, kChat, R"({"messages": [{"role": "user", "content": "x"}], "max_tokens": 3, "max_completion_tokens": 4})", "contradict"},
      {400, kChat, R"({"messages": [{"role": "user", "content": ")" + std::string(2000, 'x') + R"("}]})", "the context holds"},
      {404, kChat, R"({"model": "other", "messages": [{"role": "user", "content": "x"}]})", "'tiny' is"},
      {400, kText, "{}", "prompt must be"},
      {400, kText, R"({"prompt": []})", "prompt must be"},
      {400, kText, R"({"prompt": [1, 192]})", "below 192"},
      {400, kText, R"({"prompt": [1, -1]})", "below 192"},
      {400, kText, R"({"prompt": [1, 2.5]})", "below 192"},
      {400, kText, R"({"prompt": [18446744073709551615]})", "below 192"},
      {400, kText, R"({"prompt": "x", "echo": true})", "echo"},
      {400, kText, R"({"prompt": ["a", "b", "c"], "n": 9})", "completions of one request"},
      {404, "/v1/embeddings", "{}", "there is no POST /v1/embeddings"},
      {413, kChat, std::string(30000, ' '), "longer than this server takes"},
  };
  for (const Case& c : cases) {
    const auto answer = tiny.client().Post(c.path, c.body, "application/json");
    ASSERT_TRUE(answer) << c.body.substr(0, 200);
    EXPECT_EQ(answer->status, c.status) << c.body.substr(0, 200) << "\n" << answer->body;
    const auto json = ordered_json::parse(answer->body, nullptr, false);
    ASSERT_TRUE(json.is_object() && json.contains("error")) << answer->body;
    EXPECT_THAT(json["error"]["message"].get<std::string>(), HasSubstr(c.says));
    for (const char* key : {"type", "param", "code"}) EXPECT_TRUE(json["error"].contains(key));
    EXPECT_EQ(answer->body.find('\n'), std::string::npos);
  }
  EXPECT_EQ(tiny.client().Post(kChat, "messages=1", "application/x-www-form-urlencoded")->status, 400);
  EXPECT_EQ(tiny.client().Get(kChat)->status, 404);
  EXPECT_EQ(tiny.client().Get("/health")->status, 200) << "alive after all of it";
}

TEST(Hostile, AllProblemsOfARequestAreSaidAtOnce) {
  Running tiny(golden("qwen3/base"));
  const auto answer = tiny.post(kChat, {{"messages", 3}, {"temperature", "hot"}, {"n", 0}, {"top_p", 2}, {"stream", "yes"}, {"frobnicate", true}});
  ASSERT_EQ(answer->status, 400);
  for (const char* part : {"messages", "temperature", "n must be", "top_p", "stream", "frobnicate"}) EXPECT_THAT(answer->body, HasSubstr(part));
}

TEST(Hostile, AKeyIsAskedOfEverybody) {
  ServeOptions options;
  options.api_key = "a secret";
  Running tiny(golden("qwen3/base"), options);
  const ordered_json body{{"messages", user("x")}, {"max_tokens", 2}};
  for (const char* header : {"", "Bearer", "Bearer ", "Bearer a secre", "Bearer a secrets", "Basic a secret", "a secret"}) {
    const auto answer = tiny.post(kChat, body, {{"Authorization", header}});
    EXPECT_EQ(answer->status, 401) << header;
    EXPECT_EQ(ordered_json::parse(answer->body)["error"]["code"], "invalid_api_key");
    EXPECT_EQ(tiny.client().Get("/metrics")->status, 401);
    EXPECT_EQ(tiny.client().Get("/v1/models")->status, 401);
  }
  EXPECT_EQ(tiny.post(kChat, body, {{"Authorization", "Bearer a secret"}})->status, 200);
  EXPECT_EQ(tiny.client().Get("/health")->status, 200) << "tells nothing";
}

TEST(Hostile, MoreRequestsThanTheLimitAreRefused) {
  ServeOptions options;
  options.requests_max = 3;
  Running slow(slow_model(), options);
  const ordered_json body{{"prompt", "x"}, {"n", 3}, {"max_tokens", 3900}, {"temperature", 0}, {"stream", true}};
  Raw holder(slow.server->port());
  const std::string text = body.dump();
  ASSERT_TRUE(holder.send("POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\nContent-Length: " + std::to_string(text.size()) + "\r\n\r\n" + text));
  ASSERT_TRUE(slow.wait_until_held(3));
  const auto refused = slow.post(kText, {{"prompt", "y"}});
  ASSERT_EQ(refused->status, 429) << refused->body;
  EXPECT_EQ(refused->get_header_value("Retry-After"), "1");
  EXPECT_THAT(refused->body, HasSubstr("--requests-max"));
  holder.close(); // it hangs up: its places are free at once, although its answers would have taken long
  EXPECT_TRUE(slow.wait_until_held(0));
  EXPECT_EQ(slow.post(kText, {{"prompt", "y"}, {"max_tokens", 2}})->status, 200);
  EXPECT_EQ(slow.figure("troupe_client_disconnects_total"), 1);
}

TEST(Hostile, AClientThatHangsUpWhileItWaitsForAWholeAnswerIsForgotten) {
  Running slow(slow_model());
  const std::string text = ordered_json{{"prompt", "x"}, {"max_tokens", 3900}, {"temperature", 0}}.dump();
  Raw gone(slow.server->port());
  ASSERT_TRUE(gone.send("POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\nContent-Length: " + std::to_string(text.size()) + "\r\n\r\n" + text));
  ASSERT_TRUE(slow.wait_until_held(1));
  gone.close();
  EXPECT_TRUE(slow.wait_until_held(0));
}

TEST(Hostile, ASlowRequestIsCutOffAsAWhole) {
  ServeOptions options;
  options.read_deadline = 400ms;
  options.idle_deadline = 300ms;
  Running tiny(golden("qwen3/base"), options);
  for (const std::string& head : {"POST /v1/chat/completions HTTP/1.1\r\nX: ", "POST /v1/chat/completions HTTP/1.1\r\nContent-Type: application/json\r\nContent-Length: 1000\r\n\r\n"}) {
    Raw slow(tiny.server->port());
    const auto begin = Clock::now();
    bool open = slow.send(head);
    // A byte now and then: each comes in time, all of them do not.
    for (int i = 0; i < 100 && open; ++i) {
      std::this_thread::sleep_for(50ms);
      open = slow.send("a");
    }
    EXPECT_LT(Clock::now() - begin, 4s);
    EXPECT_FALSE(open) << "closed by the server";
  }
  Raw idle(tiny.server->port());
  const auto begin = Clock::now();
  EXPECT_EQ(idle.read_all(), "");
  EXPECT_LT(Clock::now() - begin, 3s) << "a connection without a request is closed";
}

TEST(Hostile, GarbageIsAnsweredOrClosedAndNothingElse) {
  Running tiny(golden("qwen3/base"));
  for (const std::string& text : {std::string("\r\n\r\n"), std::string("GET\r\n\r\n"), std::string(64, '\0'), std::string("GET /health HTTP/9.9\r\n\r\n"), std::string("POST /v1/completions HTTP/1.1\r\nContent-Length: -5\r\n\r\n"),
                                 std::string("POST /v1/completions HTTP/1.1\r\nTransfer-Encoding: chunked\r\nContent-Type: application/json\r\n\r\nzz\r\n"), "GET /" + std::string(20000, 'a') + " HTTP/1.1\r\n\r\n"}) {
    Raw raw(tiny.server->port());
    (void)raw.send(text);
    raw.close();
  }
  EXPECT_EQ(tiny.client().Get("/health")->status, 200);
}

// A body that nobody reads must not become the next request.
TEST(Hostile, NothingIsSmuggledInABody) {
  ServeOptions options;
  options.api_key = "k";
  Running tiny(golden("qwen3/base"), options);
  const std::string inner = "GET /health HTTP/1.1\r\nHost: x\r\n\r\n";
  for (const std::string& head : {"POST /v1/completions HTTP/1.1\r\nContent-Type: application/json\r\n", "POST /v1/completions HTTP/1.1\r\nAuthorization: Bearer k\r\nContent-Type: text/plain\r\n"}) {
    Raw raw(tiny.server->port());
    ASSERT_TRUE(raw.send(head + "Content-Length: " + std::to_string(inner.size()) + "\r\n\r\n" + inner));
    const std::string answers = raw.read_all();
    EXPECT_EQ(answers.find("HTTP/1.1", 1), std::string::npos) << answers;
    EXPECT_EQ(answers.find("\"ok\""), std::string::npos);
  }
}

TEST(Hostile, MoreConnectionsThanThreadsWait) {
  ServeOptions options;
  options.connections_max = 2;
  options.idle_deadline = 500ms;
  Running tiny(golden("qwen3/base"), options);
  Raw first(tiny.server->port()), second(tiny.server->port()); // say nothing
  EXPECT_EQ(tiny.client().Get("/health")->status, 200) << "as soon as one of them was closed";
}

TEST(Listener, APortBelongsToOneServer) {
  Running first(golden("qwen3/base"));
  ServedModel model = golden("qwen3/base");
  ServeOptions options;
  options.port = first.server->port();
  const auto second = Server::start(options, model, engine_options(), 1);
  ASSERT_FALSE(second);
  EXPECT_EQ(second.error().code, ErrorCode::kUnavailable);
  EXPECT_THAT(second.error().message, HasSubstr("another program listens on 127.0.0.1:" + std::to_string(options.port)));
  options.port = 0;
  options.host = "203.0.113.7"; // of nobody here
  options.api_key = "k";
  EXPECT_EQ(Server::start(options, model, engine_options(), 1).error().code, ErrorCode::kInvalidArgument);
}

TEST(Listener, OthersNeedAKey) {
  ServedModel model = golden("qwen3/base");
  for (const char* host : {"0.0.0.0", "::", "192.0.2.1"}) {
    ServeOptions options;
    options.host = host;
    options.port = 0;
    EXPECT_THAT(Server::start(options, model, engine_options(), 1).error().message, HasSubstr("--api-key-file"));
  }
  for (const char* host : {"127.0.0.1", "127.1.2.3", "localhost", "::1"}) EXPECT_TRUE(is_loopback(host));
}

} // namespace
} // namespace troupe::serve
