#include "tensor/delta.h"

#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>
#include <torch/csrc/autograd/custom_function.h>

#include <algorithm>
#include <map>
#include <vector>

#include "base/check.h"
#include "kernels/offload.h"

namespace troupe::tensor {

namespace {

using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

/// Rows that run without a stop: a segment, or a prompt between the places where completions go on from it.
struct DeltaPiece {
  std::int64_t begin = 0, end = 0;
  std::ptrdiff_t parent = -1;  ///< The piece whose last state is this one's first.
  std::size_t depth = 0;       ///< Pieces before it.
  bool has_children = false;
};

bool goes_on(const RowSegment& s) { return s.prefix_end > s.prefix_begin; }

/// Parents stand before their children.
std::vector<DeltaPiece> pieces_of(std::span<const RowSegment> segments) {
  std::map<std::int64_t, std::ptrdiff_t> at;  // the piece that ends at a row where others go on
  for (const RowSegment& s : segments)
    if (goes_on(s)) at[s.prefix_end] = -1;
  std::vector<DeltaPiece> pieces;
  const auto add = [&](std::int64_t begin, std::int64_t end, std::ptrdiff_t parent) {
    const bool first = parent < 0;
    if (!first) pieces[static_cast<std::size_t>(parent)].has_children = true;
    pieces.push_back({begin, end, parent, first ? 0 : pieces[static_cast<std::size_t>(parent)].depth + 1, false});
    return static_cast<std::ptrdiff_t>(pieces.size()) - 1;
  };
  for (const RowSegment& s : segments) {
    if (goes_on(s)) continue;
    std::int64_t row = s.begin;
    std::ptrdiff_t last = -1;
    for (auto cut = at.upper_bound(s.begin); cut != at.end() && cut->first <= s.end; ++cut) {
      last = cut->second = add(row, cut->first, last);
      row = cut->first;
    }
    if (row < s.end) add(row, s.end, last);
  }
  for (const RowSegment& s : segments) {
    if (!goes_on(s)) continue;
    TROUPE_CHECK(at.at(s.prefix_end) >= 0, "a shared prefix is the beginning of a segment");
    add(s.begin, s.end, at.at(s.prefix_end));
  }
  return pieces;
}

std::size_t depth_of(const std::vector<DeltaPiece>& pieces) {
  std::size_t most = 0;
  for (const DeltaPiece& piece : pieces) most = std::max(most, piece.depth + 1);
  return most;
}

/// The rows of a batch, and the states between its pieces.
class DeltaBatch {
 public:
  DeltaBatch(const at::Tensor& qkv, const at::Tensor& decay, const at::Tensor& beta, const DeltaLayout& layout,
             std::vector<DeltaPiece> pieces, Where where)
      : qkv_(qkv), decay_(decay), beta_(beta), layout_(layout), pieces_(std::move(pieces)), where_(where), states_(pieces_.size()) {}

  /// A piece after its parent; `out` may be undefined in the chunked form.
  void forward(const at::Tensor& out, DeltaForm form) {
    for (std::size_t depth = 0, most = depth_of(pieces_); depth < most; ++depth) {
      std::vector<kernels::DeltaRule> rules;
      for (std::size_t i = 0; i < pieces_.size(); ++i) {
        const DeltaPiece& piece = pieces_[i];
        if (piece.depth != depth || (!out.defined() && !piece.has_children)) continue;
        states_[i].resize(static_cast<std::size_t>(layout_.state()));
        if (const std::vector<float>* before = state_before(piece)) states_[i] = *before;
        rules.push_back(rule(piece, out, states_[i].data()));
      }
      if (form == DeltaForm::kChunked) {
        kernels::delta_rule_chunked(rules.data(), static_cast<std::int64_t>(rules.size()));
      } else {
        done(kernels::run(where_, rules));
      }
      for (std::size_t i = 0; i < pieces_.size(); ++i)
        if (pieces_[i].depth == depth && !pieces_[i].has_children) states_[i] = {};
    }
  }

  /// A piece after its children. The gradients are written.
  void backward(const at::Tensor& dout, const at::Tensor& dqkv, const at::Tensor& ddecay, const at::Tensor& dbeta) {
    if (depth_of(pieces_) > 1) forward({}, DeltaForm::kChunked);  // the states between pieces
    std::vector<std::vector<float>> before(pieces_.size()), behind(pieces_.size());  // gradients of states
    for (std::size_t depth = depth_of(pieces_); depth-- > 0;) {
      std::vector<kernels::DeltaRuleGrad> grads;
      for (std::size_t i = 0; i < pieces_.size(); ++i) {
        const DeltaPiece& piece = pieces_[i];
        if (piece.depth != depth) continue;
        kernels::DeltaRuleGrad one = grad(piece, dout, dqkv, ddecay, dbeta);
        if (const std::vector<float>* state = state_before(piece)) {
          one.state = state->data();
          before[i].resize(state->size());
          one.dstate = before[i].data();
        }
        if (piece.has_children) one.dstate_after = behind[i].data();
        grads.push_back(one);
      }
      done(kernels::run(where_, grads));
      for (std::size_t i = 0; i < pieces_.size(); ++i) {
        if (pieces_[i].depth != depth || pieces_[i].parent < 0) continue;
        std::vector<float>& sum = behind[static_cast<std::size_t>(pieces_[i].parent)];
        sum.resize(before[i].size());
        for (std::size_t j = 0; j < sum.size(); ++j) sum[j] += before[i][j];
        before[i] = {};
      }
    }
  }

