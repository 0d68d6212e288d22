#define PCRE2_CODE_UNIT_WIDTH 8
#include "data/regex.h"

#include <pcre2.h>

#include <cctype>

#include "base/check.h"
#include "base/log.h"

namespace troupe::data {
namespace {

// Unicode White_Space. PCRE2's own \s has U+180E besides, which has not been white space since Unicode 6.3.
constexpr std::string_view kSpace =
    R"(\x{9}-\x{D}\x{20}\x{85}\x{A0}\x{1680}\x{2000}-\x{200A}\x{2028}\x{2029}\x{202F}\x{205F}\x{3000})";
constexpr std::string_view kNotSpace =
    R"(\x{0}-\x{8}\x{E}-\x{1F}\x{21}-\x{84}\x{86}-\x{9F}\x{A1}-\x{167F}\x{1681}-\x{1FFF}\x{200B}-\x{2027})"
    R"(\x{202A}-\x{202E}\x{2030}-\x{205E}\x{2060}-\x{2FFF}\x{3001}-\x{10FFFF})";

// Deep enough for every published pattern on megabytes of one character class; JIT falls back to
// the interpreter beyond.
constexpr std::size_t kJitStackStart = 32 << 10, kJitStackMax = 8 << 20;
constexpr std::uint32_t kMatchLimit = 50'000'000;

tl::unexpected<Error> refuse(std::string_view what, std::size_t at) {
  return fail(ErrorCode::kInvalidArgument,
              std::string(what) + " at offset " + std::to_string(at) + " is not supported in patterns");
}

// Copies one escape sequence that starts at pattern[i] (a backslash); moves i behind it.
Status translate_escape(std::string_view pattern, std::size_t& i, bool in_class, std::string& out) {
  if (i + 1 >= pattern.size()) return fail(ErrorCode::kInvalidArgument, "a backslash ends the pattern");
  const char c = pattern[i + 1];
  const std::size_t at = i;
  i += 2;
  if (c == 's' || c == 'S') {
    const std::string_view members = c == 's' ? kSpace : kNotSpace;
    out += in_class ? std::string(members) : "[" + std::string(members) + "]";
    return {};
  }
  if (std::string_view("rntfvadDpPxz").find(c) != std::string_view::npos ||
      !std::isalnum(static_cast<unsigned char>(c))) {
    out += '\\';
    out += c;
    // The braces of \p{L} and \x{41} are no repetition.
    if (std::string_view("pPx").find(c) != std::string_view::npos && pattern.substr(i).starts_with('{')) {
      const std::size_t close = pattern.find('}', i);
      if (close == std::string_view::npos) return refuse("{ without }", i);
      out += pattern.substr(i, close + 1 - i);
      i = close + 1;
    }
    return {};
  }
  if (c == 'u' && i + 4 <= pattern.size()) {
    for (std::size_t k = i; k < i + 4; ++k)
      if (!std::isxdigit(static_cast<unsigned char>(pattern[k])))
        return refuse("\\u without four hexadecimal digits", at);
    out += "\\x{" + std::string(pattern.substr(i, 4)) + "}";
    i += 4;
    return {};
  }
  return refuse(std::string("\\") + c, at);
}

Result<std::string> translate(std::string_view pattern) {
  std::string out;
  bool in_class = false, class_start = false;
  for (std::size_t i = 0; i < pattern.size();) {
    const char c = pattern[i];
    if (c == '\\') {
      TROUPE_TRY_STATUS(translate_escape(pattern, i, in_class, out));
      class_start = false;
      continue;
    }
    if (in_class) {
      if (c == '[') return refuse("a class inside a class", i);
      if (c == '&' && pattern.substr(i).starts_with("&&")) return refuse("an intersection of classes (&&)", i);
      if (c == ']' && !class_start) in_class = false;
      if (c != '^' || !class_start) class_start = false;
    } else {
      if (c == '[') in_class = class_start = true;
      if (c == '}' && pattern.substr(i).starts_with("}+")) return refuse("}+", i);
      if (c == '(' && pattern.substr(i).starts_with("(*")) return refuse("(*", i);
    }
    out += c;
    ++i;
  }
  return out;
}

std::string quote(std::string_view literal) {
  std::string out;
  for (const char c : literal) {
    if (static_cast<unsigned char>(c) < 0x80 && !std::isalnum(static_cast<unsigned char>(c)) && c != '\0') out += '\\';
    if (c == '\0')
      out += "\\x{0}";
    else
      out += c;
  }
  return out;
}

} // namespace

struct RegexScratch::Memory {
  pcre2_match_data* match = pcre2_match_data_create(1, nullptr);
  pcre2_match_context* context = pcre2_match_context_create(nullptr);
  pcre2_jit_stack* stack = pcre2_jit_stack_create(kJitStackStart, kJitStackMax, nullptr);
  Memory() {
    TROUPE_CHECK(match && context && stack, "out of memory");
    pcre2_set_match_limit(context, kMatchLimit);
    pcre2_jit_stack_assign(context, nullptr, stack);
  }
  Memory(const Memory&) = delete;
  ~Memory() {
    pcre2_match_data_free(match);
    pcre2_match_context_free(context);
    pcre2_jit_stack_free(stack);
  }
};

RegexScratch::RegexScratch() : memory_(std::make_unique<Memory>()) {}
RegexScratch::RegexScratch(RegexScratch&&) noexcept = default;
RegexScratch& RegexScratch::operator=(RegexScratch&&) noexcept = default;
RegexScratch::~RegexScratch() = default;

struct Regex::Code {
  pcre2_code* code;
  explicit Code(pcre2_code* c) : code(c) {}
  Code(const Code&) = delete;
  ~Code() { pcre2_code_free(code); }
};

Regex::Regex(std::unique_ptr<Code> code) : code_(std::move(code)) {}
Regex::Regex(Regex&&) noexcept = default;
Regex& Regex::operator=(Regex&&) noexcept = default;
Regex::~Regex() = default;

Result<Regex> Regex::compile(std::string_view pattern, bool is_regex) {
  std::string translated;
  if (is_regex) {
    TROUPE_TRY(translated, translate(pattern));
  } else {
    translated = quote(pattern);
  }
  int code = 0;
  PCRE2_SIZE offset = 0;
  pcre2_code* compiled = pcre2_compile(reinterpret_cast<PCRE2_SPTR>(translated.data()), translated.size(),
                                       PCRE2_UTF | PCRE2_UCP, &code, &offset, nullptr);
  if (compiled == nullptr) {
    char reason[128] = {};
    pcre2_get_error_message(code, reinterpret_cast<PCRE2_UCHAR*>(reason), sizeof reason);
    return fail(ErrorCode::kInvalidArgument, std::string("the pattern does not compile: ") + reason);
  }
  pcre2_jit_compile(compiled, PCRE2_JIT_COMPLETE); // without JIT the interpreter gives the same matches
  return Regex(std::make_unique<Code>(compiled));
}

std::optional<Regex::Match> Regex::find(std::string_view subject, std::size_t start, RegexScratch& scratch) const {
  const auto& memory = *scratch.memory_;
  const auto text = reinterpret_cast<PCRE2_SPTR>(subject.data());
  const PCRE2_SIZE* span = pcre2_get_ovector_pointer(memory.match);
  while (start < subject.size()) {
    int found = pcre2_match(code_->code, text, subject.size(), start, PCRE2_NO_UTF_CHECK, memory.match, memory.context);
    if (found == PCRE2_ERROR_JIT_STACKLIMIT)
      found = pcre2_match(code_->code, text, subject.size(), start, PCRE2_NO_UTF_CHECK | PCRE2_NO_JIT, memory.match,
                          memory.context);
    if (found == PCRE2_ERROR_NOMATCH) return std::nullopt;
    if (found < 0) {
      log_warning("a tokenizer pattern gave up on a text (PCRE2 error " + std::to_string(found) +
                  "); the rest stays one piece");
      return std::nullopt;
    }
    if (span[1] > span[0]) return Match{span[0], span[1]};
    start = span[0] + 1; // an empty match: go on behind the next character
    while (start < subject.size() && (static_cast<unsigned char>(subject[start]) & 0xC0) == 0x80) ++start;
  }
  return std::nullopt;
}

} // namespace troupe::data
