// Attention on CUDA: the bits of the CPU's, from rows and from pages, decoding and prefilling, forward and backward.
#include "kernels/attention.h"

#include "tests/kernels/cuda/target.h"

namespace troupe::kernels {
namespace {

using testing::Floats;
using testing::On;
using testing::bit_difference;

class CudaAttentionKernels : public testing::CudaKernels {};
TROUPE_ON_ALL_WAYS(CudaAttentionKernels);

const std::vector<AttentionShape> kShapes = {{4, 2, 32, 0}, {9, 3, 64, 0.3F}, {8, 1, 48, 0}, {2, 1, 128, 0}, {1, 1, 256, 0}};

std::string name(const AttentionShape& s) {
  return std::to_string(s.heads) + "/" + std::to_string(s.kv_heads) + " x " + std::to_string(s.head_dim);
}

/// One sequence as rows [k | v], and as the CPU sees it.
struct Sequence {
  Sequence(const AttentionShape& s, std::int64_t n, std::uint64_t seed)
      : shape(s), keys(n), q(testing::filled(n * q_row(), seed, 2)), kv(testing::filled(n * kv_row(), seed + 1, 2)),
        out(q.size()), lse(static_cast<std::size_t>(n * s.heads)), dev_q(q), dev_kv(kv) {
    const KeySpan span = rows_of(kv.data(), 0, n);
    const AttentionSegment segment{q.data(), out.data(), lse.data(), n, 0, 0, &span, 1};
    attention_forward(shape, &segment, 1);
  }
  [[nodiscard]] std::int64_t q_row() const { return shape.heads * shape.head_dim; }
  [[nodiscard]] std::int64_t kv_row() const { return 2 * shape.kv_heads * shape.head_dim; }
  [[nodiscard]] KeySpan rows_of(const float* base, std::int64_t begin, std::int64_t end) const {
    return {base + begin * kv_row(), base + begin * kv_row() + kv_row() / 2, end - begin, kv_row(), KvLayout::kRows};
  }
  AttentionShape shape;
  std::int64_t keys;
  Floats q, kv, out, lse;
  On<float> dev_q, dev_kv;
};

/// The sequence's keys in device pages of 16 or 32 tokens, written by the kernel; NaN where there is no token.
class Pages {
 public:
  Pages(const Sequence& s, std::int64_t capacity)
      : s_(s), capacity_(capacity), floats_(kv_page_floats(s.shape, capacity)), count_((s.keys + capacity - 1) / capacity),
        k_(Floats(static_cast<std::size_t>(floats_ * count_), std::nanf(""))), v_(Floats(static_cast<std::size_t>(floats_ * count_), std::nanf(""))) {}
  [[nodiscard]] std::vector<PageStore> stores() const {
    std::vector<PageStore> stores;
    for (std::int64_t p = 0; p < count_; ++p) {
      const KeySpan rows = s_.rows_of(s_.dev_kv.get(), p * capacity_, std::min(s_.keys, (p + 1) * capacity_));
      const std::int64_t first = rows.count > 3 ? 3 : 0;  // in two stores, the second from the middle
      stores.push_back({rows.k, rows.v, s_.kv_row(), first, {k_.get() + p * floats_, v_.get() + p * floats_, capacity_}, 0});
      stores.push_back({rows.k + first * s_.kv_row(), rows.v + first * s_.kv_row(), s_.kv_row(), rows.count - first,
                        {k_.get() + p * floats_, v_.get() + p * floats_, capacity_}, first});
    }
    return stores;
  }
  [[nodiscard]] std::vector<KeySpan> spans(std::int64_t tokens) const {
    std::vector<KeySpan> spans;
    for (std::int64_t p = 0; tokens > 0; ++p, tokens -= capacity_)
      spans.push_back({k_.get() + p * floats_, v_.get() + p * floats_, std::min(tokens, capacity_), capacity_, KvLayout::kPages});
    return spans;
  }
  [[nodiscard]] Floats keys() const { return k_.read(); }
  [[nodiscard]] Floats values() const { return v_.read(); }
  [[nodiscard]] std::int64_t capacity() const { return capacity_; }

