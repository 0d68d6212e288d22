#include "kernels/attention.h"

#include "kernels/cpu/reference.h"
#include "tests/kernels/support.h"

namespace troupe::kernels {
namespace {

using testing::Floats;

/// One sequence, its right result, and ways to compute it.
class Sequence {
 public:
  Sequence(AttentionShape shape, std::int64_t keys, std::uint64_t seed)
      : shape_(shape),
        keys_(keys),
        q_(testing::filled(keys * q_row(), seed, 2)),
        kv_(testing::filled(keys * kv_row(), seed + 1, 2)),
        out_(q_.size()),
        lse_(static_cast<std::size_t>(keys * shape.heads)) {}

  [[nodiscard]] std::int64_t q_row() const { return shape_.heads * shape_.head_dim; }
  [[nodiscard]] std::int64_t kv_row() const { return 2 * shape_.kv_heads * shape_.head_dim; }  // k and v side by side
  [[nodiscard]] const float* k(std::int64_t row) const { return &kv_[static_cast<std::size_t>(row * kv_row())]; }
  [[nodiscard]] const float* v(std::int64_t row) const { return k(row) + shape_.kv_heads * shape_.head_dim; }
  [[nodiscard]] KeySpan rows(std::int64_t begin, std::int64_t end) const {
    return {k(begin), v(begin), end - begin, kv_row(), KvLayout::kRows};
  }

  /// Queries [begin, end) over keys [0, end), which `spans` must hold.
  AttentionSegment segment(std::int64_t begin, std::int64_t end, const std::vector<KeySpan>& spans) {
    AttentionSegment s;
    s.q = &q_[static_cast<std::size_t>(begin * q_row())];
    s.out = &out_[static_cast<std::size_t>(begin * q_row())];
    s.lse = &lse_[static_cast<std::size_t>(begin * shape_.heads)];
    s.rows = end - begin;
    s.spans = spans.data();
    s.span_count = static_cast<std::int64_t>(spans.size());
    return s;
  }

  /// As if the caller had rounded.
  void round_operands() {
    for (Floats* x : {&q_, &kv_})
      for (float& v : *x) v = testing::to_bfloat16(v);
  }

  void clear() {
    std::fill(out_.begin(), out_.end(), -7.0f);
    std::fill(lse_.begin(), lse_.end(), -7.0f);
  }

  /// The whole sequence at once, keys in one span of rows.
  void prefill() {
    clear();
    const std::vector<KeySpan> spans = {rows(0, keys_)};
    const AttentionSegment s = segment(0, keys_, spans);
    attention_forward(shape_, &s, 1);
  }

  /// The right result in float64.
  [[nodiscard]] reference::AttentionOut right() const {
    testing::Doubles keys, values;
    const std::int64_t half = kv_row() / 2;
    for (std::int64_t t = 0; t < keys_; ++t) {
      keys.insert(keys.end(), k(t), k(t) + half);
      values.insert(values.end(), v(t), v(t) + half);
    }
    const double scale =
        shape_.scale != 0 ? static_cast<double>(shape_.scale) : 1 / std::sqrt(static_cast<double>(shape_.head_dim));
    return reference::attention({keys_, keys_, shape_.heads, shape_.kv_heads, shape_.head_dim, scale},
                                testing::widened(q_), keys, values);
  }

  AttentionShape shape_;
  std::int64_t keys_;
  Floats q_, kv_, out_, lse_;
};

/// A cache of pages, filled with NaN where no token lies.
class Pages {
 public:
  Pages(const AttentionShape& shape, std::int64_t capacity, std::int64_t tokens) : shape_(shape), capacity_(capacity) {
    const auto pages = static_cast<std::size_t>((tokens + capacity - 1) / capacity);
    k_.assign(pages, Floats(static_cast<std::size_t>(kv_page_floats(shape, capacity)), std::nanf("")));
    v_ = k_;
  }
  void store(const Sequence& s, std::int64_t begin, std::int64_t end) {
    for (std::int64_t t = begin; t < end;) {
      const std::int64_t slot = t % capacity_;
      const std::int64_t n = std::min(end - t, capacity_ - slot);
      const auto page = static_cast<std::size_t>(t / capacity_);
      store_in_page(shape_, s.k(t), s.v(t), s.kv_row(), n, {k_[page].data(), v_[page].data(), capacity_}, slot);
      t += n;
    }
  }
  [[nodiscard]] std::vector<KeySpan> spans(std::int64_t tokens) const {
    std::vector<KeySpan> spans;
    for (std::size_t page = 0; tokens > 0; ++page, tokens -= capacity_) {
      spans.push_back({k_[page].data(), v_[page].data(), std::min(tokens, capacity_), capacity_, KvLayout::kPages});
    }
    return spans;
  }

