#include "model/parameters.h"

namespace troupe::model {

namespace {

/// Appends rows whose names begin with the layer's two prefixes.
class TableBuilder {
 public:
  std::vector<ParameterSpec> rows;
  std::string prefix, gguf_prefix;

  ParameterSpec& matrix(const std::string& name, const std::string& gguf, std::int64_t out, std::int64_t in) {
    ParameterSpec row;
    row.name = prefix + name + ".weight";
    row.gguf_name = gguf_prefix + gguf + ".weight";
    row.shape = {out, in};
    return rows.emplace_back(std::move(row));
  }

  void norm(const std::string& name, const std::string& gguf, std::int64_t width, const NormSpec& spec) {
    ParameterSpec row;
    row.name = prefix + name + ".weight";
    row.gguf_name = gguf_prefix + gguf + ".weight";
    row.shape = {width};
    row.norm = true;
    row.identity = 1 - spec.weight_offset;
    rows.push_back(std::move(row));
  }
};

void add_attention(TableBuilder& table, const AttentionSpec& attention, std::int64_t width) {
  const std::int64_t query = attention.heads * attention.head_dim;
  const std::int64_t key = attention.kv_heads * attention.head_dim;
  table.matrix("self_attn.q_proj", "attn_q", query, width).rotated_heads = attention.heads;
  table.matrix("self_attn.k_proj", "attn_k", key, width).rotated_heads = attention.kv_heads;
  table.matrix("self_attn.v_proj", "attn_v", key, width);
  table.matrix("self_attn.o_proj", "attn_output", width, query);
  if (attention.qk_norm) {
    table.norm("self_attn.q_norm", "attn_q_norm", attention.head_dim, attention.q_norm);
    table.norm("self_attn.k_norm", "attn_k_norm", attention.head_dim, attention.k_norm);
  }
}

void add_ffn(TableBuilder& table, const FfnSpec& ffn, std::int64_t width) {
  table.matrix("mlp.gate_proj", "ffn_gate", ffn.width, width);
  table.matrix("mlp.up_proj", "ffn_up", ffn.width, width);
  table.matrix("mlp.down_proj", "ffn_down", width, ffn.width);
}

}  // namespace

std::int64_t ParameterSpec::elements() const {
  std::int64_t count = 1;
  for (const std::int64_t n : shape) count *= n;
  return count;
}

std::vector<ParameterSpec> parameter_table(const ModelSpec& spec) {
  TableBuilder table;
  table.prefix = "model.";
  table.matrix("embed_tokens", "token_embd", spec.vocab_size, spec.width);
  for (std::size_t i = 0; i < spec.layers.size(); ++i) {
    const LayerSpec& layer = spec.layers[i];
    table.prefix = "model.layers." + std::to_string(i) + ".";
    table.gguf_prefix = "blk." + std::to_string(i) + ".";
    table.norm("input_layernorm", "attn_norm", spec.width, layer.attention_norm);
    add_attention(table, layer.attention, spec.width);
    table.norm("post_attention_layernorm", "ffn_norm", spec.width, layer.ffn_norm);
    add_ffn(table, layer.ffn, spec.width);
  }
  table.prefix = "model.";
  table.gguf_prefix.clear();
  table.norm("norm", "output_norm", spec.width, spec.final_norm);
  table.prefix.clear();
  if (!spec.tied) table.matrix("lm_head", "output", spec.vocab_size, spec.width);
  return std::move(table.rows);
}

std::int64_t ModelSpec::parameter_count() const {
  std::int64_t count = 0;
  for (const ParameterSpec& row : parameter_table(*this)) count += row.elements();
  return count;
}

}  // namespace troupe::model
