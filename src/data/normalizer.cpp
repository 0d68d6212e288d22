#include "data/normalizer.h"

#include <unicode/bytestream.h>
#include <unicode/locid.h>
#include <unicode/normalizer2.h>
#include <unicode/uchar.h>
#include <unicode/unistr.h>

#include <algorithm>
#include <optional>

#include "base/check.h"
#include "data/utf8.h"

namespace troupe::data {
namespace {

using Kind = NormalizerStep::Kind;

bool is_ascii(std::string_view text) {
  return std::all_of(text.begin(), text.end(), [](char c) { return static_cast<unsigned char>(c) < 0x80; });
}

const icu::Normalizer2* unicode_form(Kind kind) {
  UErrorCode error = U_ZERO_ERROR;
  const icu::Normalizer2* form = kind == Kind::kNfc    ? icu::Normalizer2::getNFCInstance(error)
                                 : kind == Kind::kNfd  ? icu::Normalizer2::getNFDInstance(error)
                                 : kind == Kind::kNfkc ? icu::Normalizer2::getNFKCInstance(error)
                                                       : icu::Normalizer2::getNFKDInstance(error);
  TROUPE_CHECK(U_SUCCESS(error), "ICU has no normalisation data");
  return form;
}

// Nothing when the text is in the form already.
std::optional<std::string> normalize(std::string_view text, Kind kind) {
  if (is_ascii(text)) return std::nullopt;
  const icu::Normalizer2* form = unicode_form(kind);
  UErrorCode error = U_ZERO_ERROR;
  const icu::StringPiece piece(text.data(), static_cast<std::int32_t>(text.size()));
  if (form->isNormalizedUTF8(piece, error) && U_SUCCESS(error)) return std::nullopt;
  error = U_ZERO_ERROR;
  std::string out;
  icu::StringByteSink<std::string> sink(&out);
  form->normalizeUTF8(0, piece, sink, nullptr, error);
  TROUPE_CHECK(U_SUCCESS(error), "ICU could not normalise valid UTF-8");
  return out;
}

// Character by character, without context, as Hugging Face does.
std::string lowercase(std::string_view text) {
  std::string out;
  out.reserve(text.size());
  while (!text.empty()) {
    const Utf8Step step = utf8_step(text);
    if (step.code_point < 0x80)
      out.push_back(static_cast<char>(u_tolower(static_cast<UChar32>(step.code_point))));
    else
      icu::UnicodeString(static_cast<UChar32>(step.code_point)).toLower(icu::Locale::getRoot()).toUTF8String(out);
    text.remove_prefix(step.length);
  }
  return out;
}

std::string replace(std::string_view text, const Regex& pattern, std::string_view content, RegexScratch& scratch) {
  std::string out;
  std::size_t at = 0;
  while (const auto match = pattern.find(text, at, scratch)) {
    out.append(text.substr(at, match->begin - at)).append(content);
    at = match->end;
  }
  return out.append(text.substr(at));
}

} // namespace

Result<Normalizer> Normalizer::create(const std::vector<NormalizerStep>& steps) {
  Normalizer out;
  for (const auto& step : steps) {
    Step compiled{step, {}};
    if (step.kind == Kind::kReplace) {
      TROUPE_TRY(auto regex, Regex::compile(step.pattern, step.is_regex));
      compiled.regex.push_back(std::move(regex));
    }
    out.steps_.push_back(std::move(compiled));
  }
  return out;
}

std::string_view Normalizer::apply(std::string_view text, std::string& buffer, RegexScratch& scratch) const {
  std::string_view now = text;
  for (const auto& [what, regex] : steps_) {
    std::optional<std::string> changed;
    switch (what.kind) {
      case Kind::kNfc:
      case Kind::kNfd:
      case Kind::kNfkc:
      case Kind::kNfkd:
        changed = normalize(now, what.kind);
        break;
      case Kind::kLowercase:
        changed = lowercase(now);
        break;
      case Kind::kReplace:
        changed = replace(now, regex.front(), what.content, scratch);
        break;
      case Kind::kPrepend:
        if (!now.empty()) changed = what.content + std::string(now);
        break;
      case Kind::kStrip:
        if (what.strip_left) now.remove_prefix(space_prefix(now));
        if (what.strip_right) now.remove_suffix(space_suffix(now));
        break;
    }
    if (changed) {
      buffer = std::move(*changed);
      now = buffer;
    }
  }
  return now;
}

std::size_t space_prefix(std::string_view text) {
  std::size_t at = 0;
  while (at < text.size()) {
    const Utf8Step step = utf8_step(text.substr(at));
    if (!u_isUWhiteSpace(static_cast<UChar32>(step.code_point))) break;
    at += step.length;
  }
  return at;
}

std::size_t space_suffix(std::string_view text) {
  std::size_t end = text.size();
  while (end > 0) {
    std::size_t begin = end - 1;
    while (begin > 0 && (static_cast<unsigned char>(text[begin]) & 0xC0) == 0x80) --begin;
    if (!u_isUWhiteSpace(static_cast<UChar32>(utf8_step(text.substr(begin)).code_point))) break;
    end = begin;
  }
  return text.size() - end;
}

} // namespace troupe::data
