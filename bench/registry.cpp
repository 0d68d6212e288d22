#include "bench/registry.h"

#include <array>

namespace troupe::bench {
namespace {

constexpr std::array kBenchmarks = {
    Benchmark{"quickstart", "configs/quickstart.toml as a user runs it: seconds, memory, accuracy, completions/s",
              "TRL GRPOTrainer", false, run_quickstart},
    Benchmark{"grpo", "asynchronous GRPO on two-digit sums: completions/s, seconds from accuracy 0.3 to 0.75",
              "TRL GRPOTrainer", false, run_grpo},
    Benchmark{"generate", "the engine, Qwen3 shape of 8 layers x 256: tok/s of prefill and of batch 1 and 16",
              "transformers.generate", false, run_generate},
    Benchmark{"train", "one optimizer step, same shape, 8 sequences of 512: tok/s, GFLOP/s", "transformers", false,
              run_train},
    Benchmark{"weights", "512 MiB from the weight store to another process, from ticket to digest checked: GB/s",
              "memcpy", true, run_weights},
    Benchmark{"control", "a request between two processes over the control link: p50 and p99 in us", "raw CAF", true,
              run_control},
    Benchmark{"kernels", "the CPU kernels in the shapes of the two example models: GFLOP/s or GB/s", "roofline", true,
              run_kernels},
    Benchmark{"matmul", "products of linear layers, float32 and bfloat16, forward and backward; what packing costs", "at::matmul",
              true, run_matmul},
    Benchmark{"delta_net", "Gated DeltaNet of 1024 to 8192 rows, forward and backward in chunks: tok/s, GFLOP/s", "the recurrent form", true,
              run_delta_net},
    Benchmark{"loss", "log-probs of 4096 targets among 151,936 and their gradients: MiB beyond the weights, tok/s",
              "log_softmax, nll_loss", true, run_loss},
    Benchmark{"smollm2", "the engine on SmolLM2-135M: tok/s of prefill 512 and of decoding, batch 1 and 16", "llama.cpp", false,
              run_smollm2},
    Benchmark{"recovery", "kill -9 of a rollout worker until its replacement works; scale 2 -> 4 -> 1: seconds", "",
              false, run_recovery},
    Benchmark{"deaths", "kill -9 of the rank and of the supervisor, SIGSTOP of a worker: seconds until the run goes on", "",
              false, run_deaths},
};

}  // namespace

std::span<const Benchmark> benchmarks() { return kBenchmarks; }

}  // namespace troupe::bench
