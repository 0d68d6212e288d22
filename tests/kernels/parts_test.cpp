// Kernels of parts that only some families have: error against float64, bits, ties.
#include <algorithm>

#include "kernels/cpu/reference.h"
#include "kernels/listed_attention.h"
#include "kernels/pointwise.h"
#include "kernels/router.h"
#include "kernels/streams.h"
#include "tests/kernels/support.h"

namespace troupe::kernels {
namespace {

using testing::Doubles;
using testing::Floats;

TEST(PointwiseKernel, IsRightToAFewUlpOnItsWholeRange) {
  Floats x = testing::filled(3001, 1, 20);
  for (const float edge : {0.0F, -0.0F, 1e-8F, -1e-8F, 87.0F, -87.0F, 100.0F, -100.0F}) x.push_back(edge);
  struct Case {
    Pointwise function;
    double (*right)(double);
  };
  const Case cases[] = {{Pointwise::kSigmoid, [](double v) { return 1 / (1 + std::exp(-v)); }},
                        {Pointwise::kSilu, [](double v) { return v / (1 + std::exp(-v)); }},
                        {Pointwise::kSoftplus, [](double v) { return v > 30 ? v : std::log1p(std::exp(v)); }},
                        {Pointwise::kTanh, [](double v) { return std::tanh(v); }}};
  for (const Case& one : cases) {
    Floats first;
    testing::for_variants([&] {
      Floats y(x.size());
      pointwise(one.function, x.data(), y.data(), static_cast<std::int64_t>(x.size()));
      for (std::size_t i = 0; i < x.size(); ++i) {
        const double right = one.right(static_cast<double>(x[i]));
        const double bound = one.function == Pointwise::kTanh ? 2e-7 : 1e-6 * std::abs(right) + 1e-37;
        ASSERT_NEAR(y[i], right, bound) << "x " << x[i] << " function " << static_cast<int>(one.function);
      }
      if (first.empty()) first = y;
      EXPECT_EQ(testing::bit_difference(first, y), "");
      Floats alone(1);
      pointwise(one.function, &x[1000], alone.data(), 1);  // not on its place either
      EXPECT_EQ(testing::bit_difference(alone.data(), &y[1000], 1), "");
    });
  }
}

/// One row of logits, and room for what it is routed to.
struct OneRow {
  OneRow(Floats l, std::int64_t chosen) : logits(std::move(l)), choices(static_cast<std::size_t>(chosen)), weights(choices.size()) {
    rule.logits = logits.data();
    rule.choices = choices.data();
    rule.weights = weights.data();
    rule.rows = 1;
    rule.experts = static_cast<std::int64_t>(logits.size());
    rule.chosen = chosen;
  }
  OneRow(const OneRow&) = delete;
  Floats logits;
  std::vector<std::int32_t> choices;
  Floats weights;
  Router rule;
};

TEST(RouterKernel, TiesGoToTheLowerIndexAndGroupsAreKept) {
  OneRow row({1, 3, 3, 2, 3, 0, 3, 3}, 3);
  auto& [logits, choices, weights, rule] = row;
  route(rule);
  EXPECT_EQ(choices, (std::vector<std::int32_t>{1, 2, 4}));
  EXPECT_EQ(weights, Floats(3, 1.0F / 3));
  rule.groups = 4;  // sums of the two best: {0, 1}, {2, 3}, {4, 5}, {6, 7}
  rule.groups_kept = 2;
  rule.score = RouterScore::kSigmoid;
  route(rule);
  EXPECT_EQ(choices, (std::vector<std::int32_t>{2, 6, 7}));
  const Floats correction = {0, 0, 0, 0, 9, 9, 0, 0};
  rule.correction = correction.data();
  rule.normalise = false;
  rule.scale = 2;
  route(rule);
  EXPECT_EQ(choices, (std::vector<std::int32_t>{4, 5, 6}));
  EXPECT_NEAR(weights[0], 2 / (1 + std::exp(-3.0)), 1e-6);  // the correction chooses and does not weigh
  EXPECT_NEAR(weights[1], 1.0, 1e-6);
  const std::vector<std::int32_t> given = {7, 0, 3};
  rule.fixed = given.data();
  route(rule);
  EXPECT_EQ(choices, given);
}

TEST(RouterKernel, ANanIsChosenLast) {
  OneRow row({NAN, 1, 2}, 2);
  auto& [logits, choices, weights, rule] = row;
  rule.score = RouterScore::kSoftmaxOfChosen;
  route(rule);
  EXPECT_EQ(choices, (std::vector<std::int32_t>{2, 1}));
}

/// The sizes of a sequence of listed rows: `heads` query heads on 2 key heads, and 5 entries.
struct ListedSizes {
  std::int64_t rows, heads, key, value;
};
const std::vector<ListedSizes> kListedSizes = {{40, 4, 24, 10}, {150, 10, 40, 58}, {70, 14, 16, 32}};

class Listed {
 public:
  static constexpr std::int64_t kEntries = 5, kMost = 3;
  explicit Listed(const ListedSizes& sizes)
      : n_(sizes),
        q_(testing::filled(n_.rows * n_.heads * n_.key, 2)),
        kv_(testing::filled(n_.rows * row(), 3)),
        entries_(testing::filled(kEntries * row(), 4)),
        sinks_(testing::filled(n_.heads, 5, 2)) {
    for (std::int64_t row = 0; row < n_.rows; ++row)
      for (std::int64_t i = 0; i < kMost; ++i)
        chosen_.push_back(i < row % 4 ? static_cast<std::int32_t>(i + row % 2) : -1);
  }
  [[nodiscard]] std::int64_t row() const { return 2 * (n_.key + n_.value); }
  [[nodiscard]] std::int64_t out() const { return n_.heads * n_.value; }
  [[nodiscard]] ListedShape shape(std::int64_t window, bool sinks) const {
    return {n_.heads, 2, n_.key, n_.value, 2 * n_.key, 0.3F, window, sinks ? sinks_.data() : nullptr};
  }
  /// Queries [begin, end), keys cut into spans of `span` rows.
  [[nodiscard]] Floats run(const ListedShape& shape, std::int64_t begin, std::int64_t end, std::int64_t span) const {
    Floats result(static_cast<std::size_t>((end - begin) * out()), -7);
    std::vector<RowSpan> spans;
    for (std::int64_t r = 0; r < end; r += span) spans.push_back({&kv_[static_cast<std::size_t>(r * row())], row(), std::min(span, end - r)});
    const RowSpan entries{entries_.data(), row(), kEntries};
    const std::int64_t query = n_.heads * n_.key;
    const ListedSegment segment{&q_[static_cast<std::size_t>(begin * query)], result.data(), end - begin, query, out(), begin,
                                spans.data(), static_cast<std::int64_t>(spans.size()), &entries, 1,
                                &chosen_[static_cast<std::size_t>(begin * kMost)], kMost};
    listed_attention(shape, &segment, 1);
    return result;
  }
  [[nodiscard]] Doubles right(const ListedShape& shape) const {
    Doubles all;
    const std::int64_t group = n_.heads / 2;
    for (std::int64_t r = 0; r < n_.rows; ++r)
      for (std::int64_t head = 0; head < n_.heads; ++head) {
        Doubles keys, values;
        const auto see = [&](const Floats& rows, std::int64_t index) {
          const float* x = &rows[static_cast<std::size_t>(index * row())];
          const float* v = x + 2 * n_.key + head / group * n_.value;
          keys.insert(keys.end(), x + head / group * n_.key, x + (head / group + 1) * n_.key);
          values.insert(values.end(), v, v + n_.value);
        };
        for (std::int64_t t = shape.window > 0 ? std::max<std::int64_t>(0, r + 1 - shape.window) : 0; t <= r; ++t) see(kv_, t);
        for (std::int64_t i = 0; i < r % 4; ++i) see(entries_, i + r % 2);
        const float* q = &q_[static_cast<std::size_t>((r * n_.heads + head) * n_.key)];
        const Doubles one = reference::attend(Doubles(q, q + n_.key), keys, values, static_cast<double>(shape.scale),
                                              shape.sinks != nullptr ? static_cast<double>(shape.sinks[head]) : -INFINITY);
        all.insert(all.end(), one.begin(), one.end());
      }
    return all;
  }
  ListedSizes n_;
  Floats q_, kv_, entries_, sinks_;
  std::vector<std::int32_t> chosen_;
};

TEST(ListedAttention, IsRightWithWindowsSinksAndEntries) {
  for (const ListedSizes& sizes : kListedSizes) {
    const Listed listed(sizes);
    for (const std::int64_t window : {0, 1, 7, 100})
      for (const bool sinks : {false, true}) {
        const ListedShape shape = listed.shape(window, sinks);
        const Doubles right = listed.right(shape);
        testing::for_variants([&] {
          EXPECT_LT(testing::errors_of(listed.run(shape, 0, sizes.rows, sizes.rows), right).largest, 3e-6);
        });
      }
  }
}

TEST(ListedAttention, BitsDoNotDependOnSpansChunksAndThreads) {
  for (const ListedSizes& sizes : kListedSizes)
    for (const std::int64_t window : {0, 7}) {
      const Listed listed(sizes);
      const ListedShape shape = listed.shape(window, true);
      const Floats whole = listed.run(shape, 0, sizes.rows, sizes.rows);
      testing::for_variants([&] {
        for (const std::int64_t span : {1, 3, 16, 61})
          for (const std::int64_t begin : {0, 5, 39}) {
            const Floats part = listed.run(shape, begin, sizes.rows, span);
            EXPECT_EQ(testing::bit_difference(part.data(), &whole[static_cast<std::size_t>(begin * listed.out())], part.size()), "");
          }
      });
    }
}

TEST(ChooseEntries, TakesTheBestVisibleOnesInOrder) {
  const Floats q = {1, 1, 1, 1, 1, 1};  // six rows, one head of width 1
  const Floats weights(6, 1.0F);
  const Floats keys = {2, 5, 5, 1};
  const RowSpan span{keys.data(), 1, 4};
  std::vector<std::int32_t> chosen(12);
  EntryChoice args;
  args.q = q.data();
  args.weights = weights.data();
  args.rows = 6;
  args.heads = args.dim = 1;
  args.keys = &span;
  args.key_spans = 1;
  args.before = 2;
  args.ratio = 2;
  args.chosen_max = 2;
  args.chosen = chosen.data();
  choose_entries(args);  // visible: 1 2 2 3 3 4
  EXPECT_EQ(chosen, (std::vector<std::int32_t>{0, -1, 0, 1, 0, 1, 1, 2, 1, 2, 1, 2}));
}

TEST(HyperMix, IsRightAndDoublyStochastic) {
  constexpr std::int64_t kRows = 11;
  for (const std::int64_t n : {2, 4}) {
    const std::int64_t width = (2 + n) * n;
    const Floats mix = testing::filled(kRows * width, 10, 3);
    const Floats base = testing::filled(width, 11);
    const Floats scale = {0.7F, 1.3F, 0.9F};
    Floats out(mix.size());
    hyper_mix({mix.data(), base.data(), scale.data(), out.data(), kRows, n, 20, 1e-6F});
    for (std::int64_t row = 0; row < kRows; ++row) {
      const auto first = mix.begin() + row * width;
      const Doubles right = reference::hyper_mix(Doubles(first, first + width), testing::widened(base), testing::widened(scale), n, 20, 1e-6);
      for (std::int64_t i = 0; i < width; ++i)
        ASSERT_NEAR(out[static_cast<std::size_t>(row * width + i)], right[static_cast<std::size_t>(i)], 2e-6);
      for (std::int64_t j = 0; j < n; ++j) {
        double column = 0;
        for (std::int64_t i = 0; i < n; ++i) column += static_cast<double>(out[static_cast<std::size_t>(row * width + 2 * n + i * n + j)]);
        EXPECT_NEAR(column, 1, 1e-4);
      }
    }
  }
}

TEST(PoolWindow, WeighsPerChannelAndLeavesMissingTokensOut) {
  const Floats position = {0, 0, 0, 0, 0, 0, 0, 0};                 // [2, 2 * 2]
  const Floats before = {1, 2, 9, 9, 0, 0, 9, 9};                   // values of both halves, then logits
  const Floats now = {7, 7, 3, 4, 7, 7, 0, static_cast<float>(std::log(2.0))};
  Floats out(2);
  const float* all[4] = {before.data(), before.data(), now.data(), now.data()};
  pool_window({all, position.data(), out.data(), 2, 2, true});
  EXPECT_NEAR(out[0], 2.0, 1e-6);           // (1 + 1 + 3 + 3) / 4
  EXPECT_NEAR(out[1], 20.0 / 6, 1e-6);      // (2 + 2 + 2 * 4 + 2 * 4) / (1 + 1 + 2 + 2)
  const float* first[4] = {nullptr, nullptr, now.data(), now.data()};
  pool_window({first, position.data(), out.data(), 2, 2, true});
  EXPECT_NEAR(out[0], 3, 1e-6);
  EXPECT_NEAR(out[1], 4, 1e-6);
}

TEST(GatedUnit, CutsGateAndUp) {
  const Floats gate_up = {9, -9, 1, 8, -8, 0.5F};
  Floats y(3);
  gated_unit({gate_up.data(), y.data(), 1, 3, 7, 1.702F, 1});
  const auto right = [](double gate, double up) { return (up + 1) * gate / (1 + std::exp(-1.702 * gate)); };
  EXPECT_NEAR(y[0], right(7, 7), 1e-5);
  EXPECT_NEAR(y[1], right(-9, -7), 1e-9);
  EXPECT_NEAR(y[2], right(1, 0.5), 1e-6);
}

}  // namespace
}  // namespace troupe::kernels
