// CUDA kernels over rows of logits: the bits, and the tokens, of the CPU.
#include "tests/kernels/cuda/target.h"

namespace troupe::kernels {
namespace {

using testing::Floats;
using testing::On;
using testing::bit_difference;

class CudaLogits : public testing::CudaKernels {};
TROUPE_ON_ALL_WAYS(CudaLogits);

constexpr float kInf = std::numeric_limits<float>::infinity();
const std::vector<std::int64_t> kVocabularies = {1, 15, 64, 65, 300, 9000};

/// 4 rows in wider ones; one with impossible tokens.
Floats logits_of(std::int64_t vocab, std::int64_t ldl) {
  Floats x = testing::filled(4 * ldl, static_cast<std::uint64_t>(vocab), 6);
  for (std::int64_t i = 1; i < vocab; i += 3) x[static_cast<std::size_t>(ldl + i)] = -kInf;
  if (vocab > 20) x[7] = x[17] = 9;  // a tie
  return x;
}

TEST_P(CudaLogits, LogprobEntropyAndArgmaxForwardAndBackward) {
  for (const std::int64_t vocab : kVocabularies) {
    for (const float temperature : {1.0F, 0.7F}) {
      SCOPED_TRACE(std::to_string(vocab) + " at " + std::to_string(temperature));
      const std::int64_t ldl = vocab + 3;
      const Floats logits = logits_of(vocab, ldl);
      const std::vector<std::int32_t> targets = {0, 0, static_cast<std::int32_t>(vocab - 1), static_cast<std::int32_t>(vocab / 2)};
      Floats lp(4), entropy(4), lse(4);
      std::vector<std::int32_t> best(4);
      const On<float> dev_logits(logits), dev_lp(lp), dev_entropy(entropy), dev_lse(lse);
      const On<std::int32_t> dev_targets(targets), dev_best(best);
      LogprobForward f{logits.data(), targets.data(), lp.data(), entropy.data(), lse.data(), best.data(), 4, vocab, ldl, temperature};
      logprob_forward(f);
      f = {dev_logits.get(), dev_targets.get(), dev_lp.get(), dev_entropy.get(), dev_lse.get(), dev_best.get(), 4, vocab, ldl, temperature};
      run(&CudaLibrary::logprob_forward, f);
      EXPECT_EQ(bit_difference(dev_lp.read(), lp), "");
      EXPECT_EQ(bit_difference(dev_entropy.read(), entropy), "");
      EXPECT_EQ(bit_difference(dev_lse.read(), lse), "");
      EXPECT_EQ(dev_best.read(), best);
      const Floats dlp = testing::filled(4, 1), dentropy = testing::filled(4, 2);
      Floats grad(logits.size(), -7);
      const On<float> dev_dlp(dlp), dev_dentropy(dentropy), dev_grad(grad);
      for (const bool both : {false, true}) {
        LogprobBackward b{logits.data(), targets.data(), lse.data(), entropy.data(), dlp.data(), both ? dentropy.data() : nullptr,
                          grad.data(), 4, vocab, ldl, 0, temperature};
        logprob_backward(b);
        b = {dev_logits.get(), dev_targets.get(), dev_lse.get(), dev_entropy.get(), dev_dlp.get(), both ? dev_dentropy.get() : nullptr,
             dev_grad.get(), 4, vocab, ldl, 0, temperature};
        run(&CudaLibrary::logprob_backward, b);
        EXPECT_EQ(bit_difference(dev_grad.read(), grad), "");
      }
    }
  }
}

TEST_P(CudaLogits, ANanSpoilsItsOwnRowOnly) {
  Floats logits = testing::filled(2 * 100, 3);
  logits[40] = kInf * 0;
  const std::vector<std::int32_t> targets = {1, 2};
  Floats lp(2);
  std::vector<std::int32_t> best(2, -1);
  const On<float> dev_logits(logits), dev_lp(lp);
  const On<std::int32_t> dev_targets(targets);
  LogprobForward f;
  f.logits = dev_logits.get(), f.targets = dev_targets.get(), f.logprob = dev_lp.get(), f.rows = 2, f.vocab = 100;
  run(&CudaLibrary::logprob_forward, f);
  EXPECT_TRUE(std::isnan(dev_lp.read()[0]));
  EXPECT_FALSE(std::isnan(dev_lp.read()[1]));
}

/// Draws with `uniforms` from the rows of `logits`, on the CPU and here.
struct Draws {
  std::vector<SampleRow> cpu, here;
};

class CudaSampling : public CudaLogits {
 protected:
  Draws draw(const Floats& logits, std::int64_t vocab, float temperature, const std::vector<double>& uniforms) {
    const On<float> dev_logits(logits);
    const auto rows = static_cast<std::int64_t>(logits.size()) / vocab;
    Draws d;
    for (std::size_t i = 0; i < uniforms.size(); ++i) {
      const std::int64_t row = static_cast<std::int64_t>(i) % rows;
      d.cpu.push_back({logits.data() + row * vocab, uniforms[i], temperature});
      d.here.push_back({dev_logits.get() + row * vocab, uniforms[i], temperature});
    }
    const auto count = static_cast<std::int64_t>(uniforms.size());
    sample_rows(d.cpu.data(), count, vocab);
    const On<SampleRow> dev_rows(d.here);
    const On<double> workspace(std::vector<double>(static_cast<std::size_t>(cuda_sample_bytes(count, vocab) / 8)));
    run(&CudaLibrary::sample_rows, CudaSampleRows{dev_rows.get(), count, vocab, workspace.get()});
    d.here = dev_rows.read();
    return d;
  }
};
TROUPE_ON_ALL_WAYS(CudaSampling);

TEST_P(CudaSampling, TheSameNumberDrawsTheSameTokenAsOnTheCpu) {
  std::vector<double> uniforms = {0, 0.25, 0.49999, 0.5, std::nextafter(1.0, 0.0)};
  for (int i = 0; i < 25; ++i) uniforms.push_back((i + 0.5) / 25);
  for (const std::int64_t vocab : kVocabularies) {
    for (const float temperature : {0.0F, 0.7F, 1.0F, 3.0F}) {
      SCOPED_TRACE(std::to_string(vocab) + " at " + std::to_string(temperature));
      const Draws d = draw(logits_of(vocab, vocab), vocab, temperature, uniforms);
      for (std::size_t i = 0; i < uniforms.size(); ++i) {
        EXPECT_EQ(d.here[i].id, d.cpu[i].id) << uniforms[i];
        EXPECT_EQ(bit_difference(&d.here[i].logprob, &d.cpu[i].logprob, 1), "");
      }
    }
  }
}

TEST_P(CudaSampling, LogitsThatAreNotFiniteGiveNoToken) {
  const float nan = std::nanf("");
  for (const Floats& logits : {Floats{0, nan, 1}, {kInf, 0, 0}, {-kInf, -kInf, -kInf}, {nan, nan, nan}})
    for (const float temperature : {0.0F, 0.5F}) {
      const Draws d = draw(logits, 3, temperature, {0.5});
      EXPECT_EQ(d.here[0].id, -1);
      EXPECT_TRUE(std::isnan(d.here[0].logprob));
    }
}

}  // namespace
}  // namespace troupe::kernels
