/// @file
/// What benchmarks of the generation engine share: random prompts, and running them to their end.
#pragma once

#include <utility>
#include <vector>

#include "base/rng.h"
#include "generate/engine.h"

namespace troupe::bench {

/// A request of its own prompt: nothing is shared, as in the peers. `salt` keeps repeats from finding their prompts in the cache.
[[nodiscard]] inline generate::Request random_request(std::uint64_t salt, int index, int vocabulary, int prompt, int fresh) {
  generate::Request r;
  r.id = {salt, static_cast<std::uint32_t>(index)};
  Rng rng(salt, RngStream::kTest, static_cast<std::uint64_t>(index));
  for (int t = 0; t < prompt; ++t) r.prompt.push_back(static_cast<std::int32_t>(rng.below(static_cast<std::uint64_t>(vocabulary))));
  r.sampling.max_new_tokens = fresh;
  return r;
}

/// Computes until all requests have as many tokens as they asked for.
[[nodiscard]] inline Status run_to_end(generate::Engine& engine, std::vector<generate::Request> requests) {
  for (auto& r : requests) TROUPE_TRY_STATUS(engine.submit(std::move(r)));
  while (!engine.idle())
    for (const auto& completion : engine.step().finished)
      if (completion.finish != generate::Finish::kLength)
        return fail(ErrorCode::kInternal, "a completion ended early: " + completion.error);
  return {};
}

}  // namespace troupe::bench
