// The gradient of attention over listed rows: error against float64, bits, the reference against slopes.
#include <algorithm>

#include "kernels/cpu/reference.h"
#include "kernels/listed_attention.h"
#include "tests/kernels/support.h"

namespace troupe::kernels {
namespace {

using testing::Doubles;
using testing::Floats;

/// Two segments, the second of which goes on from the first one's beginning; some rows choose entries.
struct Batch {
  std::int64_t heads, kv_heads, key, value, offset, row, most;
  std::vector<ListedGradSegment> segments;
  std::int64_t rows = 0, entry_rows = 0;
  Floats q, kv, entries, dout, sinks;
  std::vector<std::int32_t> chosen;

  /// `latent`: the value is the beginning of the key.
  Batch(std::int64_t first, std::int64_t second, std::int64_t h, std::int64_t kvh, std::int64_t kd, std::int64_t vd,
        bool latent, std::int64_t chosen_max)
      : heads(h), kv_heads(kvh), key(kd), value(vd), offset(latent ? 0 : kvh * kd), row(latent ? kd : kvh * (kd + vd)),
        most(chosen_max), segments{{0, first, 0, 0, 0}, {first, second, 0, std::min<std::int64_t>(first, 9), 4}},
        rows(first + second), entry_rows(chosen_max > 0 ? 9 : 0), q(testing::filled(rows * h * kd, 1)),
        kv(testing::filled(rows * row, 2)), entries(testing::filled(entry_rows * row, 3)),
        dout(testing::filled(rows * h * vd, 4)), sinks(testing::filled(h, 5, 2)) {
    for (std::int64_t r = 0; r < rows; ++r)
      for (std::int64_t i = 0; i < most; ++i) chosen.push_back(i < r % 4 ? static_cast<std::int32_t>(i + r % 2) : -1);
  }
  [[nodiscard]] ListedShape shape(std::int64_t window, bool with_sinks) const {
    return {heads, kv_heads, key, value, offset, 0.3F, window, with_sinks ? sinks.data() : nullptr};
  }
  /// Calls see(is entry, row) for what a query sees.
  template <class See>
  void list(const ListedGradSegment& s, std::int64_t r, std::int64_t window, const See& see) const {
    const std::int64_t end = s.prefix_rows + r + 1;
    for (std::int64_t t = window > 0 ? std::max<std::int64_t>(0, end - window) : 0; t < end; ++t)
      see(false, t < s.prefix_rows ? s.prefix_begin + t : s.begin + t - s.prefix_rows);
    for (std::int64_t i = 0; i < most; ++i) {
      const std::int32_t entry = chosen[static_cast<std::size_t>((s.begin + r) * most + i)];
      if (entry < 0) break;
      see(true, s.first_entry + entry);
    }
  }
};

struct Grads {
  Floats q, kv, entries, sinks;
};
Grads backward(const Batch& b, const ListedShape& shape) {
  Grads g{Floats(b.q.size(), 7), Floats(b.kv.size(), 7), Floats(b.entries.size(), 7), Floats(b.sinks.size(), 7)};
  ListedGrad args;
  args.q = b.q.data(), args.kv = b.kv.data(), args.entries = b.entries.data(), args.dout = b.dout.data();
  args.chosen = b.chosen.data(), args.chosen_max = b.most;
  args.rows = b.rows, args.entry_rows = b.entry_rows, args.row = b.row;
  args.dq = g.q.data(), args.dkv = g.kv.data(), args.dentries = g.entries.data();
  args.dsinks = shape.sinks == nullptr ? nullptr : g.sinks.data();
  listed_attention_backward(shape, args, b.segments.data(), static_cast<std::int64_t>(b.segments.size()));
  return g;
}

struct Right {
  Doubles q, kv, entries, sinks;
};
Doubles part(const Floats& x, std::int64_t begin, std::int64_t n) { return {x.begin() + begin, x.begin() + begin + n}; }

/// One query head's gradients, added.
void add_head(const Batch& b, const ListedShape& shape, const ListedGradSegment& s, std::int64_t r, std::int64_t head, Right& g) {
  const std::int64_t kv_head = head / (b.heads / b.kv_heads), at = s.begin + r;
  const std::int64_t key = kv_head * b.key, value = b.offset + kv_head * b.value;
  Doubles keys, values;
  b.list(s, r, shape.window, [&](bool entry, std::int64_t row) {
    const Floats& from = entry ? b.entries : b.kv;
    const Doubles k = part(from, row * b.row + key, b.key), v = part(from, row * b.row + value, b.value);
    keys.insert(keys.end(), k.begin(), k.end());
    values.insert(values.end(), v.begin(), v.end());
  });
  const std::int64_t q = (at * b.heads + head) * b.key;
  const double sink = shape.sinks == nullptr ? -INFINITY : static_cast<double>(shape.sinks[head]);
  const reference::AttendGrad one =
      reference::attend_backward(part(b.q, q, b.key), keys, values, static_cast<double>(shape.scale), sink,
                                 part(b.dout, (at * b.heads + head) * b.value, b.value));
  std::copy(one.dq.begin(), one.dq.end(), g.q.begin() + q);
  g.sinks[static_cast<std::size_t>(head)] += one.dsink;
  std::int64_t i = 0;
  b.list(s, r, shape.window, [&](bool entry, std::int64_t row) {
    Doubles& to = entry ? g.entries : g.kv;
    for (std::int64_t d = 0; d < b.key; ++d) to[static_cast<std::size_t>(row * b.row + key + d)] += one.dkeys[static_cast<std::size_t>(i * b.key + d)];
    for (std::int64_t d = 0; d < b.value; ++d)
      to[static_cast<std::size_t>(row * b.row + value + d)] += one.dvalues[static_cast<std::size_t>(i * b.value + d)];
    ++i;
  });
}
Right right_gradients(const Batch& b, const ListedShape& shape) {
  Right g{Doubles(b.q.size()), Doubles(b.kv.size()), Doubles(b.entries.size()), Doubles(b.sinks.size())};
  for (const ListedGradSegment& s : b.segments)
    for (std::int64_t r = 0; r < s.rows; ++r)
      for (std::int64_t head = 0; head < b.heads; ++head) add_head(b, shape, s, r, head, g);
  return g;
}

/// Broken vectors of channels, many and few heads, latent rows, entries or none.
std::vector<Batch> batches() {
  std::vector<Batch> all;
  for (const std::int64_t rows : testing::kRowCounts) all.emplace_back(rows, 5, 4, 2, 24, 10, false, 3);
  all.emplace_back(150, 37, 16, 2, 32, 32, false, 0);
  all.emplace_back(70, 21, 20, 1, 40, 24, true, 3);
  all.emplace_back(90, 12, 70, 1, 24, 16, true, 0);
  return all;
}

TEST(ListedAttentionBackward, IsRightWhateverComputesIt) {
  for (const Batch& b : batches())
    for (const std::int64_t window : {0, 1, 7, 100})
      for (const bool sinks : {false, true}) {
        SCOPED_TRACE(::testing::Message() << b.rows << " rows, " << b.heads << "/" << b.kv_heads << " heads, window " << window);
        const ListedShape shape = b.shape(window, sinks);
        const Right right = right_gradients(b, shape);
        Grads first;
        testing::for_variants([&] {
          const Grads g = backward(b, shape);
          EXPECT_LT(testing::errors_of(g.q, right.q).rms, 2e-6);
          EXPECT_LT(testing::errors_of(g.kv, right.kv).relative, 2e-6);
          if (b.most > 0) {
            EXPECT_LT(testing::errors_of(g.entries, right.entries).relative, 2e-6);
          }
          if (sinks) {
            EXPECT_LT(testing::errors_of(g.sinks, right.sinks).relative, 5e-6);
          }
          if (first.q.empty()) first = g;
          EXPECT_EQ(testing::bit_difference(g.q, first.q), "");
          EXPECT_EQ(testing::bit_difference(g.kv, first.kv), "");
          EXPECT_EQ(testing::bit_difference(g.entries, first.entries), "");
          EXPECT_EQ(testing::bit_difference(g.sinks, first.sinks), "");
        });
      }
}

// The reference itself: the slope of <dout, attend>.
TEST(AttendReference, ItsGradientIsTheSlope) {
  const Doubles dout = testing::widened(testing::filled(4, 4));
  Doubles in[3] = {testing::widened(testing::filled(5, 1)), testing::widened(testing::filled(15, 2)), testing::widened(testing::filled(12, 3))};
  double sink = 0.4;
  const reference::AttendGrad g = reference::attend_backward(in[0], in[1], in[2], 0.7, sink, dout);
  const auto slope_at = [&](double& x) {
    const auto loss = [&](double change) {
      x += change;
      const Doubles out = reference::attend(in[0], in[1], in[2], 0.7, sink);
      x -= change;
      double sum = 0;
      for (std::size_t i = 0; i < out.size(); ++i) sum += out[i] * dout[i];
      return sum;
    };
    return (loss(1e-5) - loss(-1e-5)) / 2e-5;
  };
  const Doubles* gradients[3] = {&g.dq, &g.dkeys, &g.dvalues};
  for (std::size_t which = 0; which < 3; ++which)
    for (std::size_t i = 0; i < in[which].size(); ++i) EXPECT_NEAR((*gradients[which])[i], slope_at(in[which][i]), 1e-9) << which << " " << i;
  EXPECT_NEAR(g.dsink, slope_at(sink), 1e-9);
}

}  // namespace
}  // namespace troupe::kernels
