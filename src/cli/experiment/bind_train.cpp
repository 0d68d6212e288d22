// [optim], [trainer], [checkpoint], [environment], [control], [output], [[stage]] and the whole.
#include "cli/experiment/bindings.h"

namespace troupe::experiment {
namespace {

void bind_group(config::Section& s, optim::GroupRule& o) {
  s.field("pattern", o.pattern, "Glob over the whole parameter name: * any run of characters, ? one.").required();
  s.field("lr_scale", o.lr_scale, "Multiplies the learning rate; 0 freezes the parameters.").min(0);
  s.field("weight_decay", o.weight_decay, "Instead of optim.weight_decay; unset: that.").min(0);
}

void bind_publication(config::Section& s, protocol::PublicationOptions& o) {
  s.field("lease", o.lease, "A reader of weights that has not finished by then loses its slot.").above(0);
  s.field("leases_max", o.leases_max, "Readers of one slot at a time; further ones are told to retry.").min(1);
}

void bind_commit(config::Section& s, protocol::CheckpointCommitOptions& o) {
  s.field("prepare_deadline", o.prepare_deadline, "The writer has memory for the state.").above(0);
  s.field("copy_deadline", o.copy_deadline, "Every rank has copied its state.").above(0);
  s.field("write_deadline", o.write_deadline, "Every byte is on disk and verified.").above(0);
  s.field("commit_deadline", o.commit_deadline, "The record is in place and durable.").above(0);
}

void bind_restart(config::Section& s, protocol::RestartOptions& o) {
  s.field("restarts_max", o.restarts_max, "Restarts of one role within `window` before it is given up.");
  s.field("window", o.window, "Sliding window of the count.").above(0);
  s.field("backoff_first", o.backoff_first,
          "Pause before the first restart; doubles with every further one in the window.")
      .min(0);
  s.field("backoff_max", o.backoff_max, "Longest pause.").min(0);
}

void bind_export(config::Section& s, ExportSection& o) {
  s.field("path", o.path, "Folder in Hugging Face layout; empty: <run.dir>/export.");
  s.choice("dtype", o.dtype, {"float32", "bfloat16", "float16", "float8"}, "Storage of the exported weights; float8: linear layers in FP8 blocks of 128 x 128, the rest bfloat16.");
}

}  // namespace

void bind_optim(config::Section& s, OptimSection& o) {
  s.field("lr", o.adamw.lr, "Peak learning rate; the schedule multiplies it.").above(0).hot();
  s.field("beta1", o.adamw.beta1, "Decay of the mean of the gradients.").min(0).below(1);
  s.field("beta2", o.adamw.beta2, "Decay of the mean of their squares.").min(0).below(1);
  s.field("eps", o.adamw.eps, "Added to the square root, after bias correction.").above(0);
  s.field("weight_decay", o.adamw.weight_decay, "Decoupled: the weight shrinks by lr * weight_decay a step.").min(0);
  s.field("clip_norm", o.adamw.max_grad_norm, "Gradients are scaled down to this global L2 norm; 0 = off.").min(0);
  s.choice(
      "schedule", o.schedule.decay,
      {{"constant", optim::Decay::kConstant}, {"linear", optim::Decay::kLinear}, {"cosine", optim::Decay::kCosine}},
      "Shape of the learning rate after the warm-up.");
  s.field("warmup_steps", o.schedule.warmup_steps,
          "The learning rate grows over this many steps; 0 starts at the peak.")
      .min(0);
  s.field("total_steps", o.schedule.total_steps, "Where the decay ends; 0 = at the end of the stage.").min(0);
  s.field("min_ratio", o.schedule.min_ratio, "Part of the peak that is left at the end of the decay.").min(0).max(1);
  s.list("group", o.adamw.groups, bind_group,
         "Parameters that are treated differently; the first pattern that matches wins.");
}

void bind_model_loss(config::Section& s, ModelLossSection& o) {
  s.field("load_balance", o.load_balance, "Times the loss that spreads tokens over experts, by the routers' softmax (Qwen3-MoE, GPT-OSS: 0.001); 0 = off.")
      .min(0);
  s.field("sequence_balance", o.sequence_balance, "Times the same within each sequence (DeepSeek-V3: 0.0001); 0 = off.").min(0);
  s.field("further_tokens", o.further,
          "Times the loss of the model's block that predicts the token after the next (MTP; DeepSeek-V3: 0.3, later 0.1); 0 = off.")
      .min(0);
  s.field("correction_speed", o.correction_speed,
          "A router's correction moves by this much after each step, against its busy experts (DeepSeek-V3: 0.001); 0 = it stays.")
      .min(0);
}

void bind_trainer(config::Section& s, TrainerSection& o) {
  s.field("ranks", o.ranks, "Training processes. Each holds the whole model and computes a part of every batch.").min(1).max(256);
  s.field("threads", o.threads, "Compute threads of a rank; 0 = the cores by the processes that compute (ranks and rollout workers), at least 1.")
      .min(0)
      .max(1024);
  s.field("micro_batch_tokens", o.micro_batch_tokens, "Tokens of one forward and backward pass at most.").min(1);
  s.field("probe_sequences", o.probe_sequences,
          "Delivered sequences that trainer and workers score again at every published version; 0 = none.")
      .min(0)
      .max(1024);
  s.field("transfer_deadline", o.transfer_deadline, "Of the copy of the state into the checkpoint writer's memory.")
      .above(0);
  s.section("publication", o.publication, bind_publication, "How rollout workers read new weights.");
}

void bind_comm(config::Section& s, CommSection& o) {
  s.field("deadline", o.deadline,
          "Of each operation that all ranks make together. Longer than one rank may be ahead of another; dead and frozen "
          "ranks are noticed sooner.")
      .min(0.5);
}

void bind_checkpoint(config::Section& s, CheckpointSection& o) {
  s.field("every", o.options.every_steps,
          "Optimizer steps between checkpoints; 0 = only at the end of a stage and on a stop.")
      .min(0)
      .hot();
  s.field("keep", o.options.keep, "Newest checkpoints kept; 0 = all.").min(0);
  s.field("at_end", o.options.at_end, "Save when a stage ends.");
  bind_commit(s, o.commit);
}

void bind_environment(config::Section& s, EnvironmentSection& o) {
  s.field("runners", o.runners, "Environment processes.").min(1).max(4096);
}

void bind_control(config::Section& s, ControlSection& o) {
  protocol::MembershipOptions& m = o.membership;
  s.field("listen", o.listen, "HOST:PORT of this machine where others join the run (`troupe supervise --listen`); empty: none can.");
  s.field("lease", o.lease, "Without the head for this long, workers stop at the next step or decode edge.").above(0);
  s.field("head_wait", o.head_wait, "Without the head for this long, agents kill their workers and exit.").above(0);
  s.field("heartbeat", o.heartbeat, "Between two signs of life of a peer.").min(0.01);
  s.field("suspect_after", m.suspect_after, "Silence after which a worker gets no new work.").above(0);
  s.field("timeout", m.dead_after, "Silence after which a worker is killed and replaced.").above(0);
  s.field("work_silence", m.work_silence, "A worker whose work thread is busy and does not move for this long is killed and replaced.").above(0);
  s.field("kill_repeat", m.kill_repeat, "An unconfirmed kill is sent again.").above(0);
  s.field("join_deadline", m.join_deadline, "From the start of a process to its registration.").above(0);
  s.field("drain_grace", m.drain_grace, "After rollout.drain_deadline, before a leaving worker is killed.").min(0);
  s.field("workers_max", m.workers_max, "Workers of one role at most.").min(1);
  s.field("nodes_max", m.nodes_max, "Machines of the run at most.").min(1);
  s.field("mesh_deadline", o.run.mesh_deadline,
          "From the order to build the training mesh until every rank holds the state.")
      .above(0);
  s.field("stop_deadline", o.run.stop_deadline,
          "From the first stop request until the run is saved; then it ends unsaved.")
      .above(0);
  s.field("step_deadline", o.run.step_deadline, "One optimizer step; beyond it the mesh counts as lost.").above(0);
  s.field("rollbacks_max", o.run.rollbacks_max, "Rollbacks within `rollback_window` before the run fails.");
  s.field("rollback_window", o.run.rollback_window, "Sliding window of the rollback count.").above(0);
  s.section("restart", m.restart, bind_restart, "Replacement of workers that died, for each role on its own.");
}

void bind_output(config::Section& s, OutputSection& o) {
  s.field("tensorboard", o.tensorboard, "Write TensorBoard event files into <run.dir>/tb.");
  s.field("samples_per_step", o.samples_per_step, "Completions written to samples.jsonl after each step.")
      .min(0)
      .max(65536)
      .hot();
  s.field("progress", o.progress, "Between two progress lines where stderr is not a terminal.").above(0);
}

void bind_stage(config::Section& s, Stage& o) {
  using protocol::StageKind;
  s.choice("type", o.kind,
           {{"pretrain", StageKind::kPretrain},
            {"sft", StageKind::kSft},
            {"rl", StageKind::kRl},
            {"eval", StageKind::kEval},
            {"export", StageKind::kExport}},
           "What the stage does.")
      .required();
  s.variant_key("type");
  s.field("name", o.name, "Name of the stage; empty: its type, with a number when that is taken.");
  s.variant({"pretrain", "sft", "rl"}, [&] {
    s.field("steps", o.steps, "Optimizer steps.").min(1).required();
    s.section("optim", o.optim, bind_optim, "Optimizer.").inherit("optim");
    s.section("model_loss", o.model_loss, bind_model_loss, "Losses of the model's parts.").inherit("model_loss");
  });
  s.variant({"pretrain", "sft"}, [&] { s.section("data", o.data, bind_data, "Training data.").inherit("data"); });
  s.variant({"rl"}, [&] {
    s.section("rl", o.rl, bind_rl, "Reinforcement learning.").inherit("rl");
    s.section("sampling", o.sampling, bind_sampling, "Sampling.").inherit("rollout.sampling");
  });
  s.variant({"rl", "eval"}, [&] { s.section("eval", o.eval, bind_eval, "Evaluation.").inherit("eval"); });
  s.variant({"export"}, [&] { bind_export(s, o.output); });
}

void bind_experiment(config::Section& s, Experiment& e) {
  s.choice("numerics", e.numerics, {"fast", "invariant"},
           "Whether log-probs may depend on what else is in a batch (fast), or never do (invariant: trainer and "
           "workers agree bit for bit, and the run checks it).");
  s.section("run", e.run, bind_run, "The run: its name, folder and seed.");
  s.section("model", e.model, bind_model, "The model: a checkpoint, or the sizes of a fresh one.");
  s.section("kernels", e.kernels, bind_kernels,
            "Who computes which operation. cpu: our kernels; aten: LibTorch's operators; check: both (the result is our kernel's, a difference beyond "
            "rounding ends the step); cuda: our kernels on the GPU, operands in host memory travel there and back; check:cuda: ours on CPU and "
            "GPU (the CPU's result; a difference in bits ends the step).");
  s.section("tokenizer", e.tokenizer, bind_tokenizer, "The vocabulary and how conversations are written.");
  s.section("task", e.task, bind_task, "The problems of rl and eval stages, and of sft stages without data.");
  s.section("data", e.data, bind_data, "Training data of pretrain and sft stages.");
  s.section("rollout", e.rollout, bind_rollout, "Rollout workers: how many, how large, how they sample.");
  s.section("rl", e.rl, bind_rl, "The RL loop and its loss.");
  s.section("optim", e.optim, bind_optim, "AdamW and its schedule.");
  s.section("model_loss", e.model_loss, bind_model_loss, "Losses that belong to the model's parts: experts and blocks for further tokens.");
  s.section("trainer", e.trainer, bind_trainer, "The training processes.");
  s.section("comm", e.comm, bind_comm, "How training processes speak to each other.");
  s.section("checkpoint", e.checkpoint, bind_checkpoint, "When the run is saved.");
  s.section("eval", e.eval, bind_eval, "Greedy answers on the held-out split, graded by the task's reward.");
  s.section("environment", e.environment, bind_environment, "The processes that play the task.");
  s.section("control", e.control, bind_control, "Deadlines and bounds of the processes among each other.");
  s.section("output", e.output, bind_output, "What the run writes beside checkpoints.");
  s.list("stage", e.stages, bind_stage,
         "The stages of the run, one after another. A stage's own tables override the top-level ones for that stage.");
}

}  // namespace troupe::experiment
