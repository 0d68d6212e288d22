// loss: log-probs of targets and their gradients at the largest vocabulary there is, ours beside LibTorch's operators:
// memory and time.
#include <ATen/ATen.h>
#include <ATen/Parallel.h>
#include <malloc.h>
#include <torch/csrc/autograd/autograd.h>
#include <torch/csrc/autograd/variable.h>

#include <fstream>
#include <functional>
#include <random>
#include <string>
#include <vector>

#include "base/file.h"
#include "bench/registry.h"
#include "tensor/head.h"

namespace troupe::bench {
namespace {

constexpr std::int64_t kVocabulary = 151'936, kTokens = 4096, kWidth = 1024;  // Qwen3-0.6B
constexpr double kMiB = 1024.0 * 1024.0;

/// A line of /proc/self/status in MiB.
Result<double> status_mib(const std::string& key) {
  TROUPE_TRY(const std::string text, read_file("/proc/self/status"));
  const auto at = text.find("\n" + key + ":");
  if (at == std::string::npos) return fail(ErrorCode::kUnavailable, "/proc/self/status has no " + key);
  return std::stod(text.substr(at + key.size() + 2)) / 1024;
}

struct Cost {
  double seconds = 0, mib = 0;
};

/// Time of a call, and how far the memory of the process rose above what it held before.
Result<Cost> cost_of(const std::function<void()>& call) {
  ::malloc_trim(0);
  TROUPE_TRY(const double before, status_mib("VmRSS"));
  std::ofstream("/proc/self/clear_refs") << "5";  // the highest so far is forgotten
  const Stopwatch watch;
  call();
  const double seconds = watch.seconds();
  TROUPE_TRY(const double peak, status_mib("VmHWM"));
  return Cost{seconds, peak - before};
}

struct Work {
  Work() : hidden(at::randn({kTokens, kWidth})), weight(at::randn({kVocabulary, kWidth}) * 0.02) {
    std::mt19937 random(1);
    for (std::int64_t i = 0; i < kTokens; ++i) targets.push_back(static_cast<std::int32_t>(random() % kVocabulary));
    for (at::Tensor* leaf : {&hidden, &weight}) {
      leaf->set_requires_grad(true);
      leaf->mutable_grad() = at::zeros_like(*leaf).fill_(0);  // both sides add to gradients that are there
    }
  }
  at::Tensor hidden, weight;
  std::vector<std::int32_t> targets;
};

void ours(Work& work, const std::shared_ptr<tensor::PackedWeights>& packed) {
  const auto scores = tensor::score(work.hidden, work.weight, packed, work.targets, 1, kVocabulary);
  scores.logprob.mean().neg().backward();
}

void theirs(Work& work) {
  const at::Tensor ids = at::tensor(std::vector<std::int64_t>(work.targets.begin(), work.targets.end()));
  const at::Tensor logits = at::linear(work.hidden, work.weight);
  at::nll_loss(at::log_softmax(logits, -1), ids).backward();
}

}  // namespace

Status run_loss(Context& context) {
  at::set_num_threads(context.threads());
  Work work;
  const auto packed = std::make_shared<tensor::PackedWeights>();
  (void)packed->get({&work.weight, 1});
  (void)packed->turned_blocks(work.weight);  // kept from step to step, as the weights are
  TROUPE_TRY(const Cost own, cost_of([&] { ours(work, packed); }));
  TROUPE_TRY(const Cost other, cost_of([&] { theirs(work); }));
  const double logits = static_cast<double>(kTokens * kVocabulary) * sizeof(float) / kMiB;
  const double gradient = static_cast<double>(kVocabulary * kWidth) * sizeof(float) / kMiB;
  const nlohmann::json conditions = {{"tokens", kTokens},       {"vocabulary", kVocabulary}, {"width", kWidth},
                                     {"dtype", "float32"},      {"threads", context.threads()},
                                     {"work", "forward and backward, weights packed before"}};
  context.add({"loss.memory", own.mib - gradient, "MiB", Peer{"logits in float32", logits}, conditions});
  context.add({"loss.memory_with_gradient", own.mib, "MiB", Peer{"log_softmax, nll_loss", other.mib}, conditions});
  context.add({"loss.speed", kTokens / own.seconds, "tok/s", Peer{"log_softmax, nll_loss", kTokens / other.seconds}, conditions});
  return {};
}

}  // namespace troupe::bench
