/// @file
/// What the config says about generation.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "base/units.h"
#include "kernels/device.h"

namespace troupe::generate {

/// What running requests do with their KV entries when new weights arrive.
enum class OnUpdate {
  kKeepKv,       ///< Go on with the entries of the old weights: no pause, log-probs of a mixture.
  kRecomputeKv,  ///< Prefill again under the new weights: exact from then on, costs one prefill a request.
};

/// The size and the limits of one engine.
struct EngineOptions {
  int page_tokens = 16;           ///< Tokens in a page of the KV cache; a multiple of 16.
  Bytes kv_memory{256ull << 20};  ///< Memory of the KV cache; decides the number of pages unless `kv_pages` does.
  int kv_pages = 0;               ///< Pages of the KV cache; 0 = as many as fit `kv_memory`.
  int sequences_max = 64;         ///< Requests that generate at once.
  int prefill_tokens = 512;       ///< Prompt tokens computed in one step, beside one token of every generating request.
  int waiting_max = 8192;         ///< Requests that may wait for space; more are refused.
  int context_tokens = 0;         ///< Longest prompt plus completion; 0 = what the model was made for.
  int cached_prompts_max = 256;   ///< Prompts kept for further samples of their group; 0 = none are shared.
  bool reuse_prefixes = false;    ///< What finished requests computed is kept too, and prompts go on from the longest beginning that is there.
  OnUpdate on_update = OnUpdate::kKeepKv;  ///< See OnUpdate.
  kernels::Where sampling = kernels::Where::kHost;  ///< Where tokens are drawn from logits of which nothing is cut off.
  int draft_tokens = 0;           ///< Tokens guessed ahead a step by the model's own block for further tokens; 0 or 1.
};

/// How one request samples. Filters apply in the order: temperature, top-k, top-p (of the mass top-k left), min-p.
struct SamplingParams {
  double temperature = 1;    ///< Divides the logits; 0 = greedy.
  double top_p = 1;          ///< Keeps the smallest set of most likely tokens with at least this mass.
  double min_p = 0;          ///< Keeps tokens with at least this share of the most likely one's probability.
  int top_k = 0;             ///< Keeps this many most likely tokens; 0 = all.
  int max_new_tokens = 256;  ///< Sampled tokens, those of a prefix included.
  std::vector<std::int32_t> stop_ids = {};  ///< A token of these ends the completion and is its last token.
  int alternatives = -1;  ///< Most likely tokens whose log-probs are kept at every position; -1: none, nor the sampled one's there.
  std::vector<std::string> stop_strings =
      {};  ///< Text that ends the completion; it is cut from the text, not from the ids.
};

}  // namespace troupe::generate