 private:
  const Sequence& s_;
  std::int64_t capacity_, floats_, count_;
  On<float> k_, v_;
};

TEST_P(CudaAttentionKernels, PrefillOverRowsInOneOrSeveralSpans) {
  for (const AttentionShape& shape : kShapes)
    for (const std::int64_t keys : {1, 17, 70, 131}) {
      SCOPED_TRACE(name(shape) + ", keys " + std::to_string(keys));
      const Sequence s(shape, keys, 1);
      for (const std::int64_t cut : {keys, std::int64_t{5}}) {
        std::vector<KeySpan> spans;
        for (std::int64_t t = 0; t < keys; t += cut) spans.push_back(s.rows_of(s.dev_kv.get(), t, std::min(t + cut, keys)));
        const On<float> out(Floats(s.out.size())), lse(Floats(s.lse.size()));
        const On<KeySpan> dev_spans(spans);
        const On<AttentionSegment> segment(
            {{s.dev_q.get(), out.get(), lse.get(), keys, 0, 0, dev_spans.get(), static_cast<std::int64_t>(spans.size())}});
        run(&CudaLibrary::attention_forward, CudaAttention{shape, segment.get(), 1, keys, nullptr, 0});
        EXPECT_EQ(bit_difference(out.read(), s.out), "");
        EXPECT_EQ(bit_difference(lse.read(), s.lse), "");
      }
    }
}

TEST_P(CudaAttentionKernels, PagesHoldWhatTheCpuWouldStore) {
  const Sequence s({6, 2, 48, 0}, 40, 3);
  const Pages pages(s, 32);
  const auto stores = pages.stores();
  const On<PageStore> dev(stores);
  run(&CudaLibrary::store_in_pages, CudaPageStores{s.shape, dev.get(), static_cast<std::int64_t>(stores.size()), 32});
  Floats k = Floats(static_cast<std::size_t>(2 * kv_page_floats(s.shape, 32)), std::nanf("")), v = k;
  for (std::int64_t p = 0; p < 2; ++p) {
    const KeySpan rows = s.rows_of(s.kv.data(), p * 32, std::min<std::int64_t>(40, p * 32 + 32));
    const std::int64_t at = p * kv_page_floats(s.shape, 32);
    store_in_page(s.shape, rows.k, rows.v, s.kv_row(), rows.count, {k.data() + at, v.data() + at, 32}, 0);
  }
  EXPECT_EQ(bit_difference(pages.keys(), k), "");
  EXPECT_EQ(bit_difference(pages.values(), v), "");
}

/// Rows [begin, end) of several sequences at once, over pages; checked against what the CPU's prefill gave.
TEST_P(CudaAttentionKernels, DecodingAndChunksOverPagesGiveThePrefillsBits) {
  for (const AttentionShape& shape : kShapes) {
    SCOPED_TRACE(name(shape));
    const Sequence first(shape, 90, 5), second(shape, 33, 7);
    const Pages pages(first, 16), others(second, 32);
    for (const Pages* p : {&pages, &others}) {
      const auto stores = p->stores();
      const On<PageStore> dev(stores);
      run(&CudaLibrary::store_in_pages, CudaPageStores{shape, dev.get(), static_cast<std::int64_t>(stores.size()), p->capacity()});
    }
    struct Ask {
      std::int64_t begin, end;
      bool spread;
    };
    for (const auto& [begin, end, spread] : {Ask{89, 90, false}, Ask{10, 11, false}, Ask{64, 83, false}, Ask{20, 90, false}, Ask{89, 90, true}, Ask{88, 90, true}, Ask{3, 4, true}}) {
      SCOPED_TRACE("rows " + std::to_string(begin) + " to " + std::to_string(end) + (spread ? ", spread" : ""));
      const On<KeySpan> spans(pages.spans(end)), other_spans(others.spans(33));
      const On<float> out(Floats(first.out.size(), -7)), other_out(Floats(second.out.size(), -7)), lse(Floats(first.lse.size()));
      const On<AttentionSegment> segments(
          {{first.dev_q.get() + begin * first.q_row(), out.get() + begin * first.q_row(), lse.get() + begin * shape.heads, end - begin, 0, 0, spans.get(), (end + 15) / 16},
           {second.dev_q.get() + 32 * second.q_row(), other_out.get() + 32 * second.q_row(), nullptr, 1, 0, 0, other_spans.get(), 2},
           {}});
      CudaAttention a{shape, segments.get(), 3, end - begin, nullptr, 0};
      a.max_keys = std::max<std::int64_t>(end, 33);
      const On<double> workspace(std::vector<double>(static_cast<std::size_t>(cuda_attention_bytes(shape, 3, a.max_rows, a.max_keys) / 8 + 1)));
      if (spread) a.workspace = workspace.get();
      run(&CudaLibrary::attention_forward, a);
      const Floats sums = lse.read();
      EXPECT_EQ(bit_difference(&sums[static_cast<std::size_t>(begin * shape.heads)], &first.lse[static_cast<std::size_t>(begin * shape.heads)],
                               static_cast<std::size_t>((end - begin) * shape.heads)), "");
      const Floats got = out.read(), other = other_out.read();
      EXPECT_EQ(bit_difference(&got[static_cast<std::size_t>(begin * first.q_row())], &first.out[static_cast<std::size_t>(begin * first.q_row())],
                               static_cast<std::size_t>((end - begin) * first.q_row())), "");
      EXPECT_EQ(bit_difference(&other[static_cast<std::size_t>(32 * second.q_row())], &second.out[static_cast<std::size_t>(32 * second.q_row())],
                               static_cast<std::size_t>(second.q_row())), "");
      for (std::size_t i = 0; i < static_cast<std::size_t>(begin * first.q_row()); ++i) ASSERT_EQ(got[i], -7) << "a row of nobody was written";
    }
  }
}

TEST_P(CudaAttentionKernels, ManySpansAreFoundWhereverATileBegins) {
  const AttentionShape shape{2, 1, 16, 0};
  const Sequence s(shape, 700, 9);
  std::vector<KeySpan> spans;  // of 0, 1, 2, 3 keys in turn: more than are counted at a time
  for (std::int64_t t = 0; t < 700; t += spans.back().count)
    spans.push_back(s.rows_of(s.dev_kv.get(), t, std::min<std::int64_t>(700, t + static_cast<std::int64_t>(spans.size() % 4))));
  ASSERT_GT(spans.size(), 450u);
  const On<KeySpan> dev_spans(spans);
  const On<float> out(Floats(static_cast<std::size_t>(s.q_row())));
  const On<AttentionSegment> segment({{s.dev_q.get() + 699 * s.q_row(), out.get(), nullptr, 1, 0, 0, dev_spans.get(), static_cast<std::int64_t>(spans.size())}});
  const On<double> workspace(std::vector<double>(static_cast<std::size_t>(cuda_attention_bytes(shape, 1, 1, 700) / 8 + 1)));
  for (void* memory : {static_cast<void*>(workspace.get()), static_cast<void*>(nullptr)}) {
    run(&CudaLibrary::attention_forward, CudaAttention{shape, segment.get(), 1, 1, memory, 700});
    EXPECT_EQ(bit_difference(out.read().data(), &s.out[static_cast<std::size_t>(699 * s.q_row())], static_cast<std::size_t>(s.q_row())), "");
  }
}

TEST_P(CudaAttentionKernels, OperandsOfBfloat16AreRefused) {
  AttentionShape shape{1, 1, 16, 0};
  shape.precision = Precision::kBfloat16;
  EXPECT_NE(testing::target().library->attention_forward(std::make_unique<CudaAttention>(CudaAttention{shape, nullptr, 1, 1, nullptr, 0}).get(), nullptr), nullptr);
  EXPECT_NE(testing::target().library->attention_backward(std::make_unique<CudaAttentionGrad>(CudaAttentionGrad{shape, {}, nullptr, 1, 1, 0}).get(), nullptr), nullptr);
}

/// Where the arrays of a batch lie: on the host or on the device.
struct Place {
  const float *q, *k, *v, *out, *dout, *lse;
  float *dq, *dk, *dv;
};

/// A prompt of `prompt` rows and `samples` continuations of `own` rows behind it, as rows of one array.
std::vector<AttentionGradSegment> segments_of(const AttentionShape& shape, std::int64_t prompt, std::int64_t own,
                                              std::int64_t samples, bool with_prompt, const Place& p) {
  const std::int64_t q_row = shape.heads * shape.head_dim, kv_row = shape.kv_heads * shape.head_dim;
  std::vector<AttentionGradSegment> segments;
  for (std::int64_t i = prompt > 0 && with_prompt ? -1 : 0; i < samples; ++i) {
    const std::int64_t begin = i < 0 ? 0 : prompt + i * own;
    AttentionGradSegment s{p.q + begin * q_row, p.out + begin * q_row, p.dout + begin * q_row, p.lse + begin * shape.heads,
                           p.dq + begin * q_row, i < 0 ? prompt : own, {}, {}};
    if (i >= 0 && prompt > 0) s.prefix = {p.k, p.v, p.dk, p.dv, prompt};
    s.own = {p.k + begin * kv_row, p.v + begin * kv_row, p.dk + begin * kv_row, p.dv + begin * kv_row, s.rows};
    segments.push_back(s);
  }
  return segments;
}

TEST_P(CudaAttentionKernels, BackwardOfPromptsThatSamplesShare) {
  struct Case {
    std::int64_t prompt, own, samples;
    bool with_prompt;
  };
  for (const AttentionShape& shape : kShapes)
    for (const Case& c : {Case{0, 1, 1, false}, Case{0, 70, 2, false}, Case{20, 9, 3, true}, Case{70, 40, 2, true}, Case{70, 5, 2, false}}) {
      SCOPED_TRACE(name(shape) + ", prompt " + std::to_string(c.prompt) + ", own " + std::to_string(c.own));
      const std::int64_t rows = c.prompt + c.own * c.samples;
      const std::int64_t q_row = shape.heads * shape.head_dim, kv_row = shape.kv_heads * shape.head_dim;
      const Floats q = testing::filled(rows * q_row, 1, 1.5F), k = testing::filled(rows * kv_row, 2, 1.5F), v = testing::filled(rows * kv_row, 3);
      const Floats out = testing::filled(rows * q_row, 4), dout = testing::filled(rows * q_row, 5);
      const Floats lse = Floats(static_cast<std::size_t>(rows * shape.heads), 4);  // of some forward pass
      const Floats dk_before = testing::filled(rows * kv_row, 6);                  // gradients are added to
      Floats dq(q.size(), -7), dk = dk_before, dv(v.size());
      const On<float> dev_q(q), dev_k(k), dev_v(v), dev_out(out), dev_dout(dout), dev_lse(lse), dev_dq(dq), dev_dk(dk), dev_dv(dv);
      const auto host = segments_of(shape, c.prompt, c.own, c.samples, c.with_prompt,
                                    {q.data(), k.data(), v.data(), out.data(), dout.data(), lse.data(), dq.data(), dk.data(), dv.data()});
      const auto count = static_cast<std::int64_t>(host.size());
      attention_backward(shape, {}, host.data(), count);
      const On<AttentionGradSegment> segments(
          segments_of(shape, c.prompt, c.own, c.samples, c.with_prompt,
                      {dev_q.get(), dev_k.get(), dev_v.get(), dev_out.get(), dev_dout.get(), dev_lse.get(), dev_dq.get(), dev_dk.get(), dev_dv.get()}));
      run(&CudaLibrary::attention_backward, CudaAttentionGrad{shape, {}, segments.get(), count, std::max(c.own, c.with_prompt ? c.prompt : 0), c.prompt});
      EXPECT_EQ(bit_difference(dev_dq.read(), dq), "");
      EXPECT_EQ(bit_difference(dev_dk.read(), dk), "");
      EXPECT_EQ(bit_difference(dev_dv.read(), dv), "");
    }
}

}  // namespace
}  // namespace troupe::kernels
