// Gated DeltaNet: the recurrence, its chunked form and its gradient: error against float64, bits, cuts.
#include <algorithm>

#include "kernels/cpu/reference.h"
#include "kernels/delta_net.h"
#include "tests/kernels/support.h"

namespace troupe::kernels {
namespace {

using testing::Doubles;
using testing::Floats;

/// One sequence and all that its kernels read.
struct Sequence {
  std::int64_t rows, key_heads, value_heads, dk, dv;
  Floats qkv, decay, beta, dout, state, dstate;

  Sequence(std::int64_t n, std::int64_t kh, std::int64_t vh, std::int64_t key_dim, std::int64_t value_dim, float forgets = 1)
      : rows(n),
        key_heads(kh),
        value_heads(vh),
        dk(key_dim),
        dv(value_dim),
        qkv(testing::filled(n * width(), 5)),
        decay(testing::filled(n * vh, 6, forgets)),
        beta(testing::filled(n * vh, 7, 0.5F)),
        dout(testing::filled(n * vh * value_dim, 8)),
        state(testing::filled(vh * key_dim * value_dim, 9)),
        dstate(testing::filled(vh * key_dim * value_dim, 10)) {
    for (float& g : decay) g = -std::abs(g);
    for (float& b : beta) b += 0.5F;
  }
  [[nodiscard]] std::int64_t width() const { return 2 * key_heads * dk + value_heads * dv; }
  /// Rows from `begin` on, of the caller's out and state.
  [[nodiscard]] DeltaRule rule(std::int64_t begin, std::int64_t count, Floats& out, Floats& s) const {
    return {qkv.data() + begin * width(), decay.data() + begin * value_heads,       beta.data() + begin * value_heads,
            out.data() + begin * value_heads * dv, s.data(), count, key_heads, value_heads, dk, dv};
  }

