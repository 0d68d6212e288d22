/// @file
/// What goes into the engine and what comes out.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/ids.h"
#include "generate/options.h"

namespace troupe::generate {

/// Tokens that were sampled before an abort, as its Completion gave them; equal lengths.
struct Prefix {
  std::vector<std::int32_t> ids;
  std::vector<float> logprobs;
  std::vector<PolicyVersion> versions;
  PolicyVersion kv_oldest;  ///< Of that completion.
};

/// One completion to sample.
struct Request {
  SampleId id;              ///< Names the randomness; unique among the requests an engine holds.
  std::optional<SampleId> randomness = {};  ///< Names it instead, where requests with the same are to draw alike.
  std::uint64_t group = 0;  ///< For abort_group. Prompts are shared by content, whatever the group.
  std::uint64_t seed = 0;   ///< The run's seed.
  std::vector<std::int32_t> prompt;
  Prefix prefix;  ///< Continues an aborted completion: same randomness, hence the same tokens under the same weights.
  std::uint64_t first_position = 0;  ///< Tokens the sample has sampled before this request, in earlier turns: its
                                     ///< randomness goes on from there.
  SamplingParams sampling;
};

/// A token at a position, and its log-prob.
struct Alternative {
  std::int32_t id = -1;
  float logprob = 0;
};

/// Why a completion ended, as the sampler knew it; never derived from the ids.
enum class Finish : std::uint8_t {
  kStop = 1,     ///< A stop id or a stop string.
  kLength = 2,   ///< max_new_tokens, or the context is full.
  kAborted = 3,  ///< By the caller; may be continued as a Prefix.
  kError = 4,    ///< See Completion::error.
};

/// A sampled completion. `ids`, `logprobs` and `versions` have equal lengths and hold every token that was sampled, a
/// stop id included.
struct Completion {
  SampleId id;
  std::uint64_t group = 0;
  std::vector<std::int32_t> ids;
  std::vector<float> logprobs;  ///< Under the distribution sampled from (temperature, truncation renormalised); greedy:
                                ///< at temperature 1.
  std::vector<PolicyVersion> versions;  ///< The weights that sampled each token.
  /// Of every token that was sampled here, when asked for: the sampled one, then the most likely ones, best first. Under the whole distribution
  /// at the temperature (greedy: at 1), whatever truncation did.
  std::vector<std::vector<Alternative>> alternatives;
  Finish finish = Finish::kAborted;
  std::string text;  ///< Decoded, without stop id and from the stop string on cut. Empty without a tokenizer.
  std::size_t text_tokens_kept = 0;  ///< decode(ids[0, kept)) is text[0, text_bytes_kept).
  std::size_t text_bytes_kept = 0;   ///< Less than text.size() when a stop string begins inside a token.
  PolicyVersion kv_oldest;  ///< The oldest weights behind any KV entry that any of the tokens was sampled from.
  std::string error;        ///< One sentence; only with kError.
};

/// A sequence to score. Borrowed.
struct ScoreRequest {
  std::span<const std::int32_t> ids;
  std::int32_t prompt_len = 0;  ///< Tokens from here on are scored; at least 1.
};

/// "stop", "length", "aborted", "error".
[[nodiscard]] std::string_view to_string(Finish finish);

/// What continues an aborted completion.
[[nodiscard]] Prefix prefix_of(const Completion& completion);

}  // namespace troupe::generate
