#include "kernels/attention.h"
#include "kernels/cpu/reference.h"
#include "tests/kernels/support.h"

namespace troupe::kernels {
namespace {

using testing::Doubles;
using testing::Floats;

/// A prompt and `samples` continuations of it, in one array of rows: [prompt][own 0][own 1]...
struct Group {
  AttentionShape shape;
  std::int64_t prompt, own, samples;
  Floats q, k, v, out, dout, lse;

  [[nodiscard]] std::int64_t rows() const { return prompt + own * samples; }
  [[nodiscard]] std::int64_t q_row() const { return shape.heads * shape.head_dim; }
  [[nodiscard]] std::int64_t kv_row() const { return shape.kv_heads * shape.head_dim; }

  Group(AttentionShape s, std::int64_t p, std::int64_t o, std::int64_t n, std::uint64_t seed)
      : shape(s), prompt(p), own(o), samples(n) {
    q = testing::filled(rows() * q_row(), seed, 1.5f);
    k = testing::filled(rows() * kv_row(), seed + 1, 1.5f);
    v = testing::filled(rows() * kv_row(), seed + 2);
    dout = testing::filled(rows() * q_row(), seed + 3);
    if (s.precision == Precision::kBfloat16) {
      for (Floats* x : {&q, &k, &v, &dout})
        for (float& value : *x) value = testing::to_bfloat16(value);
    }
    out.resize(q.size());
    lse.resize(static_cast<std::size_t>(rows() * s.heads));
    std::vector<std::vector<KeySpan>> spans;
    std::vector<AttentionSegment> segments;
    for (std::int64_t i = prompt > 0 ? -1 : 0; i < samples; ++i) {
      spans.push_back({});
      if (prompt > 0) spans.back().push_back({k.data(), v.data(), prompt, kv_row(), KvLayout::kRows});
      if (i >= 0) spans.back().push_back({kv(k, begin(i)), kv(v, begin(i)), own, kv_row(), KvLayout::kRows});
    }
    for (std::size_t i = 0; i < spans.size(); ++i) {
      const std::int64_t index = static_cast<std::int64_t>(i) - (prompt > 0 ? 1 : 0);
      AttentionSegment segment;
      segment.q = &q[at(index)];
      segment.out = &out[at(index)];
      segment.lse = &lse[static_cast<std::size_t>(begin(index) * s.heads)];
      segment.rows = index < 0 ? prompt : own;
      segment.spans = spans[i].data();
      segment.span_count = static_cast<std::int64_t>(spans[i].size());
      segments.push_back(segment);
    }
    attention_forward(shape, segments.data(), static_cast<std::int64_t>(segments.size()));
  }

