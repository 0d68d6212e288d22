// troupe serve DIR
#include <csignal>
#include <cstdio>
#include <filesystem>

#include "base/file.h"
#include "cli/model_main.h"
#include "serve/server.h"

namespace troupe::cli {
namespace {

struct ServeArguments {
  ModelArguments model;
  serve::ServeOptions options;
  std::string api_key_file, body_max = "4MiB", drain_deadline = "30s";
};

void declare(CLI::App& app, ServeArguments& a) {
  add_model_arguments(app, a.model);
  app.add_option("--host", a.options.host, "Address to listen on; others than loopback need --api-key-file")->capture_default_str();
  app.add_option("--port", a.options.port, "0: any that is free")->check(CLI::Range(0, 65535))->capture_default_str();
  app.add_option("--name", a.options.name, "What the model is called in requests; the folder's name if left out");
  app.add_option("--api-key-file", a.api_key_file, "File with the key that requests must carry")->type_name("FILE");
  app.add_option("--sequences-max", a.model.engine.sequences_max, "Completions that generate at once")->check(CLI::Range(1, 4096))->capture_default_str();
  app.add_option("--requests-max", a.options.requests_max, "Completions that wait or run; more are refused with 429")->check(CLI::Range(1, 1 << 20))->capture_default_str();
  app.add_option("--connections-max", a.options.connections_max, "Connections served at once, a thread each")->check(CLI::Range(1, 4096))->capture_default_str();
  app.add_option("--body-max", a.body_max, "Longest request body; longer ones are refused with 413")->type_name("BYTES")->capture_default_str();
  app.add_option("--drain-deadline", a.drain_deadline, "What runs may take this long after SIGTERM")->type_name("DURATION")->capture_default_str();
}

Status resolve(ServeArguments& a) {
  TROUPE_TRY_STATUS(resolve(a.model));
  TROUPE_TRY(a.options.body_max, parse_bytes(a.body_max));
  TROUPE_TRY(a.options.drain_deadline, parse_duration(a.drain_deadline));
  a.model.engine.waiting_max = a.options.requests_max;
  if (a.options.name.empty()) {
    const auto path = std::filesystem::weakly_canonical(a.model.path);
    a.options.name = path.extension() == ".gguf" ? path.stem().string() : path.filename().string();
  }
  if (a.api_key_file.empty()) return {};
  TROUPE_TRY(std::string key, read_file(a.api_key_file, 4096));
  key.erase(key.find_last_not_of(" \t\r\n") + 1);
  key.erase(0, key.find_first_not_of(" \t\r\n"));
  if (key.empty()) return fail(ErrorCode::kInvalidArgument, "the file holds no key", a.api_key_file);
  a.options.api_key = std::move(key);
  return {};
}

} // namespace

int serve_main(int argc, char** argv) {
  CLI::App app{"Serves a model over HTTP as OpenAI's API.", "troupe serve"};
  ServeArguments a;
  declare(app, a);
  if (const auto code = parse(app, argc, argv)) return *code;
  if (const auto status = resolve(a); !status) return report(status.error(), 2);

  sigset_t ends; // before any thread is made, so that all of them leave these signals to the wait below
  sigemptyset(&ends);
  for (const int signal : {SIGTERM, SIGINT}) sigaddset(&ends, signal);
  pthread_sigmask(SIG_BLOCK, &ends, nullptr);
  std::signal(SIGPIPE, SIG_IGN);

  auto model = load(a.model);
  if (!model) return report(model.error(), 2);
  auto server = serve::Server::start(a.options, *model, a.model.engine, a.model.threads);
  if (!server) return report(server.error(), server.error().code == ErrorCode::kUnavailable ? 1 : 2);
  std::fprintf(stderr, "troupe: serving %s at %s%s\n", a.options.name.c_str(), (*server)->address().c_str(), a.options.api_key.empty() ? ", without a key" : "");

  int signal = 0;
  sigwait(&ends, &signal);
  std::fprintf(stderr, "troupe: ending; what runs has %s\n", a.drain_deadline.c_str());
  pthread_sigmask(SIG_UNBLOCK, &ends, nullptr); // a second one ends at once
  const bool all = (*server)->drain();
  if (!all) std::fprintf(stderr, "troupe: the deadline came first; some requests were cut off\n");
  return 0;
}

} // namespace troupe::cli