  /// One value head's part, for the reference.
  struct Head {
    Doubles q, k, v, decay, beta, dout, state, dstate;
  };
  [[nodiscard]] Head head(std::int64_t j) const {
    Head h;
    const std::int64_t key = j * key_heads / value_heads;
    const auto take = [](Doubles& to, const Floats& from, std::int64_t begin, std::int64_t n) {
      to.insert(to.end(), from.begin() + begin, from.begin() + begin + n);
    };
    for (std::int64_t t = 0; t < rows; ++t) {
      take(h.q, qkv, t * width() + key * dk, dk);
      take(h.k, qkv, t * width() + (key_heads + key) * dk, dk);
      take(h.v, qkv, t * width() + 2 * key_heads * dk + j * dv, dv);
      take(h.decay, decay, t * value_heads + j, 1);
      take(h.beta, beta, t * value_heads + j, 1);
      take(h.dout, dout, (t * value_heads + j) * dv, dv);
    }
    take(h.state, state, j * dk * dv, dk * dv);
    take(h.dstate, dstate, j * dk * dv, dk * dv);
    return h;
  }
};

struct Grads {
  Floats qkv, decay, beta, state;
};
Grads backward(const Sequence& s, bool ends = true) {
  Grads g{Floats(s.qkv.size(), 7), Floats(s.decay.size(), 7), Floats(s.beta.size(), 7), Floats(s.state.size(), 7)};
  const DeltaRuleGrad args{s.qkv.data(),   s.decay.data(), s.beta.data(),
                           s.dout.data(),  ends ? s.state.data() : nullptr, ends ? s.dstate.data() : nullptr,
                           g.qkv.data(),   g.decay.data(), g.beta.data(),
                           g.state.data(), s.rows,         s.key_heads,
                           s.value_heads,  s.dk,           s.dv};
  delta_rule_backward(&args, 1);
  return g;
}

struct Outcome {
  Doubles out, state;
};
Outcome right_outcome(const Sequence& s) {
  Outcome right{Doubles(s.dout.size()), {}};
  for (std::int64_t j = 0; j < s.value_heads; ++j) {
    Sequence::Head h = s.head(j);
    const Doubles one = reference::delta_rule(h.q, h.k, h.v, h.decay, h.beta, s.dk, s.dv, h.state);
    for (std::int64_t t = 0; t < s.rows; ++t)
      std::copy_n(one.begin() + t * s.dv, s.dv, right.out.begin() + (t * s.value_heads + j) * s.dv);
    right.state.insert(right.state.end(), h.state.begin(), h.state.end());
  }
  return right;
}

const std::vector<Sequence>& shapes() {
  static const std::vector<Sequence> kAll = {
      {1, 1, 1, 1, 1},     {3, 1, 2, 16, 16},   {15, 2, 4, 12, 9},  {16, 1, 1, 32, 48},     {17, 1, 3, 8, 80},
      {63, 2, 2, 20, 130}, {64, 1, 2, 128, 64}, {65, 2, 4, 24, 10}, {130, 1, 1, 100, 70},   {200, 2, 4, 16, 32, 0.01F},
      {70, 1, 1, 16, 16, 60}};
  return kAll;
}

TEST(DeltaRule, IsRightAndGoesOnFromItsState) {
  for (const Sequence& s : shapes()) {
    SCOPED_TRACE(::testing::Message() << s.rows << " rows, " << s.dk << " x " << s.dv);
    const auto run = [&s](std::int64_t chunk, Floats& state) {
      Floats out(s.dout.size());
      for (std::int64_t row = 0; row < s.rows; row += chunk) delta_rule(s.rule(row, std::min(chunk, s.rows - row), out, state));
      return out;
    };
    Floats state = s.state;
    const Floats whole = run(s.rows, state);
    const Outcome right = right_outcome(s);
    EXPECT_LT(testing::errors_of(whole, right.out).relative, 1e-6);
    EXPECT_LT(testing::errors_of(state, right.state).relative, 1e-6);
    testing::for_variants([&] {
      for (const std::int64_t chunk : {1, 3, 7, 64}) {
        Floats other = s.state;
        EXPECT_EQ(testing::bit_difference(run(chunk, other), whole), "");
        EXPECT_EQ(testing::bit_difference(other, state), "");
      }
    });
  }
}

TEST(DeltaRuleChunked, IsRightWhateverComputesIt) {
  for (const Sequence& s : shapes()) {
    SCOPED_TRACE(::testing::Message() << s.rows << " rows, " << s.dk << " x " << s.dv);
    const Outcome right = right_outcome(s);
    Floats first_out, first_state;
    testing::for_variants([&] {
      Floats out(s.dout.size()), state = s.state, alone = s.state;
      DeltaRule rule = s.rule(0, s.rows, out, state);
      delta_rule_chunked(&rule, 1);
      EXPECT_LT(testing::errors_of(out, right.out).relative, 1e-6);
      EXPECT_LT(testing::errors_of(state, right.state).relative, 1e-6);
      rule.out = nullptr;
      rule.state = alone.data();
      delta_rule_chunked(&rule, 1);
      EXPECT_EQ(testing::bit_difference(alone, state), "") << "without results";
      if (first_out.empty()) first_out = out, first_state = state;
      EXPECT_EQ(testing::bit_difference(out, first_out), "");
      EXPECT_EQ(testing::bit_difference(state, first_state), "");
    });
  }
}

TEST(DeltaRuleBackward, IsRightWhateverComputesIt) {
  for (const Sequence& s : shapes()) {
    SCOPED_TRACE(::testing::Message() << s.rows << " rows, " << s.dk << " x " << s.dv);
    Doubles dqkv(s.qkv.size()), ddecay(s.decay.size()), dbeta(s.beta.size()), dstate;
    for (std::int64_t j = 0; j < s.value_heads; ++j) {
      Sequence::Head h = s.head(j);
      const reference::DeltaGrad g =
          reference::delta_rule_backward(h.q, h.k, h.v, h.decay, h.beta, h.dout, s.dk, s.dv, h.state, h.dstate);
      const std::int64_t key = j * s.key_heads / s.value_heads;
      const auto put = [&](const Doubles& from, std::int64_t t, std::int64_t n, std::int64_t column) {
        for (std::int64_t i = 0; i < n; ++i) dqkv[static_cast<std::size_t>(t * s.width() + column + i)] += from[static_cast<std::size_t>(t * n + i)];
      };
      for (std::int64_t t = 0; t < s.rows; ++t) {
        put(g.dq, t, s.dk, key * s.dk);
        put(g.dk, t, s.dk, (s.key_heads + key) * s.dk);
        put(g.dv, t, s.dv, 2 * s.key_heads * s.dk + j * s.dv);
        ddecay[static_cast<std::size_t>(t * s.value_heads + j)] = g.ddecay[static_cast<std::size_t>(t)];
        dbeta[static_cast<std::size_t>(t * s.value_heads + j)] = g.dbeta[static_cast<std::size_t>(t)];
      }
      dstate.insert(dstate.end(), h.dstate.begin(), h.dstate.end());
    }
    Grads first;
    testing::for_variants([&] {
      const Grads g = backward(s);
      EXPECT_LT(testing::errors_of(g.qkv, dqkv).relative, 3e-6);
      EXPECT_LT(testing::errors_of(g.decay, ddecay).relative, 3e-6);
      EXPECT_LT(testing::errors_of(g.beta, dbeta).relative, 3e-6);
      EXPECT_LT(testing::errors_of(g.state, dstate).relative, 3e-6);
      if (first.qkv.empty()) first = g;
      EXPECT_EQ(testing::bit_difference(g.qkv, first.qkv), "");
      EXPECT_EQ(testing::bit_difference(g.decay, first.decay), "");
      EXPECT_EQ(testing::bit_difference(g.beta, first.beta), "");
      EXPECT_EQ(testing::bit_difference(g.state, first.state), "");
    });
  }
}

TEST(DeltaRuleBackward, WithoutStatesTheyAreZeros) {
  Sequence s(70, 1, 2, 16, 16);
  const Grads without = backward(s, false);
  std::ranges::fill(s.state, 0.0F);
  std::ranges::fill(s.dstate, 0.0F);
  const Grads zeros = backward(s);
  EXPECT_EQ(testing::bit_difference(without.qkv, zeros.qkv), "");
  EXPECT_EQ(testing::bit_difference(without.decay, zeros.decay), "");
  EXPECT_EQ(testing::bit_difference(without.beta, zeros.beta), "");
  EXPECT_EQ(testing::bit_difference(without.state, zeros.state), "");
}

TEST(DeltaRuleBackward, ASequenceDoesNotDependOnItsCompany) {
  const Sequence s(100, 2, 4, 24, 10);
  const Grads alone = backward(s);
  Grads g[3] = {alone, alone, alone};
  std::vector<DeltaRuleGrad> args;
  for (std::int64_t i = 0; i < 3; ++i) {
    Grads& to = g[i];
    to = {Floats(s.qkv.size()), Floats(s.decay.size()), Floats(s.beta.size()), Floats(s.state.size())};
    const bool whole = i != 1;  // the one in the middle is shorter
    args.push_back({s.qkv.data(), s.decay.data(), s.beta.data(), s.dout.data(), s.state.data(), s.dstate.data(), to.qkv.data(),
                    to.decay.data(), to.beta.data(), to.state.data(), whole ? s.rows : 3, s.key_heads, s.value_heads, s.dk, s.dv});
  }
  delta_rule_backward(args.data(), 3);
  for (const std::size_t i : {0, 2}) EXPECT_EQ(testing::bit_difference(g[i].qkv, alone.qkv), "");
}

// The reference itself: the slope of <dout, out> + <dstate, state behind> along a direction.
TEST(DeltaRuleReference, ItsGradientIsTheSlope) {
  const Sequence s(7, 1, 1, 5, 4);
  const Sequence::Head h = s.head(0);
  Doubles dstate = h.dstate;
  const reference::DeltaGrad g = reference::delta_rule_backward(h.q, h.k, h.v, h.decay, h.beta, h.dout, s.dk, s.dv, h.state, dstate);
  const auto loss = [&](const Sequence::Head& x) {
    Doubles state = x.state;
    const Doubles out = reference::delta_rule(x.q, x.k, x.v, x.decay, x.beta, s.dk, s.dv, state);
    double sum = 0;
    for (std::size_t i = 0; i < out.size(); ++i) sum += out[i] * h.dout[i];
    for (std::size_t i = 0; i < state.size(); ++i) sum += state[i] * h.dstate[i];
    return sum;
  };
  const auto check = [&](Doubles Sequence::Head::*which, const Doubles& gradient) {
    for (std::size_t i = 0; i < gradient.size(); ++i) {
      Sequence::Head up = h, down = h;
      (up.*which)[i] += 1e-5;
      (down.*which)[i] -= 1e-5;
      EXPECT_NEAR(gradient[i], (loss(up) - loss(down)) / 2e-5, 1e-7) << i;
    }
  };
  check(&Sequence::Head::q, g.dq);
  check(&Sequence::Head::k, g.dk);
  check(&Sequence::Head::v, g.dv);
  check(&Sequence::Head::decay, g.ddecay);
  check(&Sequence::Head::beta, g.dbeta);
  check(&Sequence::Head::state, dstate);
}

}  // namespace
}  // namespace troupe::kernels
