/// @file
/// `troupe chat` and `troupe serve`: the worker executable on the command line.
#pragma once

#include <CLI/CLI.hpp>

#include <optional>
#include <string>

#include "base/units.h"
#include "generate/options.h"
#include "serve/served_model.h"

namespace troupe::cli {

/// Called with argv[0] = the subcommand's name. Return the exit code.
int chat_main(int argc, char** argv);
int serve_main(int argc, char** argv);

/// What both ask about the model and the memory it generates in.
struct ModelArguments {
  std::string path, format = "auto", dtype = "float32", kv_cache = "256MiB";
  int threads = 0;
  int context = 0;
  generate::EngineOptions engine;
};
void add_model_arguments(CLI::App& app, ModelArguments& arguments);
/// The exit code of a command line that asked for help or was wrong, which then has been said.
[[nodiscard]] std::optional<int> parse(CLI::App& app, int argc, char** argv);
/// Loads the model they name, in their precision, and says how it writes conversations.
[[nodiscard]] Result<serve::ServedModel> load(const ModelArguments& arguments);
/// Prints an error on stderr and returns `code`.
int report(const Error& error, int code);
/// Fills `engine`. Errors: kInvalidArgument for a size without meaning.
[[nodiscard]] Status resolve(ModelArguments& arguments);

} // namespace troupe::cli
