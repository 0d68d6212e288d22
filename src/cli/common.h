/// @file
/// What all subcommands share: exit codes, errors for people or scripts, the run a command is about.
#pragma once

#include <CLI/CLI.hpp>

#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <string>

#include "actors/supervisor/run_folder.h"
#include "base/result.h"

namespace troupe::cli {

/// Exit codes of every command.
inline constexpr int kDone = 0;
inline constexpr int kRunFailed = 1;
inline constexpr int kUsage = 2;
inline constexpr int kNoSupervisor = 3;
inline constexpr int kPreempted = 75;
inline constexpr int kInterruptedTwice = 130;

/// Options of commands that talk to a supervisor.
struct Target {
  std::string run; ///< --run DIR|NAME; empty: the one live run of this user.
  bool json = false;
};
void add_target(CLI::App& command, Target& target);

/// Prints an error on stderr (or as JSON on stdout) and returns `code`.
int report(const Error& error, bool json, int code);

/// The live run that a command is about. Errors: kUnavailable (exit 3) when there is none; kInvalidArgument when there are several.
[[nodiscard]] Result<actors::ControlPoint> find_run(const Target& target);
/// The exit code that belongs to such an error.
[[nodiscard]] int exit_code(const Error& error);

/// Sends a request and gives the answer's JSON. Errors: kUnavailable, kTimeout; kInvalidArgument with the supervisor's words.
[[nodiscard]] Result<nlohmann::json> ask(const Target& target, const nlohmann::json& request);

/// Every subcommand: adds itself to the application; `code` is what the program returns.
void add_run(CLI::App& app, int& code);
void add_join(CLI::App& app, int& code);
void add_control(CLI::App& app, int& code);
void add_config(CLI::App& app, int& code);
void add_checkpoint(CLI::App& app, int& code);
void add_worker(CLI::App& app, int& code);
void add_bench(CLI::App& app, int& code);
void add_inspect(CLI::App& app, int& code);
/// `chat` and `serve` become troupe-worker.
void add_model_commands(CLI::App& app, int& code);

} // namespace troupe::cli
