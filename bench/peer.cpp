#include "bench/peer.h"

#include <filesystem>

#include "bench/helper.h"

namespace troupe::bench {
namespace {

namespace fs = std::filesystem;
using nlohmann::json;

constexpr Duration kDeadline = std::chrono::hours(1);

struct Ran {
  actors::ExitStatus status;
  std::string output;
};

Result<Ran> run_program(std::vector<std::string> argv) {
  TROUPE_TRY(const auto folder, TemporaryFolder::create());
  TROUPE_TRY(const FileDescriptor program, actors::open_executable(argv.front()));
  actors::ProcessSpec spec;
  spec.executable = program.get();
  spec.argv = std::move(argv);
  spec.output = folder.path() / "output";
  TROUPE_TRY(auto process, actors::start_process(spec));
  Child child(std::move(process));
  Ran ran;
  TROUPE_TRY(ran.status, child.wait(kDeadline));
  ran.output = read_file(spec.output).value_or("");
  return ran;
}

std::string end_of(const std::string& text) { return text.size() > 800 ? text.substr(text.size() - 800) : text; }

bool failed(const Ran& ran) { return ran.status.code != 0 || ran.status.signal != 0; }

// The folder of the environment, set up if need be.
Result<std::string> environment(const Context& context) {
  context.say("the peers' Python environment (the first time: some minutes)");
  const fs::path script = fs::path(TROUPE_SOURCE_DIR) / "bench" / "peers" / "setup.sh";
  TROUPE_TRY(const Ran ran, run_program({"/bin/bash", script.string()}));
  if (failed(ran)) return fail(ErrorCode::kUnavailable, "the peers cannot be set up: " + end_of(ran.output));
  return (fs::path(TROUPE_SOURCE_DIR) / ".deps" / "bench-venv").string();
}

// The last line that is a JSON object.
std::optional<json> last_object(const std::string& output) {
  std::size_t end = output.size();
  while (end > 0) {
    const std::size_t newline = output.rfind('\n', end - 1);
    const std::size_t begin = newline == std::string::npos ? 0 : newline + 1;
    if (begin < end && output[begin] == '{')
      if (json object = json::parse(output.substr(begin, end - begin), nullptr, false); object.is_object())
        return object;
    end = newline == std::string::npos ? 0 : newline;
  }
  return std::nullopt;
}

Result<json> measure(const Context& context, const std::string& script, const std::vector<std::string>& arguments) {
  TROUPE_TRY(const auto folder, environment(context));
  std::string shown = script;
  for (const std::string& argument : arguments) shown += " " + argument;
  context.say("peer: " + shown);
  std::vector<std::string> argv{folder + "/bin/python",
                                (fs::path(TROUPE_SOURCE_DIR) / "bench" / "peers" / script).string()};
  argv.insert(argv.end(), arguments.begin(), arguments.end());
  TROUPE_TRY(const Ran ran, run_program(std::move(argv)));
  auto object = last_object(ran.output);
  if (failed(ran) || !object)
    return fail(ErrorCode::kUnavailable,
                "the peer " + shown + " failed (" + to_string(ran.status) + "): " + end_of(ran.output));
  return *object;
}

}  // namespace

std::optional<json> run_peer(Context& context, const std::string& script, const std::vector<std::string>& arguments) {
  if (!context.peers()) return std::nullopt;
  const auto result = measure(context, script, arguments);
  if (result) return *result;
  context.peer_failed(result.error());
  return std::nullopt;
}

std::optional<Peer> peer_of(const std::optional<json>& result, const std::string& key) {
  if (!result || !result->contains(key) || !(*result)[key].is_number()) return std::nullopt;
  return Peer{result->value("peer", "peer"), (*result)[key].get<double>()};
}

}  // namespace troupe::bench
