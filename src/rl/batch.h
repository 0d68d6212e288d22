/// @file
/// From delivered groups to micro-batches: ordered by (prompt id, sample index), a group's prompt stored once per micro-batch.
/// Plain structs; the rank converts `MicroBatch` to the model's batch (segments have the same meaning there).
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "base/ids.h"
#include "base/result.h"
#include "rl/loss.h"
#include "rl/options.h"

namespace troupe::data {
struct PackedSequences;
}

namespace troupe::rl {

/// One finished rollout. Masks come from here, from structure; ids are never searched.
struct Sample {
  SampleId id;
  std::vector<std::int32_t> ids;        ///< Everything after the prompt, the stop token included when it was sampled.
  std::vector<std::uint8_t> sampled;    ///< [ids] 1 where the policy sampled the token; empty: all (one turn).
  std::vector<std::uint32_t> starts = {}; ///< Positions in `ids`, ascending, where a context of its own begins: it does not follow what is before it,
                                        ///< nor the prompt, and its first token was not sampled. Empty: everything follows the prompt.
  std::vector<float> logprobs;          ///< [ids] of the sampler; anything at tokens that were not sampled.
  std::vector<PolicyVersion> versions;  ///< [ids] weights that sampled each token.
  double reward = 0;
  bool truncated = false;               ///< Ended by the length limit: the sampler's finish reason says so.
};

/// What was dispatched together. `prompt_id` is the identity, whatever the text.
struct Group {
  std::uint64_t prompt_id = 0;
  std::vector<std::int32_t> prompt;     ///< Ids of the rendered prompt; at least one.
  std::vector<Sample> samples;
};

/// A group made ready: advantages and masks known.
struct PreparedSample {
  Sample sample;
  double reward = 0;                    ///< With the overlong penalty.
  double advantage = 0;
  std::int64_t trained_tokens = 0;      ///< 0: masked as a whole.
};
struct PreparedGroup {
  std::uint64_t prompt_id = 0;
  std::vector<std::int32_t> prompt;
  std::vector<PreparedSample> samples;  ///< By sample index.
};

/// Figures of all delivered samples, before any mask or filter.
struct BatchMetrics {
  std::int64_t groups = 0, groups_zero_signal = 0, samples = 0, truncated = 0;
  std::int64_t solve_none = 0, solve_all = 0; ///< Groups whose task rewards are all <= 0 / all >= 1.
  double reward_mean = 0, reward_std = 0, reward_min = 0, reward_max = 0; ///< Of the task, without the overlong penalty.
  double response_length_mean = 0, response_length_max = 0, response_length_min = 0, clip_ratio = 0; ///< Sampled tokens.
  double advantage_mean = 0, advantage_max = 0, advantage_min = 0; ///< Over trained samples.
};

struct PreparedBatch {
  std::vector<PreparedGroup> groups;         ///< By prompt id; zero-signal groups are left out when the options say so.
  std::vector<std::uint64_t> dropped;        ///< Prompt ids of the zero-signal groups that were left out.
  Denominator denominator;                   ///< Of the whole batch, whoever computes it.
  BatchMetrics metrics;
};

/// Whether a group would be left out as zero-signal: for the director, which refills before the batch is made.
/// `length_max` is the longest response the config allows.
[[nodiscard]] bool group_is_zero_signal(const Group& group, const AlgorithmOptions& options, std::int64_t length_max);

/// Sorts, shapes rewards, computes advantages over whole groups, then applies masks. The order the groups arrive in does not matter.
/// Errors: kInvalidArgument naming the sample for arrays of unequal length, an empty prompt, a sample that is there twice, or a
/// sample id of another prompt; kCorrupt for a reward or a sampled token's log-prob that is not finite.
[[nodiscard]] Result<PreparedBatch> prepare_batch(std::vector<Group> groups, const AlgorithmOptions& options, std::int64_t length_max);

/// Rows [begin, end) attend causally to themselves after all rows of [prefix_begin, prefix_end).
struct Segment {
  std::int32_t begin = 0, end = 0, prefix_begin = 0, prefix_end = 0;
};

/// One forward and backward pass. T rows through the model, n scored targets, s sequences.
struct MicroBatch {
  std::vector<std::int32_t> ids, positions;   ///< [T]
  std::vector<Segment> segments;
  std::vector<std::int32_t> rows;             ///< [n] the row whose hidden state predicts the target; repeats at a shared prompt's end.
  std::vector<std::int32_t> targets;          ///< [n]
  std::vector<float> behaviour_logprob;       ///< [n] (zeros in supervised batches)
  std::vector<float> advantage;               ///< [n] (zeros in supervised batches)
  std::vector<std::uint8_t> mask;             ///< [n] always 1 today: what is not trained is not scored.
  std::vector<SequenceRange> sequences;       ///< [s] ranges of n.
  std::vector<SampleId> samples;              ///< [s] (empty in supervised batches)
  std::vector<std::vector<PolicyVersion>> versions; ///< [s] distinct versions that sampled the sequence, ascending.
};

/// The part of a batch that rank `index` of `count` computes. Parts are made of whole sequences in the batch's order, one after the other, with
/// about the same number of rows: a sequence belongs to the part in which the middle of its rows falls. Disjoint, and together the whole;
/// a part may be empty.
struct Part {
  std::uint32_t index = 0;
  std::uint32_t count = 1;
};

/// Cuts in order: samples are added while the rows fit `rows_max`; a sample longer than that is alone. Samples without a trained
/// token are left out. The last token of a sample predicts nothing and gets no row. Where a part ends inside a group, both have its prompt.
[[nodiscard]] std::vector<MicroBatch> cut_micro_batches(const PreparedBatch& batch, std::int64_t rows_max, Part part = {});

/// Counts the targets of a supervised batch exactly as cut_packed scores them. Each document is one sequence.
void count_packed(Denominator& denominator, const data::PackedSequences& packed);
/// Cuts documents in order; each is one segment, and a document longer than `rows_max` is alone.
[[nodiscard]] std::vector<MicroBatch> cut_packed(const data::PackedSequences& packed, std::int64_t rows_max, Part part = {});

/// The view the loss functions take. Other fields are filled by the caller.
[[nodiscard]] TokenBatch token_batch(const MicroBatch& micro, std::span<const float> logprob);

/// [n] 1 where every token of the sequence was sampled by `version`: only there may log-probs be compared bit for bit.
[[nodiscard]] std::vector<std::uint8_t> equal_weights_mask(const MicroBatch& micro, PolicyVersion version);

} // namespace troupe::rl
