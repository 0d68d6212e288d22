#include "model/parameters.h"

#include "base/check.h"
#include "model/registry.h"

namespace troupe::model {

namespace {

using Shape = std::vector<std::int64_t>;

/// Appends rows that belong to one place.
class TableBuilder {
 public:
  explicit TableBuilder(const NameMap& map) : map_(map) {}

  std::vector<ParameterSpec> rows;
  std::string prefix, gguf_prefix;
  int place = -1;

  ParameterSpec& add(Role role, Shape shape) {
    ParameterSpec row;
    row.role = role;
    row.place = place;
    const std::string_view name = name_in(map_, role);
    TROUPE_CHECK(!name.empty(), "the family's names lack a role");
    row.name = prefix + std::string(name);
    if (const std::string_view gguf = gguf_name(role); !gguf.empty()) row.gguf_name = gguf_prefix + std::string(gguf);
    row.shape = std::move(shape);
    row.stored = {{row.name, row.shape}};
    return rows.emplace_back(std::move(row));
  }

  ParameterSpec& constant(Role role, Shape shape, double value) {
    ParameterSpec& row = add(role, std::move(shape));
    row.start = Start::kConstant;
    row.constant = value;
    return row;
  }

  void norm(Role role, std::int64_t width, const NormSpec& spec) { constant(role, {width}, 1 - spec.weight_offset); }

  /// The matrices of all experts, [E, sum of the names' outs, in], which a file may store one by one.
  void experts(Role role, std::int64_t count, std::int64_t in, std::int64_t out, std::vector<std::string_view> names) {
    ParameterSpec& row = add(role, {count, out * static_cast<std::int64_t>(names.size()), in});
    if (map_.split_experts.empty()) return;
    row.stored.clear();
    for (std::int64_t e = 0; e < count; ++e)
      for (const std::string_view name : names) {
        const auto part = static_cast<std::int64_t>(row.stored.size());
        row.stored.push_back({prefix + numbered(map_.split_experts, e) + std::string(name), {out, in}, part * out * in});
      }
  }

  [[nodiscard]] const NameMap& map() const { return map_; }

