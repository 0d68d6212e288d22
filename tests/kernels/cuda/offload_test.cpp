// kernels/offload.h through a library that is opened as the product does: what goes up, what comes back, and what fails.
#include "kernels/offload.h"

#include <gmock/gmock.h>

#include <functional>
#include <numeric>

#include "kernels/device_call.h"
#include "tests/kernels/cuda/emulated.h"
#include "tests/kernels/support.h"

namespace troupe::kernels {
namespace {

using ::testing::HasSubstr;
using testing::bit_difference;
using testing::filled;
using testing::Floats;

class Offload : public ::testing::Test {
 protected:
  void SetUp() override {
    if (!device()) GTEST_SKIP() << device().error().message;
  }
  /// Runs the operation in all three ways; it returns its results, beginning anew each time.
  static void expect_same(const std::function<Status(Where, std::vector<Floats>&)>& operation, std::vector<Floats> results) {
    std::vector<Floats> host = results, gpu = results, both = results;
    ASSERT_TRUE(operation(Where::kHost, host));
    for (const auto& [where, got] : {std::pair{Where::kDevice, &gpu}, {Where::kBoth, &both}}) {
      const Status done = operation(where, *got);
      ASSERT_TRUE(done) << done.error().message;
      for (std::size_t i = 0; i < host.size(); ++i) EXPECT_EQ(bit_difference((*got)[i], host[i]), "") << "result " << i;
    }
    EXPECT_NE(host, results) << "something was computed";
  }
};

constexpr float kUntouched = 77;

// Columns of wider rows: what lies between them stays as it is.
TEST_F(Offload, NormsInsideWiderRows) {
  const Floats x = filled(9 * 100, 1), w = filled(16, 2), dy = filled(9 * 100, 3), inv = filled(27, 4);
  expect_same([&](Where where, std::vector<Floats>& r) {
    RmsNormForward a;
    a.x = x.data() + 5, a.weight = w.data(), a.y = r[0].data() + 5, a.inv_rms = r[1].data();
    a.rows = 9, a.cols = 16, a.heads = 3, a.x_stride = a.y_stride = 100;
    return run(where, a);
  }, {Floats(900, kUntouched), Floats(27)});
  expect_same([&](Where where, std::vector<Floats>& r) {
    RmsNormBackward a;
    a.x = x.data(), a.weight = w.data(), a.inv_rms = inv.data(), a.dy = r[0].data() + 7, a.dx = r[0].data() + 7;  // in place
    a.dweight = r[1].data();
    a.rows = 9, a.cols = 16, a.heads = 3, a.x_stride = 90, a.dy_stride = a.dx_stride = 100;
    return run(where, a);
  }, {dy, Floats(16)});
}

TEST_F(Offload, GatedUnits) {
  const Floats x = filled(7 * 80, 1, 8), dy = filled(7 * 40, 2);
  expect_same([&](Where where, std::vector<Floats>& r) {
    return run(where, SwigluForward{x.data(), x.data() + 40, r[0].data(), 7, 40, 80, 44});
  }, {Floats(7 * 44, kUntouched)});
  expect_same([&](Where where, std::vector<Floats>& r) {
    return run(where, SwigluBackward{x.data(), x.data() + 40, dy.data(), r[0].data(), r[0].data() + 40, 7, 40, 80, 40, 80});
  }, {Floats(7 * 80, kUntouched)});
  expect_same([&](Where where, std::vector<Floats>& r) {
    return run(where, GatedUnit{x.data(), r[0].data(), 7, 40, 7, 1.702F, 1});
  }, {Floats(7 * 40)});
}

TEST_F(Offload, LogProbsAndTheirGradientInPlace) {
  constexpr std::int64_t kRows = 5, kVocab = 90, kPadded = 96;
  const Floats logits = filled(kRows * kPadded, 1, 6), weight = filled(kRows, 2), bonus = filled(kRows, 3);
  const std::vector<std::int32_t> targets = {0, 89, 17, 4, 4};
  Floats lse(kRows), entropy(kRows);
  const auto forward = [&](Where where, float* logprob, float* h, float* l) {
    LogprobForward a;
    a.logits = logits.data(), a.targets = targets.data();
    a.logprob = logprob, a.entropy = h, a.lse = l;
    a.rows = kRows, a.vocab = kVocab, a.ldl = kPadded, a.temperature = 0.7F;
    return run(where, a);
  };
  expect_same([&](Where where, std::vector<Floats>& r) { return forward(where, r[0].data(), r[1].data(), r[2].data()); },
              {Floats(kRows), Floats(kRows), Floats(kRows)});
  ASSERT_TRUE(forward(Where::kHost, nullptr, entropy.data(), lse.data()));
  expect_same([&](Where where, std::vector<Floats>& r) {
    LogprobBackward a;
    a.logits = a.dlogits = r[0].data();
    a.targets = targets.data(), a.lse = lse.data(), a.entropy = entropy.data();
    a.dlogprob = weight.data(), a.dentropy = bonus.data();
    a.rows = kRows, a.vocab = kVocab, a.ldl = kPadded, a.temperature = 0.7F;
    return run(where, a);
  }, {logits});
}

TEST_F(Offload, RouterConvolutionSumAndStep) {
  const Floats logits = filled(6 * 8, 1), correction = filled(8, 2), x = filled(11 * 24, 3), w = filled(24 * 4, 4);
  std::vector<std::int32_t> choices[3];
  expect_same([&](Where where, std::vector<Floats>& r) {
    auto& chosen = choices[static_cast<int>(where)];
    chosen.assign(12, -1);
    Router a;
    a.logits = logits.data(), a.correction = correction.data(), a.choices = chosen.data(), a.weights = r[0].data();
    a.rows = 6, a.experts = 8, a.chosen = 2, a.groups = 4, a.groups_kept = 2;
    return run(where, a);
  }, {Floats(12)});
  EXPECT_EQ(choices[0], choices[1]);
  EXPECT_EQ(choices[0], choices[2]);
  for (const float* history : {static_cast<const float*>(nullptr), w.data()})
    expect_same([&](Where where, std::vector<Floats>& r) {
      return run(where, CausalConv{x.data(), history, w.data(), r[0].data(), 11, 24, 4});
    }, {Floats(11 * 24)});
  expect_same([&](Where where, std::vector<Floats>& r) { return add(where, x.data(), r[0].data(), 264); }, {filled(264, 9)});
  expect_same([&](Where where, std::vector<Floats>& r) {
    AdamW a;
    a.param = r[0].data(), a.m = r[1].data(), a.v = r[2].data(), a.grad = x.data();
    a.n = 264, a.lr = 1e-2, a.weight_decay = 0.1, a.step = 3, a.grad_scale = 0.5F;
    return run(where, a);
  }, {filled(264, 5), filled(264, 6), Floats(264, 0.25F)});
}

/// A matrix on the device.
DeviceMemory uploaded(const Floats& x) {
  DeviceMemory memory = std::move(*DeviceMemory::allocate(x.size() * sizeof(float)));
  EXPECT_TRUE(copy_to_device({memory.get(), x.data(), 1, x.size() * sizeof(float)}));
  return memory;
}

TEST_F(Offload, ProductsOfRowsInsideWiderRowsAndTheirGradients) {
  const Floats x = filled(7 * 50, 1), w = filled(24 * 40, 2);
  const DeviceMemory on_device = uploaded(w);
  for (const Precision precision : {Precision::kFloat32, Precision::kBfloat16}) {
    PackedMatrix packed, turned;
    packed.pack(w.data(), 24, 40, 0, precision);
    const PackedMatrix::Part part{w.data(), 24};
    turned.pack_transposed(&part, 1, 40, precision);
    expect_same([&](Where where, std::vector<Floats>& r) {
      return run(where, Product{x.data(), r[0].data(), 7, {&packed, {on_device.floats(), 24, 40, 0, false, precision}}, 50, 30});
    }, {Floats(7 * 30, kUntouched)});
    expect_same([&](Where where, std::vector<Floats>& r) {
      return run(where, Product{x.data(), r[0].data(), 7, {&turned, {on_device.floats(), 40, 24, 0, true, precision}}, 50});
    }, {Floats(7 * 40)});
    for (const bool add : {false, true})
      expect_same([&](Where where, std::vector<Floats>& r) {
        return run(where, WeightGradient{x.data(), x.data() + 9, r[0].data(), 7, 24, 40, 50, 50, add, precision});
      }, {filled(24 * 40, 3)});
  }
}

TEST_F(Offload, AMatrixPerGroupOfRows) {
  const Floats x = filled(9 * 32, 1), w = filled(4 * 16 * 32, 2);
  const DeviceMemory on_device = uploaded(w);
  std::vector<PackedMatrix> packed(4);
  for (std::size_t g = 0; g < 4; ++g) packed[g].pack(w.data() + g * 16 * 32, 16, 32);
  const std::vector<std::int32_t> ends = {3, 3, 8, 9};
  expect_same([&](Where where, std::vector<Floats>& r) {
    return run(where, GroupedProduct{x.data(), r[0].data(), ends, packed.data(), {on_device.floats(), 16, 32}});
  }, {Floats(9 * 16)});
}

// A prompt of 5 rows with two completions, and a document beside them.
TEST_F(Offload, AttentionOverSharedRowsAndItsGradient) {
  constexpr std::int64_t kRow = (4 + 2 + 2) * 16, kOut = 4 * 16;
  const AttentionShape shape{4, 2, 16, 0.25F, Precision::kFloat32};
  const Floats qkv = filled(19 * kRow, 1), dout = filled(19 * kOut, 2);
  struct Part { std::int64_t begin, end, prefix_begin, prefix_end; };
  const std::vector<Part> parts = {{0, 5, 0, 0}, {5, 9, 0, 5}, {9, 12, 0, 5}, {12, 19, 0, 0}};
  const auto forward = [&](Where where, Floats& out, Floats& lse) {
    std::vector<KeySpan> spans;
    for (const Part& p : parts)
      for (const auto& [begin, end] : {std::pair{p.prefix_begin, p.prefix_end}, {p.begin, p.end}}) {
        const float* k = qkv.data() + begin * kRow + kOut;
        spans.push_back({k, k + 32, end - begin, kRow, KvLayout::kRows});
      }
    std::vector<AttentionSegment> list;
    for (std::size_t i = 0; i < parts.size(); ++i) {
      const bool shared = parts[i].prefix_end > 0;
      list.push_back({qkv.data() + parts[i].begin * kRow, out.data() + parts[i].begin * kOut, lse.data() + parts[i].begin * 4,
                      parts[i].end - parts[i].begin, kRow, 0, &spans[2 * i + (shared ? 0 : 1)], shared ? 2 : 1});
    }
    return attention_forward(where, shape, list, {qkv, out, lse});
  };
  expect_same([&](Where where, std::vector<Floats>& r) { return forward(where, r[0], r[1]); }, {Floats(19 * kOut), Floats(19 * 4)});
  Floats out(19 * kOut), lse(19 * 4);
  ASSERT_TRUE(forward(Where::kHost, out, lse));
  expect_same([&](Where where, std::vector<Floats>& r) {
    const auto keys = [&](std::int64_t begin, std::int64_t end) {
      const std::int64_t at = begin * kRow + kOut;
      return KeyGrad{qkv.data() + at, qkv.data() + at + 32, r[0].data() + at, r[0].data() + at + 32, end - begin};
    };
    std::vector<AttentionGradSegment> list;
    for (const Part& p : parts)
      list.push_back({qkv.data() + p.begin * kRow, out.data() + p.begin * kOut, dout.data() + p.begin * kOut,
                      lse.data() + p.begin * 4, r[0].data() + p.begin * kRow, p.end - p.begin,
                      p.prefix_end > 0 ? keys(p.prefix_begin, p.prefix_end) : KeyGrad{}, keys(p.begin, p.end)});
    return attention_backward(where, shape, {kRow, kOut, kRow, kRow, kRow}, list, {qkv, out, dout, lse, r[0]});
  }, {Floats(19 * kRow)});
}

TEST_F(Offload, TheDeltaRuleGoesOnFromAStateAndItsGradientIsClose) {
  const Floats qkv = filled(70 * (2 * 16 + 2 * 2 * 16), 1), beta = filled(140, 3), dout = filled(70 * 32, 4), state = filled(2 * 256, 5);
  Floats decay = filled(140, 2);
  for (float& d : decay) d = -std::abs(d);
  const auto rule = [&](float* out, float* s) {
    return DeltaRule{qkv.data(), decay.data(), beta.data(), out, s, 70, 2, 2, 16, 16};
  };
  expect_same([&](Where where, std::vector<Floats>& r) {
    const DeltaRule one = rule(r[0].data(), r[1].data());
    return run(where, std::span(&one, 1));
  }, {Floats(70 * 32), state});
  std::vector<Floats> results[3];
  for (const Where where : {Where::kHost, Where::kDevice, Where::kBoth}) {
    auto& r = results[static_cast<int>(where)];
    r = {Floats(qkv.size()), Floats(140), Floats(140), Floats(512)};
    DeltaRuleGrad g;
    g.qkv = qkv.data(), g.decay = decay.data(), g.beta = beta.data(), g.dout = dout.data(), g.state = state.data();
    g.dqkv = r[0].data(), g.ddecay = r[1].data(), g.dbeta = r[2].data(), g.dstate = r[3].data();
    g.rows = 70, g.key_heads = g.value_heads = 2, g.key_dim = g.value_dim = 16;
    const Status done = run(where, std::span(&g, 1));
    ASSERT_TRUE(done) << done.error().message;
  }
  EXPECT_EQ(results[2], results[0]) << "the CPU's";
  EXPECT_NE(results[1], results[0]) << "another order of sums";
  for (std::size_t i = 0; i < 4; ++i)
    EXPECT_LT(testing::errors_of(results[1][i], testing::widened(results[0][i])).relative, 1e-5);
}

TEST_F(Offload, SampledTokens) {
  const Floats logits = filled(5 * 70, 1, 4);
  std::vector<SampleRow> drawn[3];
  for (const Where where : {Where::kHost, Where::kDevice, Where::kBoth}) {
    auto& rows = drawn[static_cast<int>(where)];
    for (int i = 0; i < 5; ++i) rows.push_back({logits.data() + 70 * i, 0.2 * i, i == 3 ? 0.0F : 0.8F});
    const Status done = sample_rows(where, rows.data(), 5, 70);
    ASSERT_TRUE(done) << done.error().message;
    for (std::size_t i = 0; i < 5; ++i) {
      EXPECT_GE(rows[i].id, 0);
      EXPECT_EQ(rows[i].logits, logits.data() + 70 * i) << "the caller's own";
      EXPECT_EQ(rows[i].id, drawn[0][i].id);
      EXPECT_EQ(bit_difference(&rows[i].logprob, &drawn[0][i].logprob, 1), "");
    }
  }
}

TEST_F(Offload, WhatLiesOnTheDeviceStaysThere) {
  const Floats x = filled(6 * 40, 1);
  const DeviceMemory in = uploaded(x), out = uploaded(Floats(6 * 20));
  const DeviceTraffic before = device_traffic();
  ASSERT_TRUE(run(Where::kDevice, SwigluForward{in.floats(), in.floats() + 20, out.floats(), 6, 20, 40}));
  const DeviceTraffic after = device_traffic();
  EXPECT_EQ(after.bytes_up - before.bytes_up, 0u);
  EXPECT_EQ(after.bytes_down - before.bytes_down, 0u);
  EXPECT_EQ(after.kernels - before.kernels, 1u);
  Floats got(6 * 20), want(6 * 20);
  ASSERT_TRUE(copy_to_host({got.data(), out.get(), 1, got.size() * sizeof(float)}));
  swiglu_forward({x.data(), x.data() + 20, want.data(), 6, 20, 40});
  EXPECT_EQ(bit_difference(got, want), "");
}

TEST_F(Offload, BytesAreThoseOfTheOperandsAndMemoryIsUsedAgain) {
  const Floats gate_up = filled(1000 * 200, 1);
  Floats y(1000 * 100);
  const auto once = [&] { return run(Where::kDevice, SwigluForward{gate_up.data(), gate_up.data() + 100, y.data(), 1000, 100, 200}); };
  ASSERT_TRUE(once());
  const DeviceTraffic before = device_traffic();
  for (int i = 0; i < 10; ++i) ASSERT_TRUE(once());
  const DeviceTraffic after = device_traffic();
  EXPECT_EQ(after.bytes_up - before.bytes_up, 10u * 1000 * 200 * 4);
  EXPECT_EQ(after.bytes_down - before.bytes_down, 10u * 1000 * 100 * 4);
  EXPECT_EQ(after.allocations, before.allocations);
  EXPECT_EQ(after.bytes_held, before.bytes_held);
}

TEST_F(Offload, ADifferenceIsAnErrorThatSaysWhere) {
  const Floats x = filled(3 * 32, 1), w = filled(8 * 32, 2);
  Floats other = w, y(3 * 8);
  other[2 * 32 + 5] += 0.5F;  // the device's copy is of other weights
  const DeviceMemory on_device = uploaded(other);
  PackedMatrix packed;
  packed.pack(w.data(), 8, 32);
  const Status done = run(Where::kBoth, Product{x.data(), y.data(), 3, {&packed, {on_device.floats(), 8, 32}}});
  ASSERT_FALSE(done);
  EXPECT_EQ(done.error().code, ErrorCode::kInternal);
  EXPECT_THAT(done.error().message, HasSubstr("[kernels] \"check:cuda\": CPU and GPU differ in matmul, result 0, row 0, column 2: "));
}

TEST_F(Offload, NoRoomIsAnErrorThatSaysHowMuchWasAskedFor) {
  const auto piece = DeviceMemory::allocate(std::size_t{1} << 50);
  ASSERT_FALSE(piece.has_value());
  EXPECT_EQ(piece.error().code, ErrorCode::kResourceExhausted);
  EXPECT_THAT(piece.error().message, HasSubstr("the GPU has no room for 1125899906842624 bytes (1073741824 MiB)"));
  EXPECT_THAT(piece.error().message, HasSubstr("lower trainer.micro_batch_tokens"));
  ASSERT_TRUE(DeviceMemory::allocate(1 << 20).has_value()) << "smaller ones go on";
}

TEST_F(Offload, WhatIsKeptIsGivenBackBeforeMemoryIsRefused) {
  std::size_t left = 0, all = 0;
  ASSERT_EQ(device()->library->memory_left(&left, &all), nullptr);
  if (all > (std::size_t{8} << 30)) GTEST_SKIP() << "a real device: too much to fill";
  const std::size_t most = left / 3 * 2;
  { ASSERT_TRUE(DeviceMemory::allocate(most).has_value()); }
  EXPECT_TRUE(DeviceMemory::allocate(most / 8 * 7).has_value()) << "another size, and both do not fit";
}

// The tests of this folder can see that an operand was forgotten: the emulated device refuses the host's addresses.
TEST_F(Offload, AnOperandThatWasNotCopiedIsSeen) {
  if (std::string(device()->library->path) != TROUPE_EMULATED_CUDA) GTEST_SKIP() << "a device would only say so later";
  const Floats x = filled(32, 1);
  const DeviceMemory out = uploaded(Floats(16));
  const Status done = launch(&CudaLibrary::swiglu_forward, SwigluForward{x.data(), x.data() + 16, out.floats(), 1, 16, 32, 16});
  ASSERT_FALSE(done);
  EXPECT_THAT(done.error().message, HasSubstr("an address of host memory"));
  DeviceCall call;
  const std::vector<const float*> list = {x.data()};
  static_cast<void>(call.list(list));
  EXPECT_THAT(call.finish().error().message, HasSubstr("an address of host memory"));
}

}  // namespace
}  // namespace troupe::kernels
