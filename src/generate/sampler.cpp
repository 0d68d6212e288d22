#include "generate/sampler.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <sstream>

#include "kernels/logprob.h"

namespace troupe::generate {
namespace {

// Weights are float32: shares that differ by less than this are the same to top-p and min-p.
constexpr double kTolerance = 1e-6;

float full_logprob(std::span<const float> logits, std::int32_t id, double temperature) {
  float logprob = 0;
  kernels::LogprobForward args;
  args.logits = logits.data();
  args.targets = &id;
  args.logprob = &logprob;
  args.rows = 1;
  args.vocab = static_cast<std::int64_t>(logits.size());
  args.temperature = static_cast<float>(temperature);
  kernels::logprob_forward(args);
  return logprob;
}

// The largest logit, or NaN when there is nothing sound to sample from.
float largest(std::span<const float> logits) {
  float max = -std::numeric_limits<float>::infinity();
  bool sound = true;
  for (const float x : logits) {
    sound = sound && x == x;
    max = x > max ? x : max;
  }
  return sound && std::isfinite(max) ? max : std::numeric_limits<float>::quiet_NaN();
}

// The first item at which the running sum exceeds `uniform` of the total. Items of weight 0 are never it.
template <class Items, class Weight>
std::size_t draw(const Items& items, double total, double uniform, Weight weight) {
  const double mark = uniform * total;
  double sum = 0;
  std::size_t last = 0;
  for (std::size_t i = 0; i < items.size(); ++i) {
    const double w = weight(items[i]);
    if (w <= 0) continue;
    sum += w;
    last = i;
    if (sum > mark) return i;
  }
  return last;
}

Status bad(std::string_view name, double value, std::string_view range) {
  std::ostringstream text;
  text << "sampling: " << name << " is " << value << ", must be " << range;
  return fail(ErrorCode::kInvalidArgument, text.str());
}

}  // namespace

Sampled Sampler::sample(std::span<const float> logits, const SamplingParams& params, double uniform) {
  const float max = largest(logits);
  if (std::isnan(max)) return {};
  if (params.temperature == 0) {
    const auto id = static_cast<std::int32_t>(std::find(logits.begin(), logits.end(), max) - logits.begin());
    return {id, full_logprob(logits, id, 1), 1};
  }

  const float inverse = 1 / static_cast<float>(params.temperature);
  weights_.resize(logits.size());
  double total = 0;
  for (std::size_t i = 0; i < logits.size(); ++i) {
    weights_[i] = std::exp((logits[i] - max) * inverse);
    total += static_cast<double>(weights_[i]);
  }

  const auto whole = static_cast<int>(logits.size());
  const bool filtered = (params.top_k > 0 && params.top_k < whole) || params.top_p < 1 || params.min_p > 0;
  if (filtered) truncate(params, total);
  if (!filtered || static_cast<int>(candidates_.size()) == whole) {
    const auto id =
        static_cast<std::int32_t>(draw(weights_, total, uniform, [](float w) { return static_cast<double>(w); }));
    return {id, full_logprob(logits, id, params.temperature), whole};
  }

  double mass = 0;
  for (const Candidate& c : candidates_) mass += static_cast<double>(c.weight);
  const std::size_t chosen =
      draw(candidates_, mass, uniform, [](const Candidate& c) { return static_cast<double>(c.weight); });
  const std::int32_t id = candidates_[chosen].id;
  const double logit = static_cast<double>(logits[static_cast<std::size_t>(id)] - max) / params.temperature;
  return {id, static_cast<float>(logit - std::log(mass)), static_cast<int>(candidates_.size())};
}

void Sampler::truncate(const SamplingParams& params, double total) {
  candidates_.resize(weights_.size());
  for (std::size_t i = 0; i < weights_.size(); ++i) candidates_[i] = {weights_[i], static_cast<std::int32_t>(i)};
  const auto before = [](const Candidate& a, const Candidate& b) {
    return a.weight != b.weight ? a.weight > b.weight : a.id < b.id;
  };
  double mass = total;
  if (params.top_k > 0 && static_cast<std::size_t>(params.top_k) < candidates_.size()) {
    std::nth_element(candidates_.begin(), candidates_.begin() + params.top_k, candidates_.end(), before);
    candidates_.resize(static_cast<std::size_t>(params.top_k));
    std::sort(candidates_.begin(), candidates_.end(),
              [](const Candidate& a, const Candidate& b) { return a.id < b.id; });
    mass = 0;
    for (const Candidate& c : candidates_) mass += static_cast<double>(c.weight);
  }

  // Takes the most likely ones off a heap until their mass is there: a nucleus is small, the vocabulary is not.
  const auto after = [&before](const Candidate& a, const Candidate& b) { return before(b, a); };
  std::make_heap(candidates_.begin(), candidates_.end(), after);
  const double enough = params.top_p < 1 ? (params.top_p - kTolerance) * mass : std::numeric_limits<double>::infinity();
  auto heap_end = candidates_.end();
  for (double sum = 0; heap_end != candidates_.begin();) {
    const Candidate& next = candidates_.front();
    const bool first = heap_end == candidates_.end();  // always stays
    if (!first && (sum >= enough || static_cast<double>(next.weight) < params.min_p * (1 - kTolerance))) break;
    sum += static_cast<double>(next.weight);
    std::pop_heap(candidates_.begin(), heap_end--, after);
  }
  candidates_.erase(candidates_.begin(), heap_end);
  std::sort(candidates_.begin(), candidates_.end(), [](const Candidate& a, const Candidate& b) { return a.id < b.id; });
}

Status check(const SamplingParams& p) {
  constexpr double kColdest = 1e-3;  // below this z / temperature leaves float32
  if (!(p.temperature == 0 || (p.temperature >= kColdest && std::isfinite(p.temperature))))
    return bad("temperature", p.temperature, "0 (greedy) or at least 0.001");
  if (!(p.top_p > 0 && p.top_p <= 1)) return bad("top_p", p.top_p, "above 0 and at most 1");
  if (!(p.min_p >= 0 && p.min_p <= 1)) return bad("min_p", p.min_p, "from 0 to 1");
  if (p.top_k < 0) return bad("top_k", p.top_k, "0 (all) or more");
  if (p.max_new_tokens < 1) return bad("max_new_tokens", p.max_new_tokens, "at least 1");
  for (const std::string& stop : p.stop_strings)
    if (stop.empty())
      return fail(ErrorCode::kInvalidArgument,
                  "sampling: stop_strings holds an empty string, which would stop everywhere");
  return {};
}

}  // namespace troupe::generate
