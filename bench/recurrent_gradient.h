/// @file
/// The gradient of the gated delta rule token by token: what the chunked form is measured against. Not in the product.
#pragma once

#include "kernels/delta_net.h"

namespace troupe::bench {

/// As kernels::delta_rule_backward without states at the ends. Keeps the states of 64 rows and those at the borders of
/// such blocks, and passes over the state twice a row.
void recurrent_gradient(const kernels::DeltaRuleGrad& args, int threads);

}  // namespace troupe::bench
