#include "data/bpe_trainer.h"

#include <algorithm>
#include <map>
#include <queue>
#include <set>
#include <unordered_map>
#include <unordered_set>

#include "data/byte_spelling.h"
#include "data/pair_table.h"
#include "data/patterns.h"
#include "data/pre_tokenizer.h"
#include "data/tokenizer_readers.h"
#include "data/utf8.h"

namespace troupe::data {
namespace {

constexpr std::string_view kUnknown = "<unk>";

// A distinct piece of the corpus, as the tokens it consists of so far.
struct Word {
  std::vector<std::int32_t> ids;
  std::int64_t count = 0;
};

// Learns merges: the most frequent pair becomes a token, again and again. Equal counts: the pair
// whose bytes come first.
class Learner {
 public:
  explicit Learner(const std::map<std::string, std::int64_t>& words) {
    for (int b = 0; b < 256; ++b) bytes_.emplace_back(1, static_cast<char>(b));
    for (const auto& [text, count] : words) {
      Word word;
      word.count = count;
      for (const char c : text) word.ids.push_back(static_cast<std::uint8_t>(c));
      words_.push_back(std::move(word));
    }
    for (std::size_t w = 0; w < words_.size(); ++w)
      for (std::size_t i = 0; i + 1 < words_[w].ids.size(); ++i)
        count_pair(words_[w].ids[i], words_[w].ids[i + 1], words_[w].count, w);
    for (const auto& [key, pair] : pairs_) offer(key, pair.count);
  }

  // Returns false when no pair is frequent enough.
  bool learn_one(std::int64_t frequency_min) {
    while (!queue_.empty()) {
      const Candidate best = queue_.top();
      queue_.pop();
      const auto it = pairs_.find(best.key);
      if (it == pairs_.end() || it->second.count != best.count) continue; // counted anew since
      if (best.count < frequency_min) return false;
      merge(best.key);
      return true;
    }
    return false;
  }

  [[nodiscard]] const std::vector<std::string>& bytes() const { return bytes_; }
  [[nodiscard]] const std::vector<std::pair<std::int32_t, std::int32_t>>& merges() const { return merges_; }

 private:
  struct Pair {
    std::int64_t count = 0;
    std::unordered_set<std::size_t> words; // where it occurs, or did
  };
  struct Candidate {
    std::int64_t count;
    std::uint64_t key;
    std::string left, right;
    bool operator<(const Candidate& other) const {
      if (count != other.count) return count < other.count;
      return std::tie(left, right) > std::tie(other.left, other.right);
    }
  };

  void count_pair(std::int32_t left, std::int32_t right, std::int64_t count, std::size_t word) {
    auto& pair = pairs_[pair_key(left, right)];
    pair.count += count;
    if (count > 0) pair.words.insert(word);
  }
  void offer(std::uint64_t key, std::int64_t count) {
    if (count > 0) queue_.push({count, key, bytes_[key >> 32], bytes_[key & 0xFFFFFFFFu]});
  }

  void merge(std::uint64_t key) {
    const auto left = static_cast<std::int32_t>(key >> 32), right = static_cast<std::int32_t>(key & 0xFFFFFFFFu);
    const auto joined = static_cast<std::int32_t>(bytes_.size());
    bytes_.push_back(bytes_[static_cast<std::size_t>(left)] + bytes_[static_cast<std::size_t>(right)]);
    merges_.emplace_back(left, right);
    const auto places = std::move(pairs_[key].words);
    std::set<std::uint64_t> touched;
    for (const std::size_t w : places) {
      auto& word = words_[w];
      const auto change = [&](std::size_t i, std::int64_t sign) {
        count_pair(word.ids[i], word.ids[i + 1], sign * word.count, w);
        touched.insert(pair_key(word.ids[i], word.ids[i + 1]));
      };
      // Recount the whole word: words are short, and this stays right for repeated and overlapping pairs.
      for (std::size_t i = 0; i + 1 < word.ids.size(); ++i) change(i, -1);
      std::vector<std::int32_t> ids;
      for (std::size_t i = 0; i < word.ids.size(); ++i) {
        const bool here = i + 1 < word.ids.size() && word.ids[i] == left && word.ids[i + 1] == right;
        ids.push_back(here ? joined : word.ids[i]);
        i += here;
      }
      word.ids = std::move(ids);
      for (std::size_t i = 0; i + 1 < word.ids.size(); ++i) change(i, 1);
    }
    for (const auto k : touched) {
      const auto it = pairs_.find(k);
      if (it->second.count == 0)
        pairs_.erase(it);
      else
        offer(k, it->second.count);
    }
  }