  AttentionShape shape_;
  std::int64_t capacity_;
  std::vector<Floats> k_, v_;
};

/// Every shape in both precisions.
std::vector<AttentionShape> both(std::vector<AttentionShape> shapes) {
  for (std::size_t i = 0, n = shapes.size(); i < n; ++i) {
    shapes.push_back(shapes[i]);
    shapes.back().precision = Precision::kBfloat16;
  }
  return shapes;
}
const std::vector<AttentionShape> kShapes =
    both({{4, 2, 32, 0}, {2, 2, 16, 0}, {9, 3, 64, 0.3f}, {8, 1, 48, 0}, {3, 1, 128, 0}, {14, 2, 80, 0}});

std::string name(const AttentionShape& s) {
  return std::to_string(s.heads) + "/" + std::to_string(s.kv_heads) + " x " + std::to_string(s.head_dim) +
         (s.precision == Precision::kBfloat16 ? " bfloat16" : "");
}

TEST(Attention, ErrorAgainstFloat64) {
  for (const AttentionShape& shape : kShapes) {
    for (std::int64_t keys : {1, 2, 15, 16, 17, 33, 70, 131}) {
      SCOPED_TRACE(name(shape) + ", keys " + std::to_string(keys));
      Sequence s(shape, keys, 1);
      const bool pairs = shape.precision == Precision::kBfloat16;
      if (pairs) s.round_operands();  // then probabilities are all that is rounded
      const auto right = s.right();
      testing::for_variants([&] {
        s.prefill();
        EXPECT_LT(testing::errors_of(s.out_, right.out).largest,
                  pairs ? 8e-3 : 6e-6);  // scores up to 15: their rounding is a relative error of p
        EXPECT_LT(testing::errors_of(s.out_, right.out).rms, pairs ? 1.5e-3 : 4e-7);
        EXPECT_LT(testing::errors_of(s.lse_, right.lse).largest, 4e-6);
      });
    }
  }
}

TEST(Attention, OperandsAreRoundedByTheKernel) {
  for (const AttentionShape& shape : kShapes) {
    if (shape.precision == Precision::kFloat32) continue;
    Sequence s(shape, 70, 5), before(shape, 70, 5);
    before.round_operands();
    s.prefill();
    before.prefill();
    EXPECT_EQ(testing::bit_difference(s.out_, before.out_), "") << name(shape);
  }
}

TEST(Attention, DecodingRowByRowFromPagesHasTheBitsOfPrefill) {
  for (const AttentionShape& shape : kShapes) {
    for (std::int64_t capacity : {16, 48, 64}) {
      SCOPED_TRACE(name(shape) + ", page of " + std::to_string(capacity));
      Sequence s(shape, 101, 2);
      s.prefill();
      const Floats out = s.out_, lse = s.lse_;
      testing::for_variants([&] {
        s.clear();
        Pages pages(shape, capacity, s.keys_);
        for (std::int64_t t = 0; t < s.keys_; ++t) {
          pages.store(s, t, t + 1);
          const auto spans = pages.spans(t + 1);
          const AttentionSegment one = s.segment(t, t + 1, spans);
          attention_forward(shape, &one, 1);
        }
        EXPECT_EQ(testing::bit_difference(s.out_, out), "");
        EXPECT_EQ(testing::bit_difference(s.lse_, lse), "");
      });
    }
  }
}

TEST(Attention, ChunkedPrefillHasTheSameBits) {
  for (const AttentionShape& shape : both({kShapes[0], kShapes[2]})) {
    Sequence s(shape, 140, 3);
    s.prefill();
    const Floats out = s.out_;
    for (std::int64_t chunk : {1, 2, 3, 5, 6, 7, 13, 16, 17, 64, 100}) {
      SCOPED_TRACE(name(shape) + ", chunks of " + std::to_string(chunk));
      testing::for_variants([&] {
        s.clear();
        Pages pages(shape, 16, s.keys_);
        for (std::int64_t t = 0; t < s.keys_; t += chunk) {
          const std::int64_t end = std::min(t + chunk, s.keys_);
          pages.store(s, t, end);
          const auto spans = pages.spans(end);
          const AttentionSegment part = s.segment(t, end, spans);
          attention_forward(shape, &part, 1);
        }
        EXPECT_EQ(testing::bit_difference(s.out_, out), "");
      });
    }
  }
}

TEST(Attention, CuttingTheKeysIntoSpansAnywhereHasTheSameBits) {
  for (const AttentionShape& shape : both({{6, 2, 32, 0}})) {
    SCOPED_TRACE(name(shape));
    Sequence s(shape, 90, 4);
    s.prefill();
    const Floats out = s.out_;
    testing::for_variants([&] {
      for (std::int64_t cut = 0; cut <= 90; ++cut) {
        s.clear();
        const std::vector<KeySpan> spans = {s.rows(0, cut), s.rows(cut, 90)};
        const AttentionSegment whole = s.segment(0, 90, spans);
        attention_forward(shape, &whole, 1);
        EXPECT_EQ(testing::bit_difference(s.out_, out), "") << "cut at " << cut;
      }
      s.clear();
      std::vector<KeySpan> crumbs;
      for (std::int64_t t = 0; t < 90; ++t) crumbs.push_back(s.rows(t, t + 1));
      const AttentionSegment whole = s.segment(0, 90, crumbs);
      attention_forward(shape, &whole, 1);
      EXPECT_EQ(testing::bit_difference(s.out_, out), "") << "one span per key";
    });
  }
}

TEST(Attention, SegmentsOfABatchDoNotSeeEachOther) {
  for (const AttentionShape& shape : both({{4, 2, 32, 0}})) {
    SCOPED_TRACE(name(shape));
    std::vector<Sequence> sequences;
    std::vector<Floats> alone;
    for (std::int64_t keys : {40, 1, 130, 17, 64, 3}) {
      sequences.emplace_back(shape, keys, 10 + static_cast<std::uint64_t>(keys));
      sequences.back().prefill();
      alone.push_back(sequences.back().out_);
    }
    testing::for_variants([&] {
      std::vector<std::vector<KeySpan>> spans;
      for (Sequence& s : sequences) {
        s.clear();
        spans.push_back({s.rows(0, s.keys_)});
      }
      std::vector<AttentionSegment> batch;
      for (std::size_t i = 0; i < sequences.size(); ++i)
        batch.push_back(sequences[i].segment(0, sequences[i].keys_, spans[i]));
      attention_forward(shape, batch.data(), static_cast<std::int64_t>(batch.size()));
      for (std::size_t i = 0; i < sequences.size(); ++i)
        EXPECT_EQ(testing::bit_difference(sequences[i].out_, alone[i]), "") << i;
    });
  }
}

TEST(Attention, ASharedPromptIsTheSameAsACopyPerSample) {
  for (const AttentionShape& shape : both({{4, 2, 32, 0}})) {
    SCOPED_TRACE(name(shape));
    const std::int64_t prompt = 37, own = 21;
    Sequence whole(shape, prompt + own, 20);
    whole.prefill();
    testing::for_variants([&] {
      Sequence s(shape, prompt + own, 20);
      s.clear();
      const std::vector<KeySpan> first = {s.rows(0, prompt)};
      const std::vector<KeySpan> behind = {s.rows(0, prompt), s.rows(prompt, prompt + own)};
      std::vector<AttentionSegment> batch = {s.segment(0, prompt, first)};
      for (int sample = 0; sample < 3; ++sample) batch.push_back(s.segment(prompt, prompt + own, behind));
      Floats copies[3];
      for (int sample = 0; sample < 3; ++sample) {
        copies[sample].resize(static_cast<std::size_t>(own * s.q_row()));
        batch[static_cast<std::size_t>(sample) + 1].out = copies[sample].data();
      }
      attention_forward(shape, batch.data(), 4);
      for (const Floats& copy : copies) {
        EXPECT_EQ(
            testing::bit_difference(copy.data(), &whole.out_[static_cast<std::size_t>(prompt * s.q_row())], copy.size()),
            "");
      }
    });
  }
}

/// Pages that are not full, and rows behind pages: a block of 32 keys lies in several spans.
TEST(Attention, PagesMayEndAnywhereAndRowsMayFollow) {
  for (const AttentionShape& shape : both({{4, 2, 32, 0}, {3, 1, 80, 0}})) {
    SCOPED_TRACE(name(shape));
    Sequence s(shape, 75, 6);
    s.prefill();
    const Floats out = s.out_;
    testing::for_variants([&] {
      for (const std::int64_t held : {1, 15, 16, 17, 31}) {
        s.clear();
        Pages first(shape, 32, 32), second(shape, 16, 16);
        first.store(s, 0, held);
        store_in_page(shape, s.k(held), s.v(held), s.kv_row(), 5, {second.k_[0].data(), second.v_[0].data(), 16}, 0);
        std::vector<KeySpan> spans = first.spans(held);
        spans.push_back(second.spans(5).front());
        spans.push_back(s.rows(held + 5, 75));
        const AttentionSegment whole = s.segment(0, 75, spans);
        attention_forward(shape, &whole, 1);
        EXPECT_EQ(testing::bit_difference(s.out_, out), "") << held;
      }
    });
  }
}

TEST(Attention, ManyPagesAndOneVeryLargeScore) {
  const AttentionShape shape{2, 1, 16, 0};
  Sequence s(shape, 1500, 30);
  for (std::size_t d = 0; d < 16; ++d)
    s.kv_[static_cast<std::size_t>(700 * s.kv_row()) + d] = 60;  // outweighs all others for some rows
  s.prefill();
  const Floats out = s.out_;
  const auto right = s.right();
  EXPECT_LT(testing::errors_of(out, right.out).largest, 3e-5);
  Pages pages(shape, 16, s.keys_);
  pages.store(s, 0, s.keys_);
  testing::for_variants([&] {
    s.clear();
    const auto spans = pages.spans(s.keys_);
    const AttentionSegment last = s.segment(1490, 1500, spans);
    attention_forward(shape, &last, 1);
    const auto from = static_cast<std::size_t>(1490 * s.q_row());
    EXPECT_EQ(testing::bit_difference(&s.out_[from], &out[from], out.size() - from), "");
  });
}

TEST(KvPage, LoadsWhatWasStored) {
  for (const AttentionShape& shape : both({{4, 2, 32, 0}})) {
    Sequence s(shape, 40, 40);
    Pages pages(shape, 48, 48);
    const KvPage page{pages.k_[0].data(), pages.v_[0].data(), 48};
    store_in_page(shape, s.k(0), s.v(0), s.kv_row(), 40, page, 5);
    Floats k(40 * 64), v(40 * 64);
    load_from_page(shape, page, 5, 40, k.data(), v.data(), 64);
    if (shape.precision == Precision::kBfloat16) s.round_operands();
    for (std::int64_t t = 0; t < 40; ++t) {
      EXPECT_EQ(testing::bit_difference(&k[static_cast<std::size_t>(t * 64)], s.k(t), 64), "");
      EXPECT_EQ(testing::bit_difference(&v[static_cast<std::size_t>(t * 64)], s.v(t), 64), "");
    }
  }
}

TEST(KvPage, OfBfloat16IsHalfAsLargeAndKeepsItsNeighbours) {
  const AttentionShape shape{4, 2, 32, 0, Precision::kBfloat16};
  EXPECT_EQ(2 * kv_page_floats(shape, 48), kv_page_floats({4, 2, 32, 0}, 48));
  Sequence s(shape, 16, 41);
  Pages whole(shape, 16, 16), odd_first(shape, 16, 16);
  whole.store(s, 0, 16);
  for (const std::int64_t parity : {1, 0})
    for (std::int64_t t = parity; t < 16; t += 2) odd_first.store(s, t, t + 1);
  EXPECT_EQ(testing::bit_difference(odd_first.k_[0], whole.k_[0]), "");
  EXPECT_EQ(testing::bit_difference(odd_first.v_[0], whole.v_[0]), "");
}

TEST(KvPage, ManyStoresAtOnceAreThoseOneByOne) {
  const AttentionShape shape{4, 2, 32, 0};
  Sequence s(shape, 40, 41);
  Pages one_by_one(shape, 16, 48);
  one_by_one.store(s, 0, 40);
  testing::for_variants([&] {
    Pages pages(shape, 16, 48);
    std::vector<PageStore> stores;
    for (std::int64_t t = 0; t < 40; ++t) {
      const auto page = static_cast<std::size_t>(t / 16);
      stores.push_back({s.k(t), s.v(t), s.kv_row(), 1, {pages.k_[page].data(), pages.v_[page].data(), 16}, t % 16});
    }
    store_in_pages(shape, stores.data(), static_cast<std::int64_t>(stores.size()));
    for (std::size_t page = 0; page < 3; ++page) {
      EXPECT_EQ(testing::bit_difference(pages.k_[page], one_by_one.k_[page]), "") << page;
      EXPECT_EQ(testing::bit_difference(pages.v_[page], one_by_one.v_[page]), "") << page;
    }
  });
}

TEST(AttentionDeath, RefusesShapesItCannotCompute) {
  const AttentionShape shape{4, 2, 32, 0};
  Sequence s(shape, 4, 50);
  const std::vector<KeySpan> spans = {s.rows(0, 2)};
  const AttentionSegment four = s.segment(0, 4, spans);
  EXPECT_DEATH(attention_forward(shape, &four, 1), "fewer keys than queries");
  EXPECT_DEATH(attention_forward({4, 3, 32, 0}, &four, 1), "divide");
  EXPECT_DEATH(attention_forward({4, 2, 24, 0}, &four, 1), "multiple of 16");
}

}  // namespace
}  // namespace troupe::kernels
