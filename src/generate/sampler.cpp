#include "generate/sampler.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <sstream>

#include "base/check.h"
#include "kernels/offload.h"

namespace troupe::generate {
namespace {

// Weights are float32: shares that differ by less than this are the same to top-p and min-p.
constexpr double kTolerance = 1e-6;

bool filters(const SamplingParams& params, std::size_t vocabulary) {
  const bool top_k = params.top_k > 0 && static_cast<std::size_t>(params.top_k) < vocabulary;
  return params.temperature > 0 && (top_k || params.top_p < 1 || params.min_p > 0);
}

Status bad(std::string_view name, double value, std::string_view range) {
  std::ostringstream text;
  text << "sampling: " << name << " is " << value << ", must be " << range;
  return fail(ErrorCode::kInvalidArgument, text.str());
}

}  // namespace

Result<std::span<const Sampled>> Sampler::sample(std::span<const Draw> draws) {
  rows_.clear();
  whole_.clear();
  sampled_.resize(draws.size());
  for (std::size_t i = 0; i < draws.size(); ++i) {
    const Draw& draw = draws[i];
    if (filters(*draw.params, draw.logits.size())) {
      if (const auto truncated = sample_truncated(draw)) {
        sampled_[i] = *truncated;
        continue;
      }
    }
    rows_.push_back({draw.logits.data(), draw.uniform, static_cast<float>(draw.params->temperature)});
    whole_.push_back(i);
  }
  if (rows_.empty()) return std::span<const Sampled>(sampled_);
  const std::size_t vocabulary = draws.front().logits.size();
  TROUPE_TRY_STATUS(kernels::sample_rows(where_, rows_.data(), static_cast<std::int64_t>(rows_.size()), static_cast<std::int64_t>(vocabulary)));
  for (std::size_t i = 0; i < rows_.size(); ++i) {
    const bool greedy = rows_[i].temperature == 0;
    const int kept = rows_[i].id < 0 ? 0 : greedy ? 1 : static_cast<int>(vocabulary);
    sampled_[whole_[i]] = {rows_[i].id, rows_[i].id < 0 ? 0 : rows_[i].logprob, kept};
  }
  return std::span<const Sampled>(sampled_);
}

Sampled Sampler::sample(std::span<const float> logits, const SamplingParams& params, double uniform) {
  const Draw draw{logits, &params, uniform};
  TROUPE_CHECK(where_ == kernels::Where::kHost, "a single draw is the CPU's");
  return sample(std::span(&draw, 1))->front();
}

// Nothing where the filters keep every token.
std::optional<Sampled> Sampler::sample_truncated(const Draw& draw) {
  const auto vocabulary = static_cast<std::int64_t>(draw.logits.size());
  const auto temperature = static_cast<float>(draw.params->temperature);
  weights_.resize((draw.logits.size() + 15) / 16 * 16);
  const double total = kernels::softmax_weights(draw.logits.data(), vocabulary, temperature, weights_.data());
  if (std::isnan(total)) return Sampled{};
  weights_.resize(draw.logits.size());
  truncate(*draw.params, total);
  if (candidates_.size() == draw.logits.size()) return std::nullopt;

  double mass = 0;
  for (const Candidate& c : candidates_) mass += static_cast<double>(c.weight);
  const double mark = draw.uniform * mass;
  Candidate chosen{};
  double sum = 0;
  for (const Candidate& c : candidates_) {
    if (sum > mark) break;
    if (c.weight > 0) chosen = c;
    sum += static_cast<double>(c.weight);
  }
  const float largest = *std::max_element(draw.logits.begin(), draw.logits.end());
  const double logit = static_cast<double>(draw.logits[static_cast<std::size_t>(chosen.id)] - largest);
  return Sampled{chosen.id, static_cast<float>(logit / draw.params->temperature - std::log(mass)),
                 static_cast<int>(candidates_.size())};
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

std::vector<Alternative> alternatives(std::span<const float> logits, const SamplingParams& params, std::int32_t id) {
  const double temperature = params.temperature > 0 ? params.temperature : 1;
  const float most = *std::max_element(logits.begin(), logits.end());
  double sum = 0;
  for (const float logit : logits) sum += std::exp((static_cast<double>(logit) - most) / temperature);
  const double log_sum = std::log(sum);
  const auto scored = [&](std::int32_t token) {
    const double logprob = (static_cast<double>(logits[static_cast<std::size_t>(token)]) - most) / temperature - log_sum;
    return Alternative{token, static_cast<float>(logprob)};
  };
  std::vector<std::int32_t> order(logits.size());
  for (std::size_t i = 0; i < order.size(); ++i) order[i] = static_cast<std::int32_t>(i);
  const auto wanted = std::min(order.size(), static_cast<std::size_t>(std::max(params.alternatives, 0)));
  std::partial_sort(order.begin(), order.begin() + static_cast<std::ptrdiff_t>(wanted), order.end(), [&](std::int32_t a, std::int32_t b) {
    const float left = logits[static_cast<std::size_t>(a)], right = logits[static_cast<std::size_t>(b)];
    return left > right || (left == right && a < b);
  });
  std::vector<Alternative> out{scored(id)};
  for (std::size_t i = 0; i < wanted; ++i) out.push_back(scored(order[i]));
  return out;
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
