/// @file
/// `troupe chat` and `troupe serve`: the worker executable on the command line.
#pragma once

#include <CLI/CLI.hpp>

#include <string>

#include "base/units.h"
#include "generate/options.h"
#include "model/model.h"

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
/// What they say about the arithmetic of a loaded model.
void apply(const ModelArguments& arguments, model::Model& model);
/// Fills `engine`. Errors: kInvalidArgument for a size without meaning.
[[nodiscard]] Status resolve(ModelArguments& arguments);

} // namespace troupe::cli
