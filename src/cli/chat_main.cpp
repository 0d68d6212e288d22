// troupe chat DIR
#include <poll.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <csignal>
#include <cstdio>
#include <nlohmann/json.hpp>
#include <random>

#include "base/file.h"
#include "cli/model_main.h"
#include "kernels/isa.h"
#include "serve/chat_session.h"

namespace troupe::cli {
namespace {

using nlohmann::ordered_json;

std::atomic<bool> interrupted = false; // by Ctrl-C, which ends a reply and nothing else
int wake = -1;                         // readable then: any thread may be the one that takes the signal

bool take_interrupt() {
  std::uint64_t count = 0;
  [[maybe_unused]] const auto drained = ::read(wake, &count, sizeof count);
  return interrupted.exchange(false);
}

struct ChatArguments {
  ModelArguments model;
  serve::ChatOptions options;
  std::vector<std::string> variables;
  std::optional<std::uint64_t> seed;
  bool reasoning = false;
};

constexpr const char* kHelp =
    "/reset         forget the conversation\n"
    "/system TEXT   forget it, and begin the next one with this\n"
    "/save FILE     write the conversation as a line of JSON\n"
    "/quit          end; so does Ctrl-D. Ctrl-C ends a reply\n"
    "//TEXT         say /TEXT\n";

void declare(CLI::App& app, ChatArguments& a) {
  add_model_arguments(app, a.model);
  generate::SamplingParams& s = a.options.sampling;
  s.max_new_tokens = 1024;
  s.temperature = 0.7;
  app.add_option("--system", a.options.system, "The system message");
  app.add_option("--max-tokens", s.max_new_tokens, "Of a reply")->check(CLI::Range(1, 1 << 24))->capture_default_str();
  app.add_option("--temperature", s.temperature, "0: always the most likely token")->check(CLI::Range(0.0, 100.0))->capture_default_str();
  app.add_option("--top-p", s.top_p, "Keeps the most likely tokens with this much probability")->check(CLI::Range(0.0, 1.0))->capture_default_str();
  app.add_option("--top-k", s.top_k, "Keeps this many of the most likely tokens; 0: all")->check(CLI::Range(0, 1 << 24))->capture_default_str();
  app.add_option("--min-p", s.min_p, "Keeps tokens with this share of the most likely one's probability")->check(CLI::Range(0.0, 1.0))->capture_default_str();
  app.add_option("--seed", a.seed, "Replies are a function of it and of what is said; random if left out");
  app.add_option("--variable", a.variables, "A switch of the model's template, such as enable_thinking=false")->type_name("KEY=VALUE");
  app.add_flag("--reasoning", a.reasoning, "Show the model's reasoning (on a terminal it is shown anyway)");
}

Status resolve(ChatArguments& a) {
  TROUPE_TRY_STATUS(resolve(a.model));
  ordered_json variables = ordered_json::object();
  for (const std::string& text : a.variables) {
    const auto equals = text.find('=');
    if (equals == std::string::npos || equals == 0) return fail(ErrorCode::kInvalidArgument, "'" + text + "' is not KEY=VALUE", "--variable");
    ordered_json value = ordered_json::parse(text.substr(equals + 1), nullptr, false);
    variables[text.substr(0, equals)] = value.is_discarded() ? ordered_json(text.substr(equals + 1)) : value;
  }
  if (!variables.empty()) a.options.extras.variables = variables.dump();
  a.options.seed = a.seed ? *a.seed : std::random_device{}();
  return {};
}

// A line, without its end; nothing at the end of the input. An empty line too when Ctrl-C was pressed.
std::optional<std::string> read_line(bool terminal) {
  static std::string waiting;
  if (terminal) std::fputs("> ", stdout), std::fflush(stdout);
  for (;;) {
    if (const auto end = waiting.find('\n'); end != std::string::npos) {
      std::string line = waiting.substr(0, end);
      waiting.erase(0, end + 1);
      if (line.ends_with('\r')) line.pop_back();
      return line;
    }
    pollfd ready[] = {{wake, POLLIN, 0}, {STDIN_FILENO, POLLIN, 0}};
    if (::poll(ready, 2, -1) < 0 && errno != EINTR) return std::nullopt;
    if (take_interrupt()) {
      std::fputs("\n", stdout);
      return std::string();
    }
    if (ready[1].revents == 0) continue;
    char buffer[4096];
    const ssize_t n = ::read(STDIN_FILENO, buffer, sizeof buffer);
    if (n > 0) {
      waiting.append(buffer, static_cast<std::size_t>(n));
    } else if (n < 0 && errno == EINTR) {
      continue;
    } else {
      if (waiting.empty()) return std::nullopt;
      return std::exchange(waiting, {});
    }
  }
}

class Terminal {
 public:
  Terminal(serve::ChatSession& session, bool terminal, bool reasoning) : session_(session), terminal_(terminal), reasoning_(terminal || reasoning) {}

