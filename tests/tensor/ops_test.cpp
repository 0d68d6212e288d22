#include <cmath>

#include "support.h"
#include "tensor/attention.h"
#include "tensor/linear.h"
#include "tensor/ops.h"

namespace troupe::tensor::test {
namespace {

at::Tensor reference_norm(const at::Tensor& x, const at::Tensor& weight, double eps, double offset) {
  return x * at::rsqrt(x.pow(2).mean(-1, true) + eps) * (weight + offset);
}

/// Half-split rotation of the first 2 * cos.size(1) channels of [T, heads, hd].
at::Tensor reference_rotate(const at::Tensor& x, const at::Tensor& cos, const at::Tensor& sin) {
  const std::int64_t half = cos.size(1);
  const at::Tensor a = x.narrow(2, 0, half);
  const at::Tensor b = x.narrow(2, half, half);
  const at::Tensor c = cos.to(x.scalar_type()).unsqueeze(1);
  const at::Tensor s = sin.to(x.scalar_type()).unsqueeze(1);
  return at::cat({a * c - b * s, b * c + a * s, x.narrow(2, 2 * half, x.size(2) - 2 * half)}, 2);
}

at::Tensor heads_of(const at::Tensor& qkv, std::int64_t first, std::int64_t heads, const HeadLayout& layout) {
  return qkv.narrow(1, first * layout.head_dim, heads * layout.head_dim).reshape({qkv.size(0), heads, layout.head_dim});
}

at::Tensor reference_attention(const at::Tensor& qkv, const HeadLayout& layout, double scale,
                               std::span<const RowSegment> segments) {
  const at::Tensor q = heads_of(qkv, 0, layout.heads, layout);
  const at::Tensor k =
      heads_of(qkv, layout.heads, layout.kv_heads, layout).repeat_interleave(layout.heads / layout.kv_heads, 1);
  const at::Tensor v = heads_of(qkv, layout.heads + layout.kv_heads, layout.kv_heads, layout)
                           .repeat_interleave(layout.heads / layout.kv_heads, 1);
  std::vector<at::Tensor> rows;
  for (const RowSegment& s : segments) {
    const auto keys_of = [&](const at::Tensor& x) {
      return at::cat(
                 {x.narrow(0, s.prefix_begin, s.prefix_end - s.prefix_begin), x.narrow(0, s.begin, s.end - s.begin)}, 0)
          .transpose(0, 1);
    };
    const std::int64_t n = s.end - s.begin;
    const std::int64_t keys = n + s.prefix_end - s.prefix_begin;
    const at::Tensor mask = at::ones({n, keys}, at::kBool).triu(keys - n + 1);
    const at::Tensor scores = at::matmul(q.narrow(0, s.begin, n).transpose(0, 1), keys_of(k).transpose(1, 2)) * scale;
    const at::Tensor p = at::softmax(scores.masked_fill(mask, -INFINITY), -1);
    rows.push_back(at::matmul(p, keys_of(v)).transpose(0, 1).reshape({n, layout.heads * layout.head_dim}));
  }
  return at::cat(rows, 0);
}

TEST(Linear, StackedWeightsAndTheirGradients) {
  at::manual_seed(1);
  for (const std::int64_t rows : {1, 3, 65}) {
    const auto packed = std::make_shared<PackedWeights>();
    expect_same(
        {at::randn({rows, 70}), at::randn({48, 70}), at::randn({16, 70}), at::randn({17, 70})},
        [&](const Inputs& in) {
          packed->invalidate();
          return linear(in[0], std::span(in).subspan(1), packed);
        },
        [](const Inputs& in) {
          return at::matmul(in[0], at::cat({in[1], in[2], in[3]}, 0).t());
        });
  }
}

TEST(Linear, KeepsItsPackedWeightsUntilTold) {
  const at::Tensor x = at::ones({1, 8});
  at::Tensor w = at::ones({4, 8});
  const auto packed = std::make_shared<PackedWeights>();
  const NoGrad no_grad;
  EXPECT_EQ(linear(x, {&w, 1}, packed)[0][0].item<float>(), 8);
  w.mul_(2);
  EXPECT_EQ(linear(x, {&w, 1}, packed)[0][0].item<float>(), 8);
  packed->invalidate();
  EXPECT_EQ(linear(x, {&w, 1}, packed)[0][0].item<float>(), 16);
}

TEST(RmsNorm, PlainAndZeroCentredWeights) {
  at::manual_seed(2);
  for (const double offset : {0.0, 1.0})
    for (const std::int64_t width : {64, 100})
      expect_same(
          {at::randn({9, width}), at::randn({width})},
          [&](const Inputs& in) { return rmsnorm(in[0], in[1], 1e-6, offset); },
          [&](const Inputs& in) { return reference_norm(in[0], in[1], 1e-6, offset); });
}

TEST(Swiglu, ValueAndGradient) {
  at::manual_seed(3);
  expect_same(
      {at::randn({7, 2 * 37}) * 3}, [](const Inputs& in) { return swiglu(in[0]); },
      [](const Inputs& in) { return at::silu(in[0].narrow(1, 0, 37)) * in[0].narrow(1, 37, 37); });
}

TEST(Embedding, RepeatedIdsAddUp) {
  at::manual_seed(4);
  const std::vector<std::int32_t> ids = {3, 0, 3, 9, 3};
  expect_same(
      {at::randn({10, 12})}, [&](const Inputs& in) { return embedding(in[0], ids); },
      [](const Inputs& in) {
        return at::embedding(in[0], at::tensor(std::vector<std::int64_t>{3, 0, 3, 9, 3}));
      });
}

TEST(Heads, NormalisedAndRotatedInPart) {
  at::manual_seed(5);
  const HeadLayout layout{4, 2, 32};
  for (const std::int64_t rotary : {32, 16}) {
    const RopeRows rope{at::randn({6, rotary / 2}), at::randn({6, rotary / 2})};
    expect_same(
        {at::randn({6, layout.row()}), at::randn({32}), at::randn({32})},
        [&](const Inputs& in) {
          return normalise_and_rotate(in[0], layout, {in[1], 1e-6, 1}, {in[2], 1e-5, 0}, rope);
        },
        [&](const Inputs& in) {
          const at::Tensor q =
              reference_rotate(reference_norm(heads_of(in[0], 0, 4, layout), in[1], 1e-6, 1), rope.cos, rope.sin);
          const at::Tensor k =
              reference_rotate(reference_norm(heads_of(in[0], 4, 2, layout), in[2], 1e-5, 0), rope.cos, rope.sin);
          return at::cat({q.reshape({6, -1}), k.reshape({6, -1}), in[0].narrow(1, 192, 64)}, 1);
        });
  }
}

TEST(Heads, WithoutNormOrRotationNothingChanges) {
  const HeadLayout layout{4, 2, 16};
  expect_same(
      {at::randn({5, layout.row()})}, [&](const Inputs& in) { return normalise_and_rotate(in[0], layout, {}, {}, {}); },
      [](const Inputs& in) { return in[0] * 1; });
}

TEST(Attention, PackedSegmentsAndSharedPrefixes) {
  at::manual_seed(6);
  const std::vector<RowSegment> segments = {{0, 9, 0, 0},   {9, 10, 0, 9},    {10, 30, 0, 9},
                                            {30, 47, 0, 0}, {47, 60, 30, 41}, {60, 64, 0, 5}};
  for (const HeadLayout layout : {HeadLayout{4, 2, 32}, HeadLayout{6, 6, 16}, HeadLayout{4, 1, 64}}) {
    const double scale = 1 / std::sqrt(static_cast<double>(layout.head_dim));
    expect_same(
        {at::randn({64, layout.row()})},
        [&](const Inputs& in) { return attention(in[0], layout, static_cast<float>(scale), segments); },
        [&](const Inputs& in) { return reference_attention(in[0], layout, scale, segments); });
  }
}

}  // namespace
}  // namespace troupe::tensor::test
