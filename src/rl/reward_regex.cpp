#define PCRE2_CODE_UNIT_WIDTH 8
#include "rl/reward_regex.h"

#include <pcre2.h>

namespace troupe::rl {
namespace {

// About 50 ms of backtracking, over all matches of one reply; far above any pattern for an answer.
constexpr std::uint32_t kMatchLimit = 1'000'000;
constexpr std::uint32_t kHeapLimitKib = 16 << 10;
constexpr int kMatchesMax = 10'000;

std::string reason(int code) {
  PCRE2_UCHAR text[160];
  pcre2_get_error_message(code, text, sizeof text);
  return reinterpret_cast<const char*>(text);
}

struct Matching {
  explicit Matching(const pcre2_code* code) : data(pcre2_match_data_create_from_pattern(code, nullptr)), context(pcre2_match_context_create(nullptr)) {
    pcre2_set_match_limit(context, kMatchLimit);
    pcre2_set_heap_limit(context, kHeapLimitKib);
  }
  Matching(const Matching&) = delete;
  ~Matching() {
    pcre2_match_data_free(data);
    pcre2_match_context_free(context);
  }
  pcre2_match_data* data;
  pcre2_match_context* context;
};

} // namespace

void RewardRegex::Free::operator()(void* code) const { pcre2_code_free(static_cast<pcre2_code*>(code)); }

Result<RewardRegex> RewardRegex::compile(std::string_view pattern, bool ignore_case) {
  int code = 0;
  PCRE2_SIZE offset = 0;
  const std::uint32_t options = PCRE2_UTF | PCRE2_MATCH_INVALID_UTF | (ignore_case ? PCRE2_CASELESS : 0);
  pcre2_code* compiled = pcre2_compile(reinterpret_cast<PCRE2_SPTR>(pattern.data()), pattern.size(), options, &code, &offset, nullptr);
  if (compiled == nullptr)
    return fail(ErrorCode::kInvalidConfig, "reward.pattern \"" + std::string(pattern) + "\" is wrong at offset " + std::to_string(offset) +
                                               ": " + reason(code));
  RewardRegex regex;
  regex.code_.reset(compiled);
  std::uint32_t groups = 0;
  pcre2_pattern_info(compiled, PCRE2_INFO_CAPTURECOUNT, &groups);
  regex.has_group_ = groups > 0;
  return regex;
}

Result<std::optional<RewardRegex::Match>> RewardRegex::last_match(std::string_view text) const {
  const auto* code = static_cast<const pcre2_code*>(code_.get());
  const Matching matching(code);
  std::optional<Match> last;
  PCRE2_SIZE at = 0;
  for (int i = 0; i < kMatchesMax && at <= text.size(); ++i) {
    const int found = pcre2_match(code, reinterpret_cast<PCRE2_SPTR>(text.data()), text.size(), at, 0, matching.data, matching.context);
    if (found == PCRE2_ERROR_NOMATCH) return last;
    if (found < 0) return fail(ErrorCode::kResourceExhausted, "the pattern of the regex reward gave up on a reply: " + reason(found));
    const PCRE2_SIZE* range = pcre2_get_ovector_pointer(matching.data);
    if (range[1] < range[0]) return last; // \K behind the end of the match
    last = Match{text.substr(range[0], range[1] - range[0]), std::nullopt};
    if (found > 1 && range[2] != PCRE2_UNSET) last->group = text.substr(range[2], range[3] - range[2]);
    at = range[1] > at ? range[1] : at + 1; // an empty match must not be found for ever
  }
  return last;
}

} // namespace troupe::rl
