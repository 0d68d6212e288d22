#include "data/added_tokens.h"

#include <unicode/uchar.h>

#include <algorithm>

#include "data/normalizer.h"
#include "data/utf8.h"

namespace troupe::data {
namespace {

bool is_word(char32_t c) {
  const auto u = static_cast<UChar32>(c);
  const auto mask = U_GET_GC_MASK(u);
  return u_hasBinaryProperty(u, UCHAR_ALPHABETIC) || (mask & (U_GC_M_MASK | U_GC_ND_MASK | U_GC_PC_MASK)) != 0;
}

bool ends_with_word(std::string_view text) {
  if (text.empty()) return false;
  std::size_t begin = text.size() - 1;
  while (begin > 0 && (static_cast<unsigned char>(text[begin]) & 0xC0) == 0x80) --begin;
  return is_word(utf8_step(text.substr(begin)).code_point);
}

bool starts_with_word(std::string_view text) { return !text.empty() && is_word(utf8_step(text).code_point); }

} // namespace

std::optional<std::uint32_t> AddedTokenMatcher::child(std::uint32_t node, std::uint8_t byte) const {
  const auto& edges = nodes_[node].edges;
  const auto it =
      std::lower_bound(edges.begin(), edges.end(), byte, [](const Edge& e, std::uint8_t b) { return e.byte < b; });
  if (it == edges.end() || it->byte != byte) return std::nullopt;
  return it->node;
}

void AddedTokenMatcher::insert(std::string_view content, const AddedToken& token) {
  if (content.empty()) return;
  first_[static_cast<std::uint8_t>(content[0])] = true;
  std::uint32_t node = 0;
  for (const char c : content) {
    const auto byte = static_cast<std::uint8_t>(c);
    if (const auto next = child(node, byte)) {
      node = *next;
      continue;
    }
    const auto made = static_cast<std::uint32_t>(nodes_.size());
    auto& edges = nodes_[node].edges;
    edges.insert(
        std::lower_bound(edges.begin(), edges.end(), byte, [](const Edge& e, std::uint8_t b) { return e.byte < b; }),
        {byte, made});
    nodes_.emplace_back();
    node = made;
  }
  if (nodes_[node].token >= 0) return; // the first of two equal names wins
  nodes_[node].token = static_cast<std::int32_t>(tokens_.size());
  tokens_.push_back({token.id, token.lstrip, token.rstrip, token.single_word});
}

std::optional<AddedTokenMatcher::Match> AddedTokenMatcher::find(std::string_view text, std::size_t start) const {
  for (std::size_t begin = start; begin < text.size(); ++begin) {
    if (!first_[static_cast<std::uint8_t>(text[begin])]) continue;
    std::uint32_t node = 0;
    std::int32_t longest = -1;
    std::size_t end = begin;
    for (std::size_t i = begin; i < text.size(); ++i) {
      const auto next = child(node, static_cast<std::uint8_t>(text[i]));
      if (!next) break;
      node = *next;
      if (nodes_[node].token >= 0) longest = nodes_[node].token, end = i + 1;
    }
    if (longest < 0) continue;
    const Token& token = tokens_[static_cast<std::size_t>(longest)];
    if (token.single_word && (ends_with_word(text.substr(0, begin)) || starts_with_word(text.substr(end)))) {
      begin = end - 1; // as Hugging Face does, the search goes on behind it
      continue;
    }
    Match match{begin, end, token.id};
    if (token.lstrip) match.begin -= space_suffix(text.substr(start, begin - start));
    if (token.rstrip) match.end += space_prefix(text.substr(end));
    return match;
  }
  return std::nullopt;
}

} // namespace troupe::data
