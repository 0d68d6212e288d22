#include "kernels/offload.h"

#include <algorithm>

#include "kernels/device_call.h"
#include "kernels/norms.h"

namespace troupe::kernels {
namespace {

constexpr std::int64_t kAdamWPiece = 1 << 24;  // parameters on the device at a time

CudaMatmul matmul_args(const DeviceMatrix& w) {
  CudaMatmul a;
  a.w = w.data;
  a.n = w.n, a.k = w.k;
  a.ldw = w.stride;
  a.transposed = w.transposed;
  a.precision = w.precision;
  return a;
}

}  // namespace

Status run(Where where, const RmsNormForward& args) {
  return run_both(where, "rmsnorm_forward", 0, [&] { rmsnorm_forward(args); }, [a = args](DeviceCall& call) mutable {
    call.in(a.x, a.rows, a.heads * a.cols, a.x_stride);
    call.in(a.weight, a.cols);
    call.out(a.y, a.rows, a.heads * a.cols, a.y_stride);
    call.out(a.inv_rms, a.rows * a.heads);
    call.launch(&CudaLibrary::rmsnorm_forward, a);
  });
}

Status run(Where where, const RmsNormBackward& args) {
  return run_both(where, "rmsnorm_backward", 0, [&] { rmsnorm_backward(args); }, [a = args](DeviceCall& call) mutable {
    call.in(a.x, a.rows, a.heads * a.cols, a.x_stride);
    call.in(a.weight, a.cols);
    call.in(a.inv_rms, a.rows * a.heads);
    call.in(a.dy, a.rows, a.heads * a.cols, a.dy_stride);
    call.out(a.dx, a.rows, a.heads * a.cols, a.dx_stride);
    call.out(a.dweight, a.cols);
    call.launch(&CudaLibrary::rmsnorm_backward, a);
  });
}

Status run(Where where, const SwigluForward& args) {
  return run_both(where, "swiglu_forward", 0, [&] { swiglu_forward(args); }, [a = args](DeviceCall& call) mutable {
    std::int64_t up_stride = a.in_stride;
    call.in(a.gate, a.rows, a.cols, a.in_stride);
    call.in(a.up, a.rows, a.cols, up_stride);
    call.out(a.y, a.rows, a.cols, a.y_stride);
    call.launch(&CudaLibrary::swiglu_forward, a);
  });
}

Status run(Where where, const SwigluBackward& args) {
  return run_both(where, "swiglu_backward", 0, [&] { swiglu_backward(args); }, [a = args](DeviceCall& call) mutable {
    std::int64_t up_stride = a.in_stride, dup_stride = a.out_stride;
    call.in(a.gate, a.rows, a.cols, a.in_stride);
    call.in(a.up, a.rows, a.cols, up_stride);
    call.in(a.dy, a.rows, a.cols, a.dy_stride);
    call.out(a.dgate, a.rows, a.cols, a.out_stride);
    call.out(a.dup, a.rows, a.cols, dup_stride);
    call.launch(&CudaLibrary::swiglu_backward, a);
  });
}

Status run(Where where, const GatedUnit& args) {
  return run_both(where, "gated_unit", 0, [&] { gated_unit(args); }, [a = args](DeviceCall& call) mutable {
    call.in(a.gate_up, a.rows * 2 * a.cols);
    call.out(a.y, a.rows * a.cols);
    call.launch(&CudaLibrary::gated_unit, a);
  });
}

Status run(Where where, const LogprobForward& args) {
  return run_both(where, "logprob_forward", 0, [&] { logprob_forward(args); }, [a = args](DeviceCall& call) mutable {
    call.in(a.logits, a.rows, a.vocab, a.ldl);
    call.in(a.targets, a.rows);
    call.out(a.logprob, a.rows);
    call.out(a.entropy, a.rows);
    call.out(a.lse, a.rows);
    call.out(a.argmax, a.rows);
    call.launch(&CudaLibrary::logprob_forward, a);
  });
}

Status run(Where where, const LogprobBackward& args) {
  return run_both(where, "logprob_backward", 0, [&] { logprob_backward(args); }, [a = args](DeviceCall& call) mutable {
    if (a.ldl == 0) a.ldl = a.vocab;
    if (a.ldd == 0) a.ldd = a.ldl;
    const std::int64_t written = a.ldd;
    call.in(a.logits, a.rows, a.vocab, a.ldl);
    call.in(a.targets, a.rows);
    call.in(a.lse, a.rows);
    call.in(a.entropy, a.rows);
    call.in(a.dlogprob, a.rows);
    call.in(a.dentropy, a.rows);
    call.out(a.dlogits, a.rows, written, a.ldd);
    call.launch(&CudaLibrary::logprob_backward, a);
  });
}

Status run(Where where, const Router& args) {
  return run_both(where, "route", 0, [&] { route(args); }, [a = args](DeviceCall& call) mutable {
    call.in(a.logits, a.rows * a.experts);
    call.in(a.correction, a.experts);
    call.in(a.fixed, a.rows * a.chosen);
    call.out(a.choices, a.rows * a.chosen);
    call.out(a.weights, a.rows * a.chosen);
    call.launch(&CudaLibrary::route, a);
  });
}

Status run(Where where, const CausalConv& args) {
  return run_both(where, "causal_conv", 0, [&] { causal_conv(args); }, [a = args](DeviceCall& call) mutable {
    call.in(a.x, a.rows * a.channels);
    call.in(a.history, (a.taps - 1) * a.channels);
    call.in(a.weight, a.channels * a.taps);
    call.out(a.y, a.rows * a.channels);
    call.launch(&CudaLibrary::causal_conv, a);
  });
}

Status run(Where where, const WeightGradient& args) {
  return run_both(where, "weight_gradient", 0, [&] { weight_gradient(args); }, [a = args](DeviceCall& call) mutable {
    call.in(a.dy, a.m, a.n, a.ldy);
    call.in(a.x, a.m, a.k, a.ldx);
    if (a.add)
      call.in_and_out(a.dw, a.n * a.k);
    else
      call.out(a.dw, a.n * a.k);
    call.launch(&CudaLibrary::weight_gradient, a);
  });
}

Status run(Where where, const AdamW& args) {
  if (where == Where::kHost) {
    adamw_step(args);
    return {};
  }
  for (std::int64_t begin = 0; begin < args.n; begin += kAdamWPiece) {
    AdamW piece = args;
    piece.param += begin, piece.grad += begin, piece.m += begin, piece.v += begin;
    piece.n = std::min(kAdamWPiece, args.n - begin);
    TROUPE_TRY_STATUS(run_both(where, "adamw_step", 0, [&] { adamw_step(piece); }, [a = piece](DeviceCall& call) mutable {
      call.in(a.grad, a.n);
      call.in_and_out(a.param, a.n);
      call.in_and_out(a.m, a.n);
      call.in_and_out(a.v, a.n);
      call.launch(&CudaLibrary::adamw_step, a);
    }));
  }
  return {};
}

Status add(Where where, const float* x, float* y, std::int64_t n) {
  return run_both(where, "add", 0, [&] { add(x, y, n); }, [a = CudaAdd{x, y, n}](DeviceCall& call) mutable {
    call.in(a.x, a.n);
    call.in_and_out(a.y, a.n);
    call.launch(&CudaLibrary::add, a);
  });
}

Status run(Where where, std::span<const DeltaRule> sequences) {
  for (const DeltaRule& one : sequences) {
    TROUPE_TRY_STATUS(run_both(where, "delta_rule", 0, [&] { delta_rule(one); }, [a = one](DeviceCall& call) mutable {
      call.in(a.qkv, a.rows * (2 * a.key_heads * a.key_dim + a.value_heads * a.value_dim));
      call.in(a.decay, a.rows * a.value_heads);
      call.in(a.beta, a.rows * a.value_heads);
      call.out(a.out, a.rows * a.value_heads * a.value_dim);
      call.in_and_out(a.state, a.value_heads * a.key_dim * a.value_dim);
      call.launch(&CudaLibrary::delta_rule, a);
    }));
  }
  return {};
}

Status run(Where where, std::span<const DeltaRuleGrad> sequences) {
  constexpr double kRounding = 1e-3;
  const auto enqueue = [&](DeviceCall& call) {
    for (DeltaRuleGrad g : sequences) {
      const std::int64_t qkv = g.rows * (2 * g.key_heads * g.key_dim + g.value_heads * g.value_dim);
      const std::int64_t numbers = g.rows * g.value_heads, state = g.value_heads * g.key_dim * g.value_dim;
      call.in(g.qkv, qkv);
      call.in(g.decay, numbers);
      call.in(g.beta, numbers);
      call.in(g.dout, numbers * g.value_dim);
      call.in(g.state, state);
      call.in(g.dstate_after, state);
      call.out(g.dqkv, qkv);
      call.out(g.ddecay, numbers);
      call.out(g.dbeta, numbers);
      call.out(g.dstate, state);
      call.launch(&CudaLibrary::delta_rule_backward, {g, call.scratch(cuda_delta_bytes(g))});
    }
  };
  const auto host = [&] { delta_rule_backward(sequences.data(), static_cast<std::int64_t>(sequences.size())); };
  return run_both(where, "delta_rule_backward", kRounding, host, enqueue);
}

Status run(Where where, const Product& args) {
  const auto host = [&] { matmul(args.x, args.m, *args.factor.packed, args.y, args.y_stride, args.x_stride); };
  if (args.m == 0) return {};
  return run_both(where, "matmul", 0, host, [&](DeviceCall& call) {
    CudaMatmul a = matmul_args(args.factor.device);
    a.x = args.x, a.y = args.y, a.m = args.m;
    a.ldx = args.x_stride, a.ldy = args.y_stride;
    call.in(a.x, a.m, a.k, a.ldx);
    call.out(a.y, a.m, a.n, a.ldy);
    call.launch(&CudaLibrary::matmul, a);
  });
}

Status run(Where where, const GroupedProduct& args) {
  if (args.ends.empty() || args.ends.back() == 0) return {};
  const auto rows_of = [&](std::size_t g) { return std::int64_t{args.ends[g]} - (g == 0 ? 0 : args.ends[g - 1]); };
  const auto host = [&] {
    for (std::size_t g = 0; g < args.ends.size(); ++g) {
      const std::int64_t begin = args.ends[g] - rows_of(g);
      const PackedMatrix& w = args.packed[g];
      matmul(args.x + begin * w.cols(), rows_of(g), w, args.y + begin * w.rows());
    }
  };
  return run_both(where, "grouped_matmul", 0, host, [&](DeviceCall& call) {
    CudaMatmul a = matmul_args(args.first);
    a.x = args.x, a.y = args.y, a.m = args.ends.back();
    a.groups = static_cast<std::int64_t>(args.ends.size());
    for (std::size_t g = 0; g < args.ends.size(); ++g) a.max_group_rows = std::max(a.max_group_rows, rows_of(g));
    a.group_ends = args.ends.data();
    call.in(a.group_ends, a.groups);
    call.in(a.x, a.m * a.k);
    call.out(a.y, a.m * a.n);
    call.launch(&CudaLibrary::grouped_matmul, a);
  });
}

}  // namespace troupe::kernels
