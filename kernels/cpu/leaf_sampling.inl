// Drawing from the softmax of logit rows. Included inside the namespace of one instruction set.

/// The softmax of a row, on the way to a draw.
struct RowWeights {
  float maximum;         ///< Of logits / temperature.
  float sum;             ///< Of the weights, in the order of logprob_forward.
  double total;          ///< Of the weights, in the order of a draw.
  const float* weights;  ///< exp(logit / temperature - maximum), then 0 up to a multiple of 16.
  const float* sums;     ///< Of the weights of 16 neighbours.
};

TROUPE_INLINE RowWeights weigh(const float* logits, std::int64_t vocab, float temperature, float* weights,
                               float* sums) {
  RowWeights row{row_maximum(logits, vocab) / temperature, 0, 0, weights, sums};
  const KeptExponentials kept{weights, sums};
  if (temperature != 1.0f) {
    sum_exponentials<false, true>(logits, vocab, temperature, row.maximum, &row.sum, nullptr, &kept);
  } else {
    sum_exponentials<false, false>(logits, vocab, temperature, row.maximum, &row.sum, nullptr, &kept);
  }
  for (std::int64_t i = 0; i * 16 < vocab; ++i) row.total += static_cast<double>(sums[i]);
  return row;
}

TROUPE_INLINE std::int32_t draw(const RowWeights& row, std::int64_t vocab, double uniform) {
  const double mark = uniform * row.total;
  const std::int64_t last_block = (vocab - 1) / 16;
  double before = 0;
  std::int64_t block = 0;
  for (; block < last_block && before + static_cast<double>(row.sums[block]) <= mark; ++block)
    before += static_cast<double>(row.sums[block]);
  std::int64_t id = -1;
  for (std::int64_t i = block * 16; i < block * 16 + 16 && before <= mark; ++i) {  // 0 behind the vocabulary
    if (row.weights[i] > 0) id = i;
    before += static_cast<double>(row.weights[i]);
  }
  for (std::int64_t i = block * 16; id < 0; --i) {  // the mark rounded to the total, behind the last weight
    if (row.weights[i] > 0) id = i;
  }
  return static_cast<std::int32_t>(id);
}

void sample_row_range(SampleRow* rows, std::int64_t count, std::int64_t vocab, float* memory) {
  float* sums = memory + (vocab + 15) / 16 * 16;
  for (std::int64_t i = 0; i < count; ++i) {
    SampleRow& r = rows[i];
    const bool greedy = r.temperature == 0;
    const float temperature = greedy ? 1.0f : r.temperature;
    const RowWeights row = weigh(r.logits, vocab, temperature, memory, sums);
    if (!(row.total == row.total)) {
      r.id = -1;
      r.logprob = __builtin_nanf("");
      continue;
    }
    r.id = greedy ? first_index_of(row.maximum, r.logits, vocab) : draw(row, vocab, r.uniform);
    r.logprob = (r.logits[r.id] / temperature - row.maximum) - lane0(log(set(row.sum)));
  }
}

double softmax_weights_row(const float* logits, std::int64_t vocab, float temperature, float* weights, float* sums) {
  return weigh(logits, vocab, temperature, weights, sums).total;
}