  std::vector<Word> words_;
  std::vector<std::string> bytes_;
  std::vector<std::pair<std::int32_t, std::int32_t>> merges_;
  std::unordered_map<std::uint64_t, Pair> pairs_;
  std::priority_queue<Candidate> queue_;
};

void add_bytes(TokenizerSpec& spec) {
  for (int b = 0; b < 256; ++b) spec.vocab.push_back(spell_bytes(std::string(1, static_cast<char>(b))));
}

Status add_pattern(const VocabularyOptions& options, TokenizerSpec& spec) {
  TROUPE_TRY(auto named, find_pattern(options.pattern));
  if (named.nfc) spec.normalizers.push_back({});
  spec.pre_tokenizers = std::move(named.pre_tokenizers);
  return {};
}

Status learn(const VocabularyOptions& options, std::span<const std::string> corpus, TokenizerSpec& spec) {
  if (options.size < 256)
    return fail(ErrorCode::kInvalidArgument,
                "size is " + std::to_string(options.size) + "; a vocabulary of kind bpe has at least the 256 bytes");
  if (options.frequency_min < 1)
    return fail(ErrorCode::kInvalidArgument,
                "frequency_min is " + std::to_string(options.frequency_min) + "; it must be at least 1");
  if (corpus.empty()) return fail(ErrorCode::kInvalidArgument, "a vocabulary of kind bpe needs a corpus");
  TROUPE_TRY(const auto pre_tokenizer, PreTokenizer::create(spec.pre_tokenizers));
  std::map<std::string, std::int64_t> words; // ordered: the result must not depend on hashing
  PreTokenizer::Scratch scratch;
  for (const auto& text : corpus) {
    const std::string valid = replace_ill_formed(text);
    for (const auto piece : pre_tokenizer.split(valid, scratch)) ++words[std::string(piece)];
  }
  Learner learner(words);
  while (learner.bytes().size() < static_cast<std::size_t>(options.size) && learner.learn_one(options.frequency_min)) {
  }
  for (std::size_t id = 256; id < learner.bytes().size(); ++id) spec.vocab.push_back(spell_bytes(learner.bytes()[id]));
  spec.merges = learner.merges();
  return {};
}

// One token per character and word, found as whole pieces: the pattern cuts words first, longest
// first, then single characters.
Status add_characters(const VocabularyOptions& options, TokenizerSpec& spec) {
  if (!is_valid_utf8(options.alphabet)) return fail(ErrorCode::kInvalidArgument, "alphabet is not UTF-8");
  std::set<std::string> seen;
  const auto add = [&](std::string text, const char* field) -> Status {
    if (text.empty() || !is_valid_utf8(text))
      return fail(ErrorCode::kInvalidArgument, std::string(field) + " has an empty or ill-formed entry");
    if (!seen.insert(text).second)
      return fail(ErrorCode::kInvalidArgument, std::string(field) + " has '" + text + "' twice");
    spec.vocab.push_back(spell_bytes(text));
    return {};
  };
  for (std::string_view rest = options.alphabet; !rest.empty();) {
    const std::size_t length = utf8_step(rest).length;
    TROUPE_TRY_STATUS(add(std::string(rest.substr(0, length)), "alphabet"));
    rest.remove_prefix(length);
  }
  for (const auto& word : options.words) TROUPE_TRY_STATUS(add(word, "words"));
  if (spec.vocab.empty())
    return fail(ErrorCode::kInvalidArgument, "a vocabulary of kind characters needs an alphabet or words");
  auto words = options.words;
  std::stable_sort(words.begin(), words.end(), [](const auto& a, const auto& b) { return a.size() > b.size(); });
  PreTokenizerStep step;
  for (const auto& word : words) {
    if (!step.pattern.empty()) step.pattern += '|';
    for (const char c : word) {
      if (std::string_view(R"(\^$.[]|()?*+{}-#&~/)").find(c) != std::string_view::npos) step.pattern += '\\';
      step.pattern += c;
    }
  }
  step.pattern += step.pattern.empty() ? R"([\s\S])" : R"(|[\s\S])";
  spec.pre_tokenizers.push_back(std::move(step));
  PreTokenizerStep bytes;
  bytes.kind = PreTokenizerStep::Kind::kByteLevel;
  spec.pre_tokenizers.push_back(std::move(bytes));
  spec.ignore_merges = true;
  spec.unknown = kUnknown;
  spec.fuse_unknown = true;
  spec.added.push_back({static_cast<std::int32_t>(spec.vocab.size()), std::string(kUnknown), true});
  spec.vocab.emplace_back(kUnknown);
  return {};
}

Status add_control_tokens(const VocabularyOptions& options, TokenizerSpec& spec) {
  auto next = static_cast<std::int32_t>(spec.vocab.size());
  for (const auto& name : options.added) {
    if (name == options.eos) spec.eos = next;
    if (name == options.pad) spec.pad = next;
    spec.added.push_back({next++, name, true});
  }
  if (!spec.eos)
    return fail(ErrorCode::kInvalidArgument, "eos is '" + options.eos + "', which is not among the added tokens");
  if (!options.pad.empty() && !spec.pad)
    return fail(ErrorCode::kInvalidArgument, "pad is '" + options.pad + "', which is not among the added tokens");
  return {};
}

} // namespace

Result<Tokenizer> make_vocabulary(const VocabularyOptions& options, std::span<const std::string> corpus) {
  TokenizerSpec spec;
  spec.decoders.push_back({});
  if (options.kind == "characters") {
    TROUPE_TRY_STATUS(add_characters(options, spec));
  } else if (options.kind == "bytes" || options.kind == "bpe") {
    add_bytes(spec);
    TROUPE_TRY_STATUS(add_pattern(options, spec));
    if (options.kind == "bpe") TROUPE_TRY_STATUS(learn(options, corpus, spec));
  } else {
    return fail(ErrorCode::kInvalidArgument,
                "kind is '" + options.kind + "'; vocabularies are of kind bpe, bytes or characters");
  }
  TROUPE_TRY_STATUS(add_control_tokens(options, spec));
  return Tokenizer::create(std::move(spec), "vocabulary");
}

} // namespace troupe::data