 private:
  [[nodiscard]] const std::vector<float>* state_before(const DeltaPiece& piece) const {
    return piece.parent < 0 ? nullptr : &states_[static_cast<std::size_t>(piece.parent)];
  }
  [[nodiscard]] float* rows(const at::Tensor& x, std::int64_t begin) const {
    return x.defined() ? x.data_ptr<float>() + begin * x.size(1) : nullptr;
  }
  [[nodiscard]] kernels::DeltaRule rule(const DeltaPiece& p, const at::Tensor& out, float* state) const {
    return {rows(qkv_, p.begin), rows(decay_, p.begin), rows(beta_, p.begin), rows(out, p.begin), state, p.end - p.begin,
            layout_.key_heads, layout_.value_heads, layout_.key_dim, layout_.value_dim};
  }
  [[nodiscard]] kernels::DeltaRuleGrad grad(const DeltaPiece& p, const at::Tensor& dout, const at::Tensor& dqkv,
                                            const at::Tensor& ddecay, const at::Tensor& dbeta) const {
    kernels::DeltaRuleGrad one;
    one.qkv = rows(qkv_, p.begin), one.decay = rows(decay_, p.begin), one.beta = rows(beta_, p.begin);
    one.dout = rows(dout, p.begin);
    one.dqkv = rows(dqkv, p.begin), one.ddecay = rows(ddecay, p.begin), one.dbeta = rows(dbeta, p.begin);
    one.rows = p.end - p.begin;
    one.key_heads = layout_.key_heads, one.value_heads = layout_.value_heads;
    one.key_dim = layout_.key_dim, one.value_dim = layout_.value_dim;
    return one;
  }

  at::Tensor qkv_, decay_, beta_;
  DeltaLayout layout_;
  std::vector<DeltaPiece> pieces_;
  Where where_;
  std::vector<std::vector<float>> states_;  ///< Behind each piece, while others need it.
};

at::Tensor delta_values(const at::Tensor& qkv, const at::Tensor& decay, const at::Tensor& beta, const DeltaLayout& layout,
                        std::span<const RowSegment> segments, DeltaForm form, Where where) {
  at::Tensor out = at::empty({qkv.size(0), layout.value_heads * layout.value_dim}, qkv.options());
  DeltaBatch(qkv, decay, beta, layout, pieces_of(segments), where).forward(out, form);
  return out;
}

struct DeltaFunction : torch::autograd::Function<DeltaFunction> {
  static at::Tensor forward(AutogradContext* ctx, const at::Tensor& qkv, const at::Tensor& decay, const at::Tensor& beta,
                            const DeltaLayout& layout, std::span<const RowSegment> segments, DeltaForm form, Where where) {
    ctx->save_for_backward({qkv, decay, beta});
    ctx->saved_data["layout"] = std::vector<std::int64_t>{layout.key_heads, layout.value_heads, layout.key_dim, layout.value_dim,
                                                               static_cast<std::int64_t>(where)};
    ctx->saved_data["segments"] = numbers_of(segments);
    return delta_values(qkv, decay, beta, layout, segments, form, where);
  }

  static variable_list backward(AutogradContext* ctx, const variable_list& gradients) {
    const variable_list saved = ctx->get_saved_variables();
    const auto sizes = ctx->saved_data["layout"].toIntVector();
    const DeltaLayout layout{sizes[0], sizes[1], sizes[2], sizes[3]};
    const std::vector<RowSegment> segments = segments_of(ctx->saved_data["segments"].toIntVector());
    const at::Tensor dqkv = at::empty_like(saved[0]), ddecay = at::empty_like(saved[1]), dbeta = at::empty_like(saved[2]);
    DeltaBatch(saved[0], saved[1], saved[2], layout, pieces_of(segments), static_cast<Where>(sizes[4]))
        .backward(gradients[0].contiguous(), dqkv, ddecay, dbeta);
    return {dqkv, ddecay, dbeta, at::Tensor(), at::Tensor(), at::Tensor(), at::Tensor()};
  }
};

}  // namespace

at::Tensor delta_rule(const at::Tensor& qkv, const at::Tensor& decay, const at::Tensor& beta, const DeltaLayout& layout,
                      std::span<const RowSegment> segments, DeltaForm form, Where where) {
  TROUPE_CHECK(form == DeltaForm::kRecurrent || where == Where::kHost, "chunks are the CPU's");
  TROUPE_CHECK(qkv.is_contiguous() && decay.is_contiguous() && beta.is_contiguous() && qkv.size(1) == layout.channels(),
               "rows of query, key and value heads");
  if (!at::GradMode::is_enabled()) return delta_values(qkv, decay, beta, layout, segments, form, where);
  return DeltaFunction::apply(qkv, decay, beta, layout, segments, form, where);
}

}  // namespace troupe::tensor