  [[nodiscard]] std::int64_t begin(std::int64_t sample) const { return sample < 0 ? 0 : prompt + own * sample; }
  [[nodiscard]] std::size_t at(std::int64_t sample) const { return static_cast<std::size_t>(begin(sample) * q_row()); }
  [[nodiscard]] float* kv(Floats& x, std::int64_t row) const { return x.data() + row * kv_row(); }
  [[nodiscard]] const float* kv(const Floats& x, std::int64_t row) const { return x.data() + row * kv_row(); }
};

struct Grads {
  Floats dq, dk, dv;
};

Grads backward(const Group& g) {
  Grads r{Floats(g.q.size(), -7), Floats(g.k.size()), Floats(g.v.size())};
  std::vector<AttentionGradSegment> segments;
  for (std::int64_t i = g.prompt > 0 ? -1 : 0; i < g.samples; ++i) {
    AttentionGradSegment s;
    s.q = &g.q[g.at(i)];
    s.out = &g.out[g.at(i)];
    s.dout = &g.dout[g.at(i)];
    s.lse = &g.lse[static_cast<std::size_t>(g.begin(i) * g.shape.heads)];
    s.dq = &r.dq[g.at(i)];
    s.rows = i < 0 ? g.prompt : g.own;
    if (i >= 0 && g.prompt > 0) s.prefix = {g.k.data(), g.v.data(), r.dk.data(), r.dv.data(), g.prompt};
    s.own = {g.kv(g.k, g.begin(i)), g.kv(g.v, g.begin(i)), g.kv(r.dk, g.begin(i)), g.kv(r.dv, g.begin(i)), s.rows};
    segments.push_back(s);
  }
  attention_backward(g.shape, {}, segments.data(), static_cast<std::int64_t>(segments.size()));
  return r;
}

/// The same in float64: every sample as a sequence of its own, prompt gradients added up.
struct RightGrads {
  Doubles dq, dk, dv;
};
RightGrads right(const Group& g) {
  RightGrads r{Doubles(g.q.size()), Doubles(g.k.size()), Doubles(g.v.size())};
  const double scale = 1 / std::sqrt(static_cast<double>(g.shape.head_dim));
  const auto slice = [](const Floats& x, std::int64_t begin, std::int64_t rows, std::int64_t row) {
    return Doubles(x.begin() + begin * row, x.begin() + (begin + rows) * row);
  };
  for (std::int64_t i = g.prompt > 0 ? -1 : 0; i < g.samples; ++i) {
    const std::int64_t rows = i < 0 ? g.prompt : g.own;
    const std::int64_t prefix = i < 0 ? 0 : g.prompt;
    Doubles k = slice(g.k, 0, prefix, g.kv_row()), v = slice(g.v, 0, prefix, g.kv_row());
    const Doubles own_k = slice(g.k, g.begin(i), rows, g.kv_row()), own_v = slice(g.v, g.begin(i), rows, g.kv_row());
    k.insert(k.end(), own_k.begin(), own_k.end());
    v.insert(v.end(), own_v.begin(), own_v.end());
    const auto grad = reference::attention_backward(
        {rows, prefix + rows, g.shape.heads, g.shape.kv_heads, g.shape.head_dim, scale},
        slice(g.q, g.begin(i), rows, g.q_row()), k, v, slice(g.dout, g.begin(i), rows, g.q_row()));
    std::copy(grad.dq.begin(), grad.dq.end(), r.dq.begin() + g.begin(i) * g.q_row());
    for (std::int64_t t = 0; t < prefix + rows; ++t) {
      const std::int64_t row = t < prefix ? t : g.begin(i) + t - prefix;
      for (std::int64_t c = 0; c < g.kv_row(); ++c) {
        r.dk[static_cast<std::size_t>(row * g.kv_row() + c)] += grad.dk[static_cast<std::size_t>(t * g.kv_row() + c)];
        r.dv[static_cast<std::size_t>(row * g.kv_row() + c)] += grad.dv[static_cast<std::size_t>(t * g.kv_row() + c)];
      }
    }
  }
  return r;
}

TEST(AttentionBackward, ErrorAndBitsWithAndWithoutASharedPrompt) {
  for (const AttentionShape& shape :
       std::vector<AttentionShape>{{4, 2, 32, 0}, {3, 3, 16, 0}, {8, 1, 48, 0}, {4, 2, 128, 0},
                                   {4, 2, 32, 0, Precision::kBfloat16}, {3, 3, 16, 0, Precision::kBfloat16},
                                   {8, 1, 48, 0, Precision::kBfloat16}, {4, 2, 128, 0, Precision::kBfloat16}}) {
    for (const auto& [prompt, own, samples] : std::vector<std::array<std::int64_t, 3>>{
             {0, 1, 1}, {0, 7, 1}, {0, 100, 1}, {0, 150, 1}, {1, 1, 2}, {23, 31, 3}, {50, 5, 4}, {16, 48, 2}}) {
      SCOPED_TRACE(std::to_string(shape.heads) + "/" + std::to_string(shape.kv_heads) + " x " +
                   std::to_string(shape.head_dim) + ", prompt " + std::to_string(prompt) + ", own " +
                   std::to_string(own));
      const Group g(shape, prompt, own, samples, 7);
      Grads want;
      testing::for_variants([&] {
        const Grads r = backward(g);
        if (want.dq.empty()) want = r;
        EXPECT_EQ(testing::bit_difference(r.dq, want.dq), "");
        EXPECT_EQ(testing::bit_difference(r.dk, want.dk), "");
        EXPECT_EQ(testing::bit_difference(r.dv, want.dv), "");
      });
      const RightGrads exact = right(g);
      if (shape.precision == Precision::kBfloat16) {  // p and ds are rounded
        EXPECT_LT(testing::errors_of(want.dq, exact.dq).relative, 5e-3);
        EXPECT_LT(testing::errors_of(want.dk, exact.dk).relative, 5e-3);
        EXPECT_LT(testing::errors_of(want.dv, exact.dv).relative, 5e-3);
        continue;
      }
      EXPECT_LT(testing::errors_of(want.dq, exact.dq).largest, 4e-6);
      EXPECT_LT(testing::errors_of(want.dk, exact.dk).largest, 1e-5);
      EXPECT_LT(testing::errors_of(want.dv, exact.dv).largest, 1e-5);
    }
  }
}

TEST(AttentionBackward, ReferenceAgreesWithFiniteDifferences) {
  const reference::Attention a{5, 8, 4, 2, 6, 0.4};
  Doubles q = testing::widened(testing::filled(5 * 4 * 6, 1));
  Doubles k = testing::widened(testing::filled(8 * 2 * 6, 2));
  Doubles v = testing::widened(testing::filled(8 * 2 * 6, 3));
  const Doubles dout = testing::widened(testing::filled(5 * 4 * 6, 4));
  const auto loss = [&] {
    const auto out = reference::attention(a, q, k, v).out;
    double sum = 0;
    for (std::size_t i = 0; i < out.size(); ++i) sum += out[i] * dout[i];
    return sum;
  };
  const auto grad = reference::attention_backward(a, q, k, v, dout);
  const auto check = [&](Doubles& x, const Doubles& want) {
    for (std::size_t i = 0; i < x.size(); ++i) {
      const double at = x[i];
      x[i] = at + 1e-5;
      const double above = loss();
      x[i] = at - 1e-5;
      const double below = loss();
      x[i] = at;
      EXPECT_NEAR(want[i], (above - below) / 2e-5, 1e-8);
    }
  };
  check(q, grad.dq);
  check(k, grad.dk);
  check(v, grad.dv);
}

TEST(AttentionBackward, GroupsOfABatchDoNotTouchEachOther) {
  for (const Precision precision : {Precision::kFloat32, Precision::kBfloat16}) {
    const AttentionShape shape{4, 2, 32, 0, precision};
    const Group a(shape, 20, 9, 2, 1);
    const Group b(shape, 0, 33, 1, 5);
    const Grads alone_a = backward(a);
    const Grads alone_b = backward(b);
    testing::for_variants([&] {
      Grads ra{Floats(a.q.size()), Floats(a.k.size()), Floats(a.v.size())};
      Grads rb{Floats(b.q.size()), Floats(b.k.size()), Floats(b.v.size())};
      std::vector<AttentionGradSegment> segments;
      for (std::int64_t i = -1; i < 2; ++i) {
        AttentionGradSegment s{&a.q[a.at(i)],
                               &a.out[a.at(i)],
                               &a.dout[a.at(i)],
                               &a.lse[static_cast<std::size_t>(a.begin(i) * 4)],
                               &ra.dq[a.at(i)],
                               i < 0 ? a.prompt : a.own,
                               {},
                               {}};
        if (i >= 0) s.prefix = {a.k.data(), a.v.data(), ra.dk.data(), ra.dv.data(), a.prompt};
        s.own = {a.kv(a.k, a.begin(i)), a.kv(a.v, a.begin(i)), a.kv(ra.dk, a.begin(i)), a.kv(ra.dv, a.begin(i)), s.rows};
        segments.push_back(s);
      }
      segments.push_back({b.q.data(),
                          b.out.data(),
                          b.dout.data(),
                          b.lse.data(),
                          rb.dq.data(),
                          33,
                          {},
                          {b.k.data(), b.v.data(), rb.dk.data(), rb.dv.data(), 33}});
      attention_backward(shape, {}, segments.data(), 4);
      EXPECT_EQ(testing::bit_difference(ra.dk, alone_a.dk), "");
      EXPECT_EQ(testing::bit_difference(ra.dq, alone_a.dq), "");
      EXPECT_EQ(testing::bit_difference(rb.dv, alone_b.dv), "");
      EXPECT_EQ(testing::bit_difference(rb.dq, alone_b.dq), "");
    });
  }
}

TEST(AttentionBackward, AddsToGradientsThatAreThereAlready) {
  for (const Precision precision : {Precision::kFloat32, Precision::kBfloat16}) {
    const Group g({2, 1, 16, 0, precision}, 0, 12, 1, 9);
    const Grads fresh = backward(g);
    Grads r{Floats(g.q.size()), Floats(g.k.size(), 1), Floats(g.v.size(), 2)};
    const AttentionGradSegment s{g.q.data(),
                                 g.out.data(),
                                 g.dout.data(),
                                 g.lse.data(),
                                 r.dq.data(),
                                 12,
                                 {},
                                 {g.k.data(), g.v.data(), r.dk.data(), r.dv.data(), 12}};
    attention_backward(g.shape, {}, &s, 1);
    for (std::size_t i = 0; i < r.dk.size(); ++i) {
      EXPECT_NEAR(r.dk[i], 1 + fresh.dk[i], 1e-6);
      EXPECT_NEAR(r.dv[i], 2 + fresh.dv[i], 1e-6);
    }
  }
}

TEST(AttentionBackwardDeath, RefusesSharersThatAreNotNeighbours) {
  const Group g({2, 1, 16, 0}, 0, 6, 2, 9);
  Grads r{Floats(g.q.size()), Floats(g.k.size()), Floats(g.v.size())};
  const auto segment = [&](std::int64_t i) {
    return AttentionGradSegment{
        &g.q[g.at(i)],
        &g.out[g.at(i)],
        &g.dout[g.at(i)],
        &g.lse[static_cast<std::size_t>(g.begin(i) * 2)],
        &r.dq[g.at(i)],
        6,
        {},
        {g.kv(g.k, g.begin(i)), g.kv(g.v, g.begin(i)), g.kv(r.dk, g.begin(i)), g.kv(r.dv, g.begin(i)), 6}};
  };
  const AttentionGradSegment list[] = {segment(0), segment(1), segment(0)};
  EXPECT_DEATH(attention_backward(g.shape, {}, list, 3), "neighbours");
}

}  // namespace
}  // namespace troupe::kernels
