#include "data/bpe.h"

#include <algorithm>
#include <cstdio>
#include <cstring>
#include <set>
#include <tuple>

#include "data/utf8.h"

namespace troupe::data {
namespace {

constexpr std::size_t kShortPiece = 40; // up to here scanning beats a heap

std::string quoted(const std::string& text) { return "'" + text + "'"; }

} // namespace

Result<Bpe> Bpe::create(const TokenizerSpec& spec, const std::vector<std::string>& token_bytes) {
  Bpe bpe;
  bpe.byte_level_ = spec.byte_level();
  bpe.ignore_merges_ = spec.ignore_merges;
  bpe.fuse_unknown_ = spec.fuse_unknown;
  std::set<std::int32_t> added, special;
  for (const auto& token : spec.added) {
    added.insert(token.id);
    if (token.special) special.insert(token.id);
  }

  std::unordered_map<std::string_view, std::int32_t, TextHash, std::equal_to<>> by_spelling;
  by_spelling.reserve(spec.vocab.size());
  for (std::size_t id = 0; id < spec.vocab.size(); ++id) {
    if (spec.vocab[id].empty()) continue;
    const auto [other, is_new] = by_spelling.emplace(spec.vocab[id], static_cast<std::int32_t>(id));
    if (!is_new)
      return fail(ErrorCode::kCorrupt, "token " + quoted(spec.vocab[id]) + " has two ids, " +
                                           std::to_string(other->second) + " and " + std::to_string(id));
  }
  bpe.byte_id_.fill(-1);
  for (std::size_t id = 0; id < spec.vocab.size(); ++id) {
    // Added tokens are not reachable from plain text, whatever the vocabulary says.
    if (spec.vocab[id].empty() || added.contains(static_cast<std::int32_t>(id))) continue;
    const std::string& bytes = token_bytes[id];
    if (bpe.byte_level_ && bytes.size() == 1)
      bpe.byte_id_[static_cast<std::uint8_t>(bytes[0])] = static_cast<std::int32_t>(id);
    if (!bpe.byte_level_ || bpe.ignore_merges_)
      bpe.pieces_.emplace(bpe.byte_level_ ? bytes : spec.vocab[id], static_cast<std::int32_t>(id));
  }
  if (!bpe.byte_level_ && spec.byte_fallback) {
    for (int b = 0; b < 256; ++b) {
      char name[8];
      std::snprintf(name, sizeof name, "<0x%02X>", b);
      if (const auto it = by_spelling.find(name); it != by_spelling.end()) bpe.byte_id_[b] = it->second;
    }
  }
  if (!spec.unknown.empty()) {
    const auto it = by_spelling.find(spec.unknown);
    if (it == by_spelling.end())
      return fail(ErrorCode::kCorrupt, "the unknown token " + quoted(spec.unknown) + " is not in the vocabulary");
    bpe.unknown_ = it->second;
  }

  bpe.merges_ = PairTable(spec.merges.size());
  std::string joined;
  for (std::size_t rank = 0; rank < spec.merges.size(); ++rank) {
    const auto [left, right] = spec.merges[rank];
    joined = spec.vocab[left] + spec.vocab[right];
    const auto it = by_spelling.find(joined);
    if (it == by_spelling.end())
      return fail(ErrorCode::kCorrupt,
                  "merge " + std::to_string(rank) + " makes " + quoted(joined) + ", which is not in the vocabulary");
    if (special.contains(it->second)) continue; // a control token is never made by merging
    if (!bpe.merges_.insert(pair_key(left, right),
                            static_cast<std::uint64_t>(rank) << 32 | static_cast<std::uint32_t>(it->second)))
      return fail(ErrorCode::kCorrupt, "merge " + std::to_string(rank) + " (" + quoted(spec.vocab[left]) + ", " +
                                           quoted(spec.vocab[right]) + ") is given twice");
  }
  return bpe;
}

void Bpe::symbols_of(std::string_view piece, std::vector<std::int32_t>& out) const {
  out.clear();
  const auto unknown = [&] {
    if (unknown_ >= 0 && !(fuse_unknown_ && !out.empty() && out.back() == unknown_)) out.push_back(unknown_);
  };
  if (byte_level_) {
    for (const char c : piece) {
      const std::int32_t id = byte_id_[static_cast<std::uint8_t>(c)];
      id >= 0 ? out.push_back(id) : unknown();
    }
    return;
  }
  while (!piece.empty()) {
    const std::string_view character = piece.substr(0, utf8_step(piece).length);
    piece.remove_prefix(character.size());
    if (const auto it = pieces_.find(character); it != pieces_.end()) {
      out.push_back(it->second);
    } else if (std::all_of(character.begin(), character.end(),
                           [&](char c) { return byte_id_[static_cast<std::uint8_t>(c)] >= 0; })) {
      for (const char c : character) out.push_back(byte_id_[static_cast<std::uint8_t>(c)]);
    } else {
      unknown();
    }
  }
}

void Bpe::encode(std::string_view piece, std::vector<std::int32_t>& out, BpeScratch& scratch) const {
  BpeScratch::CacheEntry* entry = nullptr;
  if (piece.size() <= std::tuple_size_v<decltype(entry->text)>) {
    const std::uint64_t hash = hash64(piece);
    entry = &scratch.cache[hash % BpeScratch::kCacheEntries];
    if (entry->count > 0 && entry->hash == hash && entry->bytes == piece.size() &&
        std::memcmp(entry->text.data(), piece.data(), piece.size()) == 0) {
      out.insert(out.end(), entry->ids.begin(), entry->ids.begin() + entry->count);
      return;
    }
    entry->hash = hash;
  }
  const std::size_t before = out.size();
  encode_uncached(piece, out, scratch);
  if (entry == nullptr) return;
  const std::size_t count = out.size() - before;
  entry->count = count <= entry->ids.size() ? static_cast<std::uint8_t>(count) : std::uint8_t{0};
  if (entry->count == 0) return;
  entry->bytes = static_cast<std::uint8_t>(piece.size());
  std::copy(piece.begin(), piece.end(), entry->text.begin());
  std::copy(out.begin() + static_cast<std::ptrdiff_t>(before), out.end(), entry->ids.begin());
}

void Bpe::encode_uncached(std::string_view piece, std::vector<std::int32_t>& out, BpeScratch& scratch) const {
  if (ignore_merges_) {
    if (const auto it = pieces_.find(piece); it != pieces_.end()) {
      out.push_back(it->second);
      return;
    }
  }
  auto& symbols = scratch.symbols;
  symbols_of(piece, symbols);
  symbols.size() <= kShortPiece ? merge_short(symbols) : merge_long(symbols, scratch);
  out.insert(out.end(), symbols.begin(), symbols.end());
}

void Bpe::merge_short(std::vector<std::int32_t>& symbols) const {
  std::array<std::uint64_t, kShortPiece> merge; // of symbols i and i + 1
  std::size_t n = symbols.size();
  for (std::size_t i = 0; i + 1 < n; ++i) merge[i] = merge_of(symbols[i], symbols[i + 1]);
  while (n > 1) {
    std::size_t best = 0;
    for (std::size_t i = 1; i + 1 < n; ++i)
      if (merge[i] >> 32 < merge[best] >> 32) best = i;
    if (merge[best] == PairTable::kAbsent) break;
    symbols[best] = static_cast<std::int32_t>(merge[best] & 0xFFFFFFFFu);
    for (std::size_t i = best + 1; i + 1 < n; ++i) {
      symbols[i] = symbols[i + 1];
      merge[i - 1] = merge[i]; // all pairs move left; the two at `best` are redone below
    }
    --n;
    if (best > 0) merge[best - 1] = merge_of(symbols[best - 1], symbols[best]);
    if (best + 1 < n) merge[best] = merge_of(symbols[best], symbols[best + 1]);
  }
  symbols.resize(n);
}

void Bpe::merge_long(std::vector<std::int32_t>& symbols, BpeScratch& scratch) const {
  auto& nodes = scratch.nodes;
  auto& heap = scratch.heap;
  const auto n = static_cast<std::int32_t>(symbols.size());
  nodes.resize(symbols.size());
  heap.clear();
  for (std::int32_t i = 0; i < n; ++i) nodes[i] = {symbols[i], i - 1, i + 1 < n ? i + 1 : -1};
  const auto later = [](const BpeScratch::Candidate& a, const BpeScratch::Candidate& b) {
    return a.rank != b.rank ? a.rank > b.rank : a.left > b.left;
  };
  const auto offer = [&](std::int32_t left) {
    if (left < 0 || nodes[left].next < 0) return false;
    const std::int32_t right_id = nodes[nodes[left].next].id;
    const std::uint64_t merge = merge_of(nodes[left].id, right_id);
    if (merge == PairTable::kAbsent) return false;
    heap.push_back({static_cast<std::uint32_t>(merge >> 32), left, nodes[left].id, right_id,
                    static_cast<std::int32_t>(merge & 0xFFFFFFFFu)});
    return true;
  };
  for (std::int32_t i = 0; i < n; ++i) offer(i);
  std::make_heap(heap.begin(), heap.end(), later);
  while (!heap.empty()) {
    std::pop_heap(heap.begin(), heap.end(), later);
    const BpeScratch::Candidate c = heap.back();
    heap.pop_back();
    auto& left = nodes[c.left];
    if (left.id != c.left_id || left.next < 0 || nodes[left.next].id != c.right_id)
      continue; // an older state of these nodes
    auto& right = nodes[left.next];
    left.id = c.id;
    right.id = -1;
    left.next = right.next;
    if (left.next >= 0) nodes[left.next].previous = c.left;
    if (offer(left.previous)) std::push_heap(heap.begin(), heap.end(), later);
    if (offer(c.left)) std::push_heap(heap.begin(), heap.end(), later);
  }
  symbols.clear();
  for (std::int32_t i = n == 0 ? -1 : 0; i >= 0; i = nodes[i].next) symbols.push_back(nodes[i].id);
}

} // namespace troupe::data