 private:
  const NameMap& map_;
};

void add_grouped_query(TableBuilder& table, const AttentionSpec& a, std::int64_t width) {
  const std::int64_t query = a.heads * a.head_dim;
  const std::int64_t key = a.kv_heads * a.head_dim;
  const std::int64_t gated = a.gate == AttentionGate::kInQuery ? 2 : 1;
  table.add(Role::kQ, {gated * query, width}).rotated_heads = a.heads;
  table.add(Role::kK, {key, width}).rotated_heads = a.kv_heads;
  table.add(Role::kV, {key, width});
  if (a.gate == AttentionGate::kOwn) table.add(Role::kOutGate, {query, width});
  table.add(Role::kOut, {width, query});
  if (a.biases) {
    table.constant(Role::kQBias, {query}, 0);
    table.constant(Role::kKBias, {key}, 0);
    table.constant(Role::kVBias, {key}, 0);
    table.constant(Role::kOutBias, {width}, 0);
  }
  if (a.sinks) table.add(Role::kSinks, {a.heads});
  if (a.qk_norm && a.qk_norm_weights) {
    table.norm(Role::kQNorm, a.head_dim, a.q_norm);
    table.norm(Role::kKNorm, a.head_dim, a.k_norm);
  }
}

void add_latent(TableBuilder& table, const AttentionSpec& a, std::int64_t width) {
  const LatentSpec& l = a.latent;
  const std::int64_t query = a.heads * (l.nope_dim + l.rope_dim);
  if (l.q_rank > 0) {
    table.add(Role::kQDown, {l.q_rank, width});
    table.norm(Role::kQDownNorm, l.q_rank, a.q_norm);
    table.add(Role::kQUp, {query, l.q_rank});
  } else {
    table.add(Role::kQ, {query, width});
  }
  table.add(Role::kKvDown, {l.kv_rank + l.rope_dim, width});
  table.norm(Role::kKvDownNorm, l.kv_rank, a.k_norm);
  table.add(Role::kKvUp, {a.heads * (l.nope_dim + l.value_dim), l.kv_rank});
  table.add(Role::kOut, {width, a.heads * l.value_dim});
}

void add_delta(TableBuilder& table, const AttentionSpec& a, std::int64_t width) {
  const DeltaSpec& d = a.delta;
  const std::int64_t values = d.value_heads * d.value_dim;
  table.add(Role::kDeltaQkv, {d.channels(), width});
  table.add(Role::kDeltaZ, {values, width});
  table.add(Role::kDeltaBeta, {d.value_heads, width});
  table.add(Role::kDeltaDecay, {d.value_heads, width});
  table.add(Role::kDeltaConv, {d.channels(), 1, d.taps});
  table.add(Role::kDeltaDecayLog, {d.value_heads}).start = Start::kLogUniform;
  table.constant(Role::kDeltaTimeBias, {d.value_heads}, 1);
  table.norm(Role::kDeltaNorm, d.value_dim, {});
  table.add(Role::kDeltaOut, {width, values});
}

void add_compressed(TableBuilder& table, const AttentionSpec& a, std::int64_t width) {
  const CompressSpec& c = a.compress;
  const std::int64_t halves = c.overlap ? 2 : 1;
  table.add(Role::kQDown, {c.q_rank, width});
  table.norm(Role::kQDownNorm, c.q_rank, a.q_norm);
  table.add(Role::kQUp, {a.heads * a.head_dim, c.q_rank});
  table.add(Role::kKvDown, {a.head_dim, width});
  table.norm(Role::kKvDownNorm, a.head_dim, a.k_norm);
  table.add(Role::kOutDown, {c.out_groups * c.out_rank, a.heads * a.head_dim / c.out_groups});
  table.add(Role::kOut, {width, c.out_groups * c.out_rank});
  table.constant(Role::kSinks, {a.heads}, 0);
  if (c.ratio == 0) return;
  table.add(Role::kPoolValues, {halves * a.head_dim, width});
  table.add(Role::kPoolLogits, {halves * a.head_dim, width});
  table.constant(Role::kPoolPosition, {c.ratio, halves * a.head_dim}, 0);
  table.norm(Role::kPoolNorm, a.head_dim, a.k_norm);
  if (c.index_top == 0) return;
  table.add(Role::kIndexQ, {c.index_heads * c.index_dim, c.q_rank}).trains = false;
  table.add(Role::kIndexWeights, {c.index_heads, width}).trains = false;
  table.add(Role::kIndexPoolValues, {halves * c.index_dim, width}).trains = false;
  table.add(Role::kIndexPoolLogits, {halves * c.index_dim, width}).trains = false;
  table.constant(Role::kIndexPoolPosition, {c.ratio, halves * c.index_dim}, 0).trains = false;
  table.norm(Role::kIndexPoolNorm, c.index_dim, a.k_norm);
  table.rows.back().trains = false;
}

void add_attention(TableBuilder& table, const AttentionSpec& attention, std::int64_t width) {
  switch (attention.kind) {
    case AttentionKind::kGroupedQuery:
      return add_grouped_query(table, attention, width);
    case AttentionKind::kLatent:
      return add_latent(table, attention, width);
    case AttentionKind::kDeltaNet:
      return add_delta(table, attention, width);
    case AttentionKind::kCompressed:
      return add_compressed(table, attention, width);
  }
}

void add_experts(TableBuilder& table, const ExpertsSpec& e, std::int64_t width, std::int64_t vocab) {
  const std::int64_t inner = e.latent_width > 0 ? e.latent_width : width;
  table.add(Role::kRouter, {e.count, width});
  if (e.router_bias) table.add(Role::kRouterBias, {e.count});
  if (e.correction) table.constant(Role::kRouterCorrection, {e.count}, 0).trains = false;
  if (e.hash) {
    ParameterSpec& row = table.add(Role::kRouterTable, {vocab, e.chosen});
    row.start = Start::kCycle;
    row.cycle = e.count;
    row.trains = false;
  }
  if (e.latent_width > 0) {
    table.add(Role::kExpertsIn, {inner, width});
    table.norm(Role::kExpertsInNorm, inner, e.latent_norm);
  }
  if (e.columns) {
    table.add(Role::kExpertsGateUp, {e.count, inner, 2 * e.width});
    table.add(Role::kExpertsDown, {e.count, e.width, inner});
  } else {
    table.experts(Role::kExpertsGateUp, e.count, inner, e.width, {table.map().expert_gate, table.map().expert_up});
    table.experts(Role::kExpertsDown, e.count, e.width, inner, {table.map().expert_down});
  }
  if (e.biases) {
    table.constant(Role::kExpertsGateUpBias, {e.count, 2 * e.width}, 0);
    table.constant(Role::kExpertsDownBias, {e.count, inner}, 0);
  }
  if (e.out_norm_eps > 0) table.constant(Role::kExpertsOutNorm, {inner}, 0);
  if (e.latent_width > 0) table.add(Role::kExpertsOut, {width, inner});
  if (e.shared_width > 0) {
    table.add(Role::kSharedGate, {e.shared_width, width});
    table.add(Role::kSharedUp, {e.shared_width, width});
    table.add(Role::kSharedDown, {width, e.shared_width});
    if (e.shared_gate) table.add(Role::kSharedSwitch, {1, width});
  }
}

void add_ffn(TableBuilder& table, const FfnSpec& ffn, std::int64_t width, std::int64_t vocab) {
  if (ffn.kind == FfnKind::kExperts) return add_experts(table, ffn.experts, width, vocab);
  table.add(Role::kFfnGate, {ffn.width, width});
  table.add(Role::kFfnUp, {ffn.width, width});
  table.add(Role::kFfnDown, {width, ffn.width});
}

void add_hyper(TableBuilder& table, Role fn, Role base, Role scale, std::int64_t outs, std::int64_t scales,
               const ModelSpec& spec) {
  table.add(fn, {outs, spec.hyper.streams * spec.width});
  table.constant(base, {outs}, 0);
  table.constant(scale, {scales}, 1);
}

void add_layer(TableBuilder& table, const LayerSpec& layer, const ModelSpec& spec) {
  const std::int64_t mixes = (2 + spec.hyper.streams) * spec.hyper.streams;
  table.norm(Role::kAttentionNorm, spec.width, layer.attention_norm);
  add_attention(table, layer.attention, spec.width);
  if (layer.residual == ResidualKind::kGated) table.add(Role::kAttentionResidual, {spec.width});
  table.norm(Role::kFfnNorm, spec.width, layer.ffn_norm);
  add_ffn(table, layer.ffn, spec.width, spec.vocab_size);
  if (layer.residual == ResidualKind::kGated) {
    table.constant(Role::kFfnPostNorm, {spec.width}, 0);
    table.add(Role::kFfnResidual, {spec.width});
  }
  if (layer.residual != ResidualKind::kHyper) return;
  add_hyper(table, Role::kHyperAttentionFn, Role::kHyperAttentionBase, Role::kHyperAttentionScale, mixes, 3, spec);
  add_hyper(table, Role::kHyperFfnFn, Role::kHyperFfnBase, Role::kHyperFfnScale, mixes, 3, spec);
}

void add_mtp(TableBuilder& table, std::size_t index, const ModelSpec& spec) {
  const NameMap& map = table.map();
  const auto number = static_cast<std::int64_t>(index + (map.mtp_counts_on ? spec.layers.size() : 0));
  table.place = static_cast<int>(spec.layers.size() + index);
  table.gguf_prefix.clear();
  table.prefix = numbered(map.mtp, number);
  const auto copy_of = [&](Role role, std::string_view name) {
    for (ParameterSpec& row : table.rows)
      if (row.role == role && !name.empty()) row.stored.push_back({table.prefix + std::string(name), row.shape, 0, true});
  };
  copy_of(Role::kEmbedding, map.mtp_embedding);
  copy_of(spec.tied ? Role::kEmbedding : Role::kHead, map.mtp_head);
  table.norm(Role::kMtpEmbeddingNorm, spec.width, spec.mtp_norm);
  table.norm(Role::kMtpHiddenNorm, spec.width, spec.mtp_norm);
  if (spec.mtp_join == MtpJoin::kConcatenate) {
    table.add(Role::kMtpProject, {spec.width, 2 * spec.width});
  } else {
    table.add(Role::kMtpEmbeddingProject, {spec.width, spec.width});
    table.add(Role::kMtpHiddenProject, {spec.width, spec.width});
    add_hyper(table, Role::kHyperHeadFn, Role::kHyperHeadBase, Role::kHyperHeadScale, spec.hyper.streams, 1, spec);
  }
  table.norm(Role::kMtpNorm, spec.width, spec.mtp_norm);
  table.prefix = numbered(map.mtp_layer, number);
  add_layer(table, spec.mtp[index], spec);
}

}  // namespace

std::int64_t ParameterSpec::elements() const {
  std::int64_t count = 1;
  for (const std::int64_t n : shape) count *= n;
  return count;
}

std::vector<ParameterSpec> parameter_table(const ModelSpec& spec) {
  TableBuilder table(names_of(spec));
  table.prefix = table.map().root;
  table.add(Role::kEmbedding, {spec.vocab_size, spec.width});
  for (std::size_t i = 0; i < spec.layers.size(); ++i) {
    table.place = static_cast<int>(i);
    table.prefix = numbered(table.map().layer, table.place);
    table.gguf_prefix = "blk." + std::to_string(i) + ".";
    add_layer(table, spec.layers[i], spec);
  }
  table.place = -1;
  table.prefix = table.map().root;
  table.gguf_prefix.clear();
  table.norm(Role::kFinalNorm, spec.width, spec.final_norm);
  if (spec.hyper.streams > 1)
    add_hyper(table, Role::kHyperHeadFn, Role::kHyperHeadBase, Role::kHyperHeadScale, spec.hyper.streams, 1, spec);
  table.prefix.clear();
  if (!spec.tied) table.add(Role::kHead, {spec.vocab_size, spec.width});
  for (std::size_t i = 0; i < spec.mtp.size(); ++i) add_mtp(table, i, spec);
  return std::move(table.rows);
}

std::int64_t ModelSpec::parameter_count() const {
  std::int64_t count = 0;
  for (const ParameterSpec& row : parameter_table(*this))
    if (row.role != Role::kRouterTable && row.role != Role::kRouterCorrection) count += row.elements();
  return count;
}

}  // namespace troupe::model
