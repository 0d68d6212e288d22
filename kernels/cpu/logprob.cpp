#include "kernels/logprob.h"

#include "base/check.h"
#include "kernels/cpu/parallel.h"
#include "kernels/cpu/table.h"

namespace troupe::kernels {
namespace {

constexpr double kOperationsPerLogit = 20;

void check_targets(const std::int32_t* targets, std::int64_t rows, std::int64_t vocab) {
  for (std::int64_t i = 0; i < rows; ++i) {
    TROUPE_CHECK(targets[i] >= 0 && targets[i] < vocab, "logprob: a target is not in the vocabulary");
  }
}

}  // namespace

void logprob_forward(const LogprobForward& args) {
  if (args.rows == 0) return;
  LogprobForward a = args;
  if (a.ldl == 0) a.ldl = a.vocab;
  TROUPE_CHECK(a.vocab > 0 && a.ldl >= a.vocab, "logprob_forward: vocab must be positive and fit the row");
  TROUPE_CHECK(a.temperature > 0, "logprob_forward: the temperature must be positive");
  if (a.logprob != nullptr) check_targets(a.targets, a.rows, a.vocab);
  const KernelTable& isa = table();
  run_shared_ranges(a.rows, 1, threads_for(kOperationsPerLogit * static_cast<double>(a.rows * a.vocab)),
                    [&](std::int64_t begin, std::int64_t end) { isa.logprob_forward(a, begin, end); });
}

void logprob_backward(const LogprobBackward& args) {
  if (args.rows == 0) return;
  LogprobBackward a = args;
  if (a.ldl == 0) a.ldl = a.vocab;
  if (a.ldd == 0) a.ldd = a.ldl;
  TROUPE_CHECK(a.vocab > 0 && a.ldl >= a.vocab && a.ldd >= a.vocab, "logprob_backward: vocab must fit the rows");
  TROUPE_CHECK(a.temperature > 0, "logprob_backward: the temperature must be positive");
  TROUPE_CHECK(a.dentropy == nullptr || a.entropy != nullptr, "logprob_backward: dentropy needs the entropy");
  check_targets(a.targets, a.rows, a.vocab);
  const KernelTable& isa = table();
  run_shared_ranges(a.rows, 1, threads_for(kOperationsPerLogit * static_cast<double>(a.rows * a.vocab)),
                    [&](std::int64_t begin, std::int64_t end) { isa.logprob_backward(a, begin, end); });
}

}  // namespace troupe::kernels
