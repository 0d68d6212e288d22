/// @file
/// The bindings of options to keys. Internal to experiment: one function per table.
#pragma once

#include "cli/experiment/experiment.h"
#include "config/schema.h"

namespace troupe::experiment {

void bind_experiment(config::Section& s, Experiment& e);

void bind_run(config::Section& s, RunSection& o);
void bind_model(config::Section& s, ModelSection& o);
void bind_kernels(config::Section& s, KernelsSection& o);
void bind_tokenizer(config::Section& s, TokenizerSection& o);
void bind_task(config::Section& s, rl::TaskOptions& o);
void bind_data(config::Section& s, DataSection& o);
void bind_rollout(config::Section& s, RolloutSection& o);
void bind_sampling(config::Section& s, generate::SamplingParams& o);
void bind_rl(config::Section& s, RlSection& o);
void bind_algorithm(config::Section& s, rl::AlgorithmOptions& o);  ///< The tables of [rl] that `rl.algorithm` sets.
void bind_eval(config::Section& s, EvalSection& o);
void bind_optim(config::Section& s, OptimSection& o);
void bind_trainer(config::Section& s, TrainerSection& o);
void bind_comm(config::Section& s, CommSection& o);
void bind_checkpoint(config::Section& s, CheckpointSection& o);
void bind_environment(config::Section& s, EnvironmentSection& o);
void bind_control(config::Section& s, ControlSection& o);
void bind_output(config::Section& s, OutputSection& o);
void bind_stage(config::Section& s, Stage& o);

}  // namespace troupe::experiment
