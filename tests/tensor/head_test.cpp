#include "tensor/head.h"
#include "support.h"

namespace troupe::tensor::test {
namespace {

std::vector<std::int32_t> targets(std::int64_t rows, std::int64_t vocab) {
  std::vector<std::int32_t> ids(static_cast<std::size_t>(rows));
  for (std::size_t i = 0; i < ids.size(); ++i)
    ids[i] = static_cast<std::int32_t>((i * 7919 + 3) % static_cast<std::size_t>(vocab));
  return ids;
}

/// [log-prob | entropy] of every row, so that one comparison covers both.
at::Tensor reference_scores(const at::Tensor& hidden, const at::Tensor& weight, const std::vector<std::int32_t>& ids,
                            double temperature, std::int64_t vocab) {
  const at::Tensor logp = at::log_softmax(at::matmul(hidden, weight.narrow(0, 0, vocab).t()) / temperature, -1);
  const at::Tensor index = at::tensor(std::vector<std::int64_t>(ids.begin(), ids.end())).unsqueeze(1);
  return at::stack({logp.gather(1, index).squeeze(1), -(logp.exp() * logp).sum(-1)});
}

void check(std::int64_t rows, std::int64_t vocab, std::int64_t used, double temperature) {
  at::manual_seed(8);
  const auto ids = targets(rows, used);
  const auto packed = std::make_shared<PackedWeights>();
  expect_same(
      {at::randn({rows, 24}), at::randn({vocab, 24}) * 0.5},
      [&](const Inputs& in) {
        packed->invalidate();
        const Scores scores = score(in[0], in[1], packed, ids, static_cast<float>(temperature), used);
        return at::stack({scores.logprob, scores.entropy});
      },
      [&](const Inputs& in) { return reference_scores(in[0], in[1], ids, temperature, used); }, 5e-5);
}

TEST(Score, ValueAndGradientOfLogprobAndEntropy) {
  check(1, 50, 50, 1.0);
  check(37, 192, 192, 1.0);
  check(37, 192, 192, 0.5);
}

TEST(Score, PaddedRowsTakeNoProbabilityAndNoGradient) { check(20, 64, 50, 1.3); }

TEST(Score, ManyBlocksOfRowsGiveTheSame) { check(1500, 5000, 5000, 0.8); }  // 838 rows of logits at a time

TEST(Score, OneOutputAloneHasGradients) {
  at::manual_seed(9);
  const at::Tensor hidden = at::randn({5, 16}).set_requires_grad(true);
  const at::Tensor weight = at::randn({30, 16});
  const auto ids = targets(5, 30);
  const Scores scores = score(hidden, weight, std::make_shared<PackedWeights>(), ids, 1, 30);
  backward(std::array{scores.entropy}, std::array{at::ones({5})});
  const at::Tensor wide = hidden.detach().to(at::kDouble).set_requires_grad(true);
  backward(std::array{reference_scores(wide, weight.to(at::kDouble), ids, 1, 30)[1]},
           std::array{at::ones({5}, at::kDouble)});
  EXPECT_LT(relative(hidden.grad(), wide.grad()), 5e-5);
  EXPECT_FALSE(weight.grad().defined());
}

TEST(Score, WorkedExamples) {  // V08 of cases/reported_faults.md: logits [2, 0, -1] at T = 0.5; a row that pads
  const NoGrad no_grad;
  const at::Tensor hidden = at::ones({3, 1});
  const at::Tensor weight = at::tensor(std::vector<float>{2, 0, -1}).unsqueeze(1);
  const std::vector<std::int32_t> ids = {0, 1, 2};
  const Scores hot = score(hidden, weight, std::make_shared<PackedWeights>(), ids, 0.5F, 3);
  EXPECT_NEAR(hot.logprob[0].item<float>(), -0.020581, 1e-6);
  EXPECT_NEAR(hot.logprob[1].item<float>(), -4.020581, 2e-6);
  EXPECT_NEAR(hot.logprob[2].item<float>(), -6.020581, 2e-6);
  const at::Tensor padded = at::tensor(std::vector<float>{2, 1, 0, 0}).unsqueeze(1);
  const std::vector<std::int32_t> first = {0};
  const Scores used = score(at::ones({1, 1}), padded, std::make_shared<PackedWeights>(), first, 1, 3);
  EXPECT_NEAR(used.logprob[0].item<float>(), -0.407606, 1e-6);
}

}  // namespace
}  // namespace troupe::tensor::test
