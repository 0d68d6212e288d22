/// @file
/// The entry point of every benchmark; each stands in a file of its name.
#pragma once

#include "bench/benchmark.h"

namespace troupe::bench {

Status run_quickstart(Context& context);
Status run_grpo(Context& context);
Status run_generate(Context& context);
Status run_train(Context& context);
Status run_weights(Context& context);
Status run_control(Context& context);
Status run_kernels(Context& context);
Status run_matmul(Context& context);
Status run_delta_net(Context& context);
Status run_loss(Context& context);
Status run_smollm2(Context& context);
Status run_recovery(Context& context);
Status run_deaths(Context& context);

}  // namespace troupe::bench
