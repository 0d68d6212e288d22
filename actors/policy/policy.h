/// @file
/// A policy in memory: the same for the process that trains it and the ones that sample from it.
#pragma once

#include "actors/policy/options.h"
#include "base/result.h"
#include "data/chat.h"
#include "data/tokenizer.h"
#include "model/model.h"

namespace troupe::actors {

struct Policy {
  data::Tokenizer tokenizer;
  data::PromptFormat format;
  model::Model model;
};

/// Loads or makes the policy. `weights` false: the model's numbers are zero, to be pulled.
/// Errors: those of kernels::device() where `options.backends` asks for a GPU; those of load_model, Tokenizer::load and
/// PromptFormat::create; kInvalidArgument when the tokenizer has more ids than the embedding has rows.
[[nodiscard]] Result<Policy> load_policy(const PolicyOptions& options, bool weights);

} // namespace troupe::actors
