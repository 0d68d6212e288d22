// Gated DeltaNet over packed segments: value and gradient against float64, shared prefixes, both forms.
#include "tensor/delta.h"

#include "support.h"

namespace troupe::tensor {
namespace {

using test::Function;
using test::Inputs;

constexpr DeltaLayout kLayout{2, 4, 12, 10};

/// The rule of one document, token by token, in LibTorch's operations.
at::Tensor one_document(const at::Tensor& qkv, const at::Tensor& decay, const at::Tensor& beta) {
  const std::int64_t rows = qkv.size(0), keys = kLayout.key_heads * kLayout.key_dim;
  const auto heads = [&](std::int64_t first, std::int64_t count, std::int64_t dim) {
    return qkv.narrow(1, first, count * dim).reshape({rows, count, dim});
  };
  const auto unit = [](const at::Tensor& x) {
    return (x * (x.square().sum(-1, true) + 1e-6).rsqrt()).repeat_interleave(kLayout.value_heads / kLayout.key_heads, 1);
  };
  const at::Tensor q = unit(heads(0, kLayout.key_heads, kLayout.key_dim)) / std::sqrt(static_cast<double>(kLayout.key_dim));
  const at::Tensor k = unit(heads(keys, kLayout.key_heads, kLayout.key_dim));
  const at::Tensor v = heads(2 * keys, kLayout.value_heads, kLayout.value_dim);
  at::Tensor state = at::zeros({kLayout.value_heads, kLayout.key_dim, kLayout.value_dim}, qkv.options());
  std::vector<at::Tensor> out;
  for (std::int64_t t = 0; t < rows; ++t) {
    state = state * decay[t].exp().view({-1, 1, 1});
    const at::Tensor known = at::bmm(k[t].unsqueeze(1), state).squeeze(1);
    state = state + at::bmm(k[t].unsqueeze(2), ((v[t] - known) * beta[t].unsqueeze(1)).unsqueeze(1));
    out.push_back(at::bmm(q[t].unsqueeze(1), state).reshape({1, -1}));
  }
  return at::cat(out, 0);
}

at::Tensor reference(const Inputs& in, std::span<const RowSegment> segments) {
  std::vector<at::Tensor> parts;
  for (const RowSegment& s : segments) {
    const auto document = [&](const at::Tensor& x) {
      return at::cat({x.narrow(0, s.prefix_begin, s.prefix_end - s.prefix_begin), x.narrow(0, s.begin, s.end - s.begin)}, 0);
    };
    parts.push_back(one_document(document(in[0]), document(in[1]), document(in[2])).narrow(0, s.prefix_end - s.prefix_begin, s.end - s.begin));
  }
  return at::cat(parts, 0);
}

struct Case {
  const char* name;
  std::vector<RowSegment> segments;
};

class DeltaTest : public ::testing::TestWithParam<Case> {};

TEST_P(DeltaTest, BothFormsAreRight) {
  at::manual_seed(3);
  const std::vector<RowSegment>& segments = GetParam().segments;
  const std::int64_t rows = segments.back().end;
  const Inputs inputs = {at::randn({rows, kLayout.channels()}), -at::rand({rows, kLayout.value_heads}), at::rand({rows, kLayout.value_heads})};
  for (const DeltaForm form : {DeltaForm::kRecurrent, DeltaForm::kChunked}) {
    test::expect_same(
        inputs, [&](const Inputs& in) { return delta_rule(in[0], in[1], in[2], kLayout, segments, form); },
        [&](const Inputs& in) { return reference(in, segments); });
  }
}

INSTANTIATE_TEST_SUITE_P(
    Segments, DeltaTest,
    ::testing::Values(Case{"one", {{0, 70}}}, Case{"documents", {{0, 3}, {3, 90}, {90, 91}}},
                      Case{"completions", {{0, 66}, {66, 80, 0, 66}, {80, 81, 0, 66}}},
                      Case{"cuts_inside", {{0, 30}, {30, 44, 0, 29}, {44, 50, 0, 29}, {50, 60, 0, 10}, {60, 62, 0, 30}}},
                      Case{"two_prompts", {{0, 9}, {9, 20, 0, 9}, {20, 40}, {40, 47, 20, 40}, {47, 50, 20, 33}}}),
    [](const auto& one) { return one.param.name; });

// What the contract of generation rests on: the recurrent form does not see where a document was cut.
TEST(DeltaRule, RecurrentBitsDoNotDependOnSharing) {
  at::manual_seed(4);
  const NoGrad no_grad;
  const at::Tensor qkv = at::randn({40, kLayout.channels()}), decay = -at::rand({40, kLayout.value_heads}), beta = at::rand({40, kLayout.value_heads});
  const at::Tensor whole = delta_rule(qkv, decay, beta, kLayout, std::vector<RowSegment>{{0, 40}});
  const at::Tensor shared = delta_rule(qkv, decay, beta, kLayout, std::vector<RowSegment>{{0, 25}, {25, 40, 0, 25}});
  EXPECT_TRUE(at::equal(whole, shared));
}

}  // namespace
}  // namespace troupe::tensor
