// Kernels whose arguments are lists with pointers of their own: attention and sampling.
#include <algorithm>
#include <bit>
#include <string>
#include <vector>

#include "kernels/device_call.h"
#include "kernels/offload.h"

namespace troupe::kernels {
namespace {

template <class T>
void stage(DeviceCall& call, std::span<const T> memory) {
  const T* data = memory.data();
  if (!memory.empty()) call.in(data, static_cast<std::int64_t>(memory.size()));
}
template <class T>
void bring_back(DeviceCall& call, std::span<T> memory) {
  T* data = memory.data();
  if (!memory.empty()) call.out(data, static_cast<std::int64_t>(memory.size()));
}

void enqueue_forward(DeviceCall& call, const AttentionShape& shape, std::span<const AttentionSegment> segments,
                     const AttentionMemory& memory) {
  stage(call, memory.qkv);
  bring_back(call, memory.out);
  bring_back(call, memory.lse);
  std::vector<KeySpan> spans;
  for (const AttentionSegment& s : segments)
    for (KeySpan span : std::span(s.spans, static_cast<std::size_t>(s.span_count))) {
      span.k = call.moved(span.k);
      span.v = call.moved(span.v);
      spans.push_back(span);
    }
  const KeySpan* next_span = call.list(spans);
  CudaAttention a{.shape = shape};
  std::vector<AttentionSegment> list(segments.begin(), segments.end());
  for (AttentionSegment& s : list) {
    s.q = call.moved(s.q);
    s.out = call.moved(s.out);
    s.lse = call.moved(s.lse);
    s.spans = next_span;
    if (next_span != nullptr) next_span += s.span_count;
    a.max_rows = std::max(a.max_rows, s.rows);
  }
  a.segments = call.list(list);
  a.count = static_cast<std::int64_t>(list.size());
  call.launch(&CudaLibrary::attention_forward, a);
}

KeyGrad moved(const DeviceCall& call, KeyGrad keys) {
  return {call.moved(keys.k), call.moved(keys.v), call.moved(keys.dk), call.moved(keys.dv), keys.count};
}

void enqueue_backward(DeviceCall& call, const AttentionShape& shape, const AttentionGradStrides& strides,
                      std::span<const AttentionGradSegment> segments, const AttentionGradMemory& memory) {
  for (const std::span<const float> one : {memory.qkv, memory.out, memory.dout, memory.lse}) stage(call, one);
  float* dqkv = memory.dqkv.data();
  call.from_zeros(dqkv, static_cast<std::int64_t>(memory.dqkv.size()));
  CudaAttentionGrad a{.shape = shape, .strides = strides};
  std::vector<AttentionGradSegment> list(segments.begin(), segments.end());
  for (AttentionGradSegment& s : list) {
    s.q = call.moved(s.q);
    s.out = call.moved(s.out);
    s.dout = call.moved(s.dout);
    s.lse = call.moved(s.lse);
    s.dq = call.moved(s.dq);
    s.prefix = moved(call, s.prefix);
    s.own = moved(call, s.own);
    a.max_rows = std::max(a.max_rows, s.rows);
    a.max_prefix = std::max(a.max_prefix, s.prefix.count);
  }
  a.segments = call.list(list);
  a.count = static_cast<std::int64_t>(list.size());
  call.launch(&CudaLibrary::attention_backward, a);
}

/// Draws on the device and writes ids and log-probs into `rows`.
Status sample_on_device(SampleRow* rows, std::int64_t count, std::int64_t vocab) {
  DeviceCall call;
  std::vector<SampleRow> list(rows, rows + count);
  for (SampleRow& row : list) call.in(row.logits, vocab);
  SampleRow* on_device = list.data();
  call.in_and_out(on_device, count);
  call.launch(&CudaLibrary::sample_rows,
              {on_device, count, vocab, call.scratch(cuda_sample_bytes(count, vocab))});
  TROUPE_TRY_STATUS(call.finish());
  for (std::int64_t i = 0; i < count; ++i) {
    rows[i].id = list[static_cast<std::size_t>(i)].id;
    rows[i].logprob = list[static_cast<std::size_t>(i)].logprob;
  }
  return {};
}

}  // namespace

Status attention_forward(Where where, const AttentionShape& shape, std::span<const AttentionSegment> segments,
                         const AttentionMemory& memory) {
  const auto host = [&] { attention_forward(shape, segments.data(), static_cast<std::int64_t>(segments.size())); };
  return run_both(where, "attention_forward", 0, host,
                  [&](DeviceCall& call) { enqueue_forward(call, shape, segments, memory); });
}

Status attention_backward(Where where, const AttentionShape& shape, const AttentionGradStrides& strides,
                          std::span<const AttentionGradSegment> segments, const AttentionGradMemory& memory) {
  const auto host = [&] {
    attention_backward(shape, strides, segments.data(), static_cast<std::int64_t>(segments.size()));
  };
  return run_both(where, "attention_backward", 0, host,
                  [&](DeviceCall& call) { enqueue_backward(call, shape, strides, segments, memory); });
}

Status sample_rows(Where where, SampleRow* rows, std::int64_t count, std::int64_t vocab) {
  if (where == Where::kDevice) return sample_on_device(rows, count, vocab);
  std::vector<SampleRow> drawn;
  if (where == Where::kBoth) {
    drawn.assign(rows, rows + count);
    TROUPE_TRY_STATUS(sample_on_device(drawn.data(), count, vocab));
  }
  sample_rows(rows, count, vocab);
  for (std::size_t i = 0; i < drawn.size(); ++i) {
    const SampleRow& cpu = rows[i];
    const bool same = drawn[i].id == cpu.id && (cpu.id < 0 || std::bit_cast<std::uint32_t>(drawn[i].logprob) ==
                                                                  std::bit_cast<std::uint32_t>(cpu.logprob));
    if (!same)
      return fail(ErrorCode::kInternal, "[kernels] \"check:cuda\": CPU and GPU differ in sample_rows, row " + std::to_string(i) +
                                            ": ids " + std::to_string(cpu.id) + " and " + std::to_string(drawn[i].id) +
                                            ", log-probs " + std::to_string(cpu.logprob) + " and " +
                                            std::to_string(drawn[i].logprob));
  }
  return {};
}

}  // namespace troupe::kernels