  // False: the end.
  bool take(const std::string& line) {
    if (line.empty()) return true;
    if (line[0] == '/' && !line.starts_with("//")) return command(line);
    say(line[0] == '/' ? line.substr(1) : line);
    return true;
  }
  [[nodiscard]] bool failed() const { return failed_; }

 private:
  bool command(const std::string& line) {
    const auto space = line.find(' ');
    const std::string name = line.substr(0, space), rest = space == std::string::npos ? "" : line.substr(space + 1);
    if (name == "/quit") return false;
    if (name == "/reset") session_.reset();
    else if (name == "/system") session_.reset(rest);
    else if (name == "/save") save(rest);
    else if (name == "/help") std::fputs(kHelp, stderr);
    else complain("there is no command " + name + "; /help lists them, and //... says it");
    return true;
  }

  void say(const std::string& text) {
    (void)take_interrupt();
    thinking_ = false;
    const auto turn = session_.say(text, [this](const serve::Delta& delta) { show(delta); }, interrupted);
    (void)take_interrupt(); // it ended the reply: the next line is not given up
    if (!turn) return complain(turn.error().to_string());
    std::fputs(thinking_ && terminal_ ? "\033[0m\n" : "\n", stdout);
    std::fflush(stdout);
    if (!turn->exact && !std::exchange(told_, true)) std::fputs("troupe: the template shows earlier turns otherwise than they were said; the conversation was rendered anew\n", stderr);
    if (turn->finish == generate::Finish::kAborted) std::fputs("troupe: stopped\n", stderr);
    if (turn->finish == generate::Finish::kLength) std::fputs("troupe: cut off (--max-tokens or the context)\n", stderr);
  }

  void show(const serve::Delta& delta) {
    if (!delta.reasoning.empty() && reasoning_) {
      if (!std::exchange(thinking_, true) && terminal_) std::fputs("\033[2m", stdout);
      std::fputs(delta.reasoning.c_str(), stdout);
    }
    if (!delta.content.empty()) {
      if (std::exchange(thinking_, false)) std::fputs(terminal_ ? "\033[0m\n\n" : "\n\n", stdout);
      std::fputs(delta.content.c_str(), stdout);
    }
    for (const data::ToolCall& call : delta.calls) std::printf("\n[%s %s]", call.name.c_str(), call.arguments.dump().c_str());
    for (const std::string& problem : delta.problems) std::printf("\n[%s]", problem.c_str());
    std::fflush(stdout);
  }

  void save(const std::string& file) {
    if (file.empty()) return complain("/save needs a file name");
    ordered_json messages = ordered_json::array();
    for (const data::Message& message : session_.messages()) {
      ordered_json one{{"role", message.role}, {"content", message.content}};
      if (!message.more.empty()) one.update(ordered_json::parse(message.more));
      messages.push_back(std::move(one));
    }
    const std::string text = ordered_json{{"messages", messages}}.dump(-1, ' ', false, ordered_json::error_handler_t::replace) + "\n";
    if (const auto saved = write_file_atomic(file, text); !saved) complain(saved.error().to_string());
  }

  void complain(const std::string& text) {
    failed_ = true;
    std::fprintf(stderr, "troupe: error: %s\n", text.c_str());
  }

  serve::ChatSession& session_;
  const bool terminal_, reasoning_;
  bool thinking_ = false, told_ = false, failed_ = false;
};

} // namespace

int chat_main(int argc, char** argv) {
  CLI::App app{"Talks to a model on this terminal. Without a terminal: a turn for each line of the input.", "troupe chat"};
  ChatArguments a;
  declare(app, a);
  if (const auto code = parse(app, argc, argv)) return *code;
  if (const auto status = resolve(a); !status) return report(status.error(), 2);
  auto model = load(a.model);
  if (!model) return report(model.error(), 2);
  wake = ::eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC);
  struct sigaction action{};
  action.sa_handler = [](int) {
    const int before = errno;
    const std::uint64_t one = 1;
    interrupted = true;
    [[maybe_unused]] const auto woken = ::write(wake, &one, sizeof one);
    errno = before;
  };
  ::sigaction(SIGINT, &action, nullptr);
  if (a.model.threads > 0) kernels::set_max_threads(a.model.threads);
  serve::ChatSession session(*model, a.model.engine, a.options);
  const bool terminal = ::isatty(STDIN_FILENO) != 0 && ::isatty(STDOUT_FILENO) != 0;
  if (terminal) std::fputs("/help lists the commands.\n", stderr);
  Terminal talk(session, terminal, a.reasoning);
  for (;;) {
    const auto line = read_line(terminal);
    if (!line || !talk.take(*line)) break;
  }
  return !terminal && talk.failed() ? 1 : 0;
}

} // namespace troupe::cli
