/// @file
/// From an experiment to what each actor is told: the only place where both are known.
#pragma once

#include <filesystem>
#include <string>

#include "actors/environment/environment_actor.h"
#include "actors/supervisor/options.h"
#include "cli/experiment/experiment.h"
#include "data/tokenizer.h"

namespace troupe::cli {

[[nodiscard]] actors::SupervisorOptions supervisor_options(const experiment::Experiment& experiment);
[[nodiscard]] actors::EnvironmentRunnerOptions environment_options(const experiment::Experiment& experiment);

/// Loads or makes the tokenizer of an experiment. Errors: those of Tokenizer::load and make_vocabulary.
[[nodiscard]] Result<data::Tokenizer> make_tokenizer(const experiment::Experiment& experiment);

/// Writes a run's tokenizer folder: the tokenizer, and the chat template that the model brings. Errors: those of Tokenizer::save,
/// find_chat_template and load_spec.
[[nodiscard]] Status save_tokenizer(const experiment::Experiment& experiment, const data::Tokenizer& tokenizer, const std::filesystem::path& folder);

/// "deps:models/x" is the folder or the single file that scripts/setup.sh fetched there; other paths stay as they are.
/// Errors: kNotFound with the command that fetches it.
[[nodiscard]] Result<std::string> resolve_path(const std::string& path);

} // namespace troupe::cli
