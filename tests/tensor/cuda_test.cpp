// Every row of tensor::kBackendRows on "the GPU" and on both: values and gradients have the CPU's bits where the row says so.
#include <algorithm>
#include <array>
#include <map>
#include <string>

#include "generate/sampler.h"
#include "optim/adamw.h"
#include "support.h"
#include "tensor/attention.h"
#include "tensor/delta.h"
#include "tensor/experts.h"
#include "tensor/head.h"
#include "tensor/linear.h"
#include "tensor/options.h"
#include "tensor/parts.h"
#include "tensor/sequences.h"
#include "tests/kernels/cuda/emulated.h"

namespace troupe::tensor::test {
namespace {

using kernels::Precision;

/// Values, then gradients; a result that the row does not promise bit by bit stands in `close`.
struct Results {
  std::vector<at::Tensor> exact, close;
};
using Operation = std::function<Results(Where)>;

/// Runs `f` recorded and unrecorded, and its gradient with a fixed seed. The inputs are leaves.
std::vector<at::Tensor> differentiated(const Inputs& inputs, const Function& f) {
  const Inputs own = leaves(inputs, at::kFloat);
  const at::Tensor y = f(own);
  at::manual_seed(99);
  const at::Tensor seed = at::randn(y.sizes());
  backward(std::array{y}, std::array{seed});
  std::vector<at::Tensor> results = {y.detach()};
  for (const at::Tensor& x : own) results.push_back(x.grad().defined() ? x.grad() : at::zeros({1}));
  const NoGrad no_grad;
  Inputs copies;
  for (const at::Tensor& x : own) copies.push_back(x.detach().clone());
  results.push_back(f(copies).clone());
  return results;
}

std::shared_ptr<PackedWeights> weights_in(Precision precision) {
  auto packed = std::make_shared<PackedWeights>();
  packed->set_precision(precision);
  return packed;
}
std::shared_ptr<PackedGroup> group_in(Precision precision) {
  auto packed = std::make_shared<PackedGroup>();
  packed->set_precision(precision);
  return packed;
}

Results linear_layers(Where where, Precision precision) {
  at::manual_seed(1);
  return {differentiated({at::randn({37, 50}), at::randn({20, 50}), at::randn({7, 50}), at::randn({7, 50})}, [&](const Inputs& in) {
            const std::array weights = {in[1], in[2], in[3]};
            return linear(in[0], weights, weights_in(precision), where);
          }), {}};
}

Results linear_of_heads(Where where) {
  at::manual_seed(2);
  return {differentiated({at::randn({11, 3 * 10}), at::randn({3, 6, 10})},
                         [&](const Inputs& in) { return group_linear(in[0], in[1], group_in(Precision::kFloat32), where); }), {}};
}

const std::vector<RowSegment> kSharedPrompt = {{0, 9, 0, 0}, {9, 20, 0, 9}, {20, 23, 0, 9}, {23, 96, 0, 0}};

Results attention_of_groups(Where where) {
  at::manual_seed(3);
  const HeadLayout layout{4, 2, 32};
  return {differentiated({at::randn({96, layout.row()})},
                         [&](const Inputs& in) { return attention(in[0], layout, 0.2F, kSharedPrompt, Precision::kFloat32, where); }), {}};
}

Results norms(Where where) {
  at::manual_seed(4);
  return {differentiated({at::randn({70, 33}), at::randn({33})},
                         [&](const Inputs& in) { return rmsnorm(in[0], in[1], 1e-5, 1, where); }), {}};
}

Results norms_of_heads(Where where) {
  at::manual_seed(5);
  const HeadLayout layout{3, 1, 16};
  const at::Tensor angle = at::randn({70, 4});
  return {differentiated({at::randn({70, layout.row()}), at::randn({16}), at::randn({16})}, [&](const Inputs& in) {
            return normalise_and_rotate(in[0], layout, {in[1], 1e-6, 0}, {in[2], 1e-6, 1}, {angle.cos(), angle.sin()}, where);
          }), {}};
}

Results gated_units(Where where, const GatedUnit& unit) {
  at::manual_seed(6);
  return {differentiated({at::randn({19, 2 * 45}) * 3}, [&](const Inputs& in) { return gated_unit(in[0], unit, where); }), {}};
}

/// The forward pass has the CPU's bits, the gradient has not.
Results recurrence(Where where) {
  at::manual_seed(7);
  const DeltaLayout layout{2, 4, 16, 12};
  const Inputs inputs = {at::randn({96, layout.channels()}), -at::rand({96, 4}), at::rand({96, 4})};
  const auto all = differentiated(inputs, [&](const Inputs& in) {
    return delta_rule(in[0], in[1], in[2], layout, kSharedPrompt, DeltaForm::kRecurrent, where);
  });
  return {{all.front(), all.back()}, {all.begin() + 1, all.end() - 1}};
}

Results convolution(Where where) {
  at::manual_seed(8);
  return {differentiated({at::randn({96, 24}), at::randn({24, 1, 4})},
                         [&](const Inputs& in) { return causal_conv(in[0], in[1], kSharedPrompt, where); }), {}};
}

kernels::Router rule_of(std::int64_t groups, std::int64_t kept) {
  kernels::Router rule;
  rule.chosen = 2;
  rule.score = kernels::RouterScore::kSigmoid;
  rule.groups = groups, rule.groups_kept = kept;
  rule.scale = 2.5F;
  return rule;
}

Results mixtures(Where where, Precision precision) {
  at::manual_seed(9);
  const at::Tensor correction = at::randn({8});
  return {differentiated({at::randn({21, 32}), at::randn({21, 8}), at::randn({8, 2 * 24, 32}), at::randn({8, 32, 24})}, [&](const Inputs& in) {
            const Routing routing = route(in[1], correction, {}, rule_of(4, 2), where);
            ExpertWeights w;
            w.gate_up = in[2], w.down = in[3];
            return experts(in[0], routing, w, group_in(precision), group_in(precision), where);
          }), {}};
}

Results mixtures_with_everything(Where where) {
  at::manual_seed(10);
  const Inputs inputs = {at::randn({21, 32}), at::randn({21, 4}), at::randn({4, 32, 2 * 24}), at::randn({4, 24, 32}), at::randn({4, 48}), at::randn({4, 32}),
                         at::randn({32})};
  return {differentiated(inputs, [&](const Inputs& in) {
            ExpertWeights w;
            w.gate_up = in[2], w.down = in[3], w.gate_up_bias = in[4], w.down_bias = in[5], w.norm = in[6];
            w.norm_eps = 1e-5;
            w.layout = ExpertLayout::kColumns;
            w.unit = {7, 1.702, 1};
            return experts(in[0], route(in[1], {}, {}, rule_of(1, 1), where), w, group_in(Precision::kFloat32), group_in(Precision::kFloat32), where);
          }), {}};
}

/// 5000 ids: three blocks of the transposed weight; 1030 rows: two blocks of logits.
Results scores(Where where, Precision precision, const LogitRule& rule, std::int64_t rows, std::int64_t vocab) {
  at::manual_seed(11);
  std::vector<std::int32_t> targets(static_cast<std::size_t>(rows));
  for (std::size_t i = 0; i < targets.size(); ++i) targets[i] = static_cast<std::int32_t>(i * 7919 % static_cast<std::size_t>(vocab - 3));
  return {differentiated({at::randn({rows, 8}), at::randn({vocab, 8})}, [&](const Inputs& in) {
            const Scores s = score(in[0], in[1], weights_in(precision), targets, 0.7F, vocab - 3, rule, where);
            return at::stack({s.logprob, s.entropy});
          }), {}};
}

Results steps_of_adamw(Where where) {
  at::manual_seed(12);
  optim::AdamWOptions options;
  options.weight_decay = 0.1;
  options.groups = {{"b", 0.5, 0.0}};
  auto adamw = optim::AdamW::create(options, std::array{optim::ParameterInfo{"a", 1000}, optim::ParameterInfo{"b", 7}});
  EXPECT_TRUE(adamw.has_value());
  adamw->set_where(where);
  const std::array values = {at::randn({1000}), at::randn({7})}, gradients = {at::randn({1000}), at::randn({7})};
  for (int step = 0; step < 3; ++step) {
    std::vector<optim::ParameterStep> parameters;
    for (std::size_t i = 0; i < 2; ++i) parameters.push_back({floats(values[i]), floats(gradients[i])});
    const Status done = adamw->step(parameters, 1.0, 0.5);
    EXPECT_TRUE(done) << done.error().message;
  }
  Results results{{values[0], values[1]}, {}};
  for (const optim::StateTensor& state : adamw->state()) results.exact.push_back(at::tensor(std::vector<float>(state.values.begin(), state.values.end())));
  return results;
}

Results draws(Where where) {
  at::manual_seed(13);
  const at::Tensor logits = at::randn({12, 300}) * 3;
  const generate::SamplingParams plain{}, greedy{.temperature = 0}, cold{.temperature = 0.5}, cut{.top_k = 5};
  std::vector<generate::Draw> all;
  for (std::int64_t i = 0; i < 12; ++i)
    all.push_back({floats(logits).subspan(static_cast<std::size_t>(300 * i), 300), std::array{&plain, &greedy, &cold, &cut}[static_cast<std::size_t>(i % 4)],
                   static_cast<double>(i) / 12});
  generate::Sampler sampler(where);
  const auto drawn = sampler.sample(all);
  EXPECT_TRUE(drawn.has_value());
  std::vector<float> numbers;
  for (const generate::Sampled& s : *drawn) numbers.insert(numbers.end(), {static_cast<float>(s.id), s.logprob, static_cast<float>(s.kept)});
  return {{at::tensor(numbers)}, {}};
}

const std::map<std::string, std::vector<Operation>>& operations() {
  constexpr Precision kWide = Precision::kFloat32, kNarrow = Precision::kBfloat16;
  static const std::map<std::string, std::vector<Operation>> all = {
      {"matmul", {[](Where w) { return linear_layers(w, kWide); }, [](Where w) { return linear_layers(w, kNarrow); }, linear_of_heads}},
      {"attention", {attention_of_groups}},
      {"norm", {norms, norms_of_heads}},
      {"activation", {[](Where w) { return gated_units(w, {}); }, [](Where w) { return gated_units(w, {2, 1.702, 1}); }}},
      {"recurrence", {recurrence, convolution}},
      {"experts", {[](Where w) { return mixtures(w, kWide); }, [](Where w) { return mixtures(w, kNarrow); }, mixtures_with_everything}},
      {"head", {[](Where w) { return scores(w, kWide, {}, 1030, 100); }, [](Where w) { return scores(w, kWide, {}, 10, 5000); },
                [](Where w) { return scores(w, kNarrow, {}, 40, 300); }, [](Where w) { return scores(w, kWide, {1.5, 10}, 10, 2500); }}},
      {"optimizer", {steps_of_adamw}},
      {"sampling", {draws}},
  };
  return all;
}

class CudaRows : public ::testing::TestWithParam<BackendRow> {
 protected:
  void SetUp() override {
    if (!kernels::device()) GTEST_SKIP() << kernels::device().error().message;
  }
};

bool same_bits(const at::Tensor& a, const at::Tensor& b) {
  return a.sizes() == b.sizes() && std::memcmp(a.contiguous().data_ptr(), b.contiguous().data_ptr(), static_cast<std::size_t>(a.numel()) * sizeof(float)) == 0;
}

TEST_P(CudaRows, HaveTheBitsOfTheCpu) {
  ASSERT_TRUE(operations().contains(GetParam().key)) << "a row without a test";
  int number = 0;
  bool differs = false;
  for (const Operation& operation : operations().at(GetParam().key)) {
    SCOPED_TRACE("operation " + std::to_string(number++));
    const Results cpu = operation(Where::kHost);
    const auto launched = kernels::device_traffic().kernels;
    const Results gpu = operation(Where::kDevice), both = operation(Where::kBoth);
    EXPECT_GT(kernels::device_traffic().kernels, launched) << "it was there";
    for (const Results* other : {&gpu, &both}) {
      ASSERT_EQ(other->exact.size(), cpu.exact.size());
      for (std::size_t i = 0; i < cpu.exact.size(); ++i) EXPECT_TRUE(same_bits(other->exact[i], cpu.exact[i])) << "result " << i;
      ASSERT_EQ(other->close.size(), cpu.close.size());
      for (std::size_t i = 0; i < cpu.close.size(); ++i) EXPECT_LT(relative(other->close[i], cpu.close[i]), 1e-4) << "gradient " << i;
    }
    for (std::size_t i = 0; i < cpu.close.size(); ++i) {
      EXPECT_TRUE(same_bits(both.close[i], cpu.close[i])) << "a check changes no bit";
      differs |= !same_bits(gpu.close[i], cpu.close[i]);
    }
  }
  EXPECT_EQ(differs, !GetParam().same_bits) << "what the table promises";
}

INSTANTIATE_TEST_SUITE_P(All, CudaRows, ::testing::ValuesIn(kBackendRows), [](const auto& row) { return std::string(row.param.key); });

TEST(CudaWeightsStay, UntilSomebodySaysThatTheyChanged) {
  if (!kernels::device()) GTEST_SKIP() << kernels::device().error().message;
  const NoGrad no_grad;
  at::manual_seed(14);
  const at::Tensor x = at::randn({5, 64}), weight = at::randn({128, 64});
  const auto packed = std::make_shared<PackedWeights>();
  const auto multiply_on = [&](Where where) { return linear(x, {&weight, 1}, packed, where).clone(); };
  const auto bytes_of = [&](auto&& f) {
    const auto before = kernels::device_traffic();
    f();
    const auto after = kernels::device_traffic();
    return std::array{after.bytes_up - before.bytes_up, after.bytes_down - before.bytes_down};
  };
  constexpr std::uint64_t kX = 5 * 64 * 4, kY = 5 * 128 * 4, kWeight = 128 * 64 * 4;
  EXPECT_EQ(bytes_of([&] { (void)multiply_on(Where::kDevice); }), (std::array{kX + kWeight, kY}));
  EXPECT_EQ(bytes_of([&] { (void)multiply_on(Where::kDevice); }), (std::array{kX, kY})) << "it is still there";
  const at::Tensor before = multiply_on(Where::kDevice);
  floats(weight)[17] += 3;
  EXPECT_TRUE(at::equal(multiply_on(Where::kDevice), before)) << "nothing looks";
  packed->invalidate();
  const at::Tensor after = multiply_on(Where::kDevice);
  EXPECT_FALSE(at::equal(after, before));
  EXPECT_TRUE(at::equal(after, multiply_on(Where::kHost)));
}

// Forward and backward of a linear layer: x, then the slopes once for both products, x again.
TEST(CudaTraffic, OfALinearLayerIsWhatTheReadmeSays) {
  if (!kernels::device()) GTEST_SKIP() << kernels::device().error().message;
  const at::Tensor x = at::randn({30, 64}).set_requires_grad(true), weight = at::randn({128, 64}).set_requires_grad(true);
  const auto packed = std::make_shared<PackedWeights>();
  (void)packed->factor({&weight, 1}, Where::kDevice);
  const auto before = kernels::device_traffic();
  const at::Tensor y = linear(x, {&weight, 1}, packed, Where::kDevice);
  backward(std::array{y}, std::array{at::ones_like(y)});
  const auto after = kernels::device_traffic();
  EXPECT_EQ(after.bytes_up - before.bytes_up, 4u * (2 * 30 * 64 + 30 * 128));
  EXPECT_EQ(after.bytes_down - before.bytes_down, 4u * (30 * 128 + 30 * 64 + 128 * 64));
}

TEST(CudaTraffic, LogitsNeverLeaveTheDevice) {
  if (!kernels::device()) GTEST_SKIP() << kernels::device().error().message;
  const std::int64_t rows = 40, width = 16, vocab = 5000;
  const at::Tensor hidden = at::randn({rows, width}).set_requires_grad(true), weight = at::randn({vocab, width}).set_requires_grad(true);
  const auto packed = std::make_shared<PackedWeights>();
  (void)packed->factor({&weight, 1}, Where::kDevice);
  const auto before = kernels::device_traffic();
  const Scores s = score(hidden, weight, packed, std::vector<std::int32_t>(40, 3), 1, vocab, {}, Where::kDevice);
  backward(std::array{s.logprob}, std::array{at::ones({rows})});
  const auto after = kernels::device_traffic();
  const std::int64_t small = 10 * rows * 4, rows_bytes = rows * width * 4, weight_bytes = vocab * width * 4;
  EXPECT_LE(after.bytes_up - before.bytes_up, static_cast<std::uint64_t>(3 * rows_bytes + small));
  EXPECT_LE(after.bytes_down - before.bytes_down, static_cast<std::uint64_t>(rows_bytes + weight_bytes + small));
}

TEST(CudaErrors, ComeThroughTheGraphAsTheyAre) {
  if (!kernels::device()) GTEST_SKIP() << kernels::device().error().message;
  const HeadLayout layout{2, 2, 16};
  try {
    (void)attention(at::randn({8, layout.row()}), layout, 0, std::vector<RowSegment>{{0, 8, 0, 0}}, Precision::kBfloat16, Where::kDevice);
    ADD_FAILURE() << "bfloat16 went through";
  } catch (const KernelError& e) {
    EXPECT_EQ(e.error().code, ErrorCode::kUnavailable);
    EXPECT_EQ(e.error().message, "the GPU refused a kernel: attention_forward: float32 only");
  }
}

}  // namespace
}  // namespace troupe::tensor::test
