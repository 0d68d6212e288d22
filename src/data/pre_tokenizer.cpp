#include "data/pre_tokenizer.h"

namespace troupe::data {
namespace {

using Kind = PreTokenizerStep::Kind;
using Pieces = std::vector<std::string_view>;

void push(Pieces& out, std::string_view piece) {
  if (!piece.empty()) out.push_back(piece);
}

// Collects the parts of one piece, told from left to right which of them are matches, by the behaviour of the step.
class Splitter {
 public:
  Splitter(Pieces& out, SplitBehavior behavior) : out_(&out), behavior_(behavior) {}

  void part(std::string_view text, bool is_match) {
    if (text.empty()) return;
    switch (behavior_) {
      case SplitBehavior::kIsolated:
        out_->push_back(text);
        break;
      case SplitBehavior::kRemoved:
        if (!is_match) out_->push_back(text);
        break;
      case SplitBehavior::kContiguous:
        join(text, any_ && is_match == last_match_);
        break;
      case SplitBehavior::kMergedWithPrevious:
        join(text, any_ && is_match && !last_match_);
        break;
      case SplitBehavior::kMergedWithNext:
        join(text, any_ && last_match_ && !is_match);
        break;
    }
    last_match_ = is_match;
    any_ = true;
  }

 private:
  // Parts are neighbours in memory, so that a join only lengthens the view.
  void join(std::string_view text, bool to_last) {
    if (to_last)
      out_->back() = {out_->back().data(), out_->back().size() + text.size()};
    else
      out_->push_back(text);
  }

  Pieces* out_;
  SplitBehavior behavior_;
  bool last_match_ = false, any_ = false;
};

void split_piece(std::string_view piece, const Regex& regex, SplitBehavior behavior, bool invert, RegexScratch& scratch,
                 Pieces& out) {
  Splitter splitter(out, behavior);
  std::size_t at = 0;
  while (const auto match = regex.find(piece, at, scratch)) {
    splitter.part(piece.substr(at, match->begin - at), invert);
    splitter.part(piece.substr(match->begin, match->end - match->begin), !invert);
    at = match->end;
  }
  splitter.part(piece.substr(at), invert);
}

// Every piece that does not begin with a space gets one.
void add_prefix_spaces(const Pieces& pieces, std::string& buffer, Pieces& out) {
  std::size_t bytes = 0;
  for (const auto piece : pieces) bytes += piece.size() + 1;
  std::string text;
  text.reserve(bytes); // no growth below: the views stay valid
  for (const auto piece : pieces) {
    const std::size_t begin = text.size();
    if (!piece.starts_with(' ')) text += ' ';
    text += piece;
    push(out, std::string_view(text.data() + begin, text.size() - begin));
  }
  buffer.swap(text);
  // A short text lies inside the string object, which the swap has moved: point at the new place.
  const char* at = buffer.data();
  for (auto& piece : out) {
    piece = {at, piece.size()};
    at += piece.size();
  }
}

} // namespace

Result<PreTokenizer> PreTokenizer::create(const std::vector<PreTokenizerStep>& steps) {
  PreTokenizer out;
  for (std::size_t i = 0; i < steps.size(); ++i) {
    const auto& step = steps[i];
    Step compiled{step.behavior, step.invert, false, true, {}};
    std::string_view pattern = step.pattern;
    if (step.kind == Kind::kDigits) {
      pattern = step.individual_digits ? R"(\p{N})" : R"(\p{N}+)";
    } else if (step.kind == Kind::kByteLevel) {
      pattern = kGpt2Pattern;
      compiled.add_prefix_space = step.add_prefix_space;
      compiled.has_pattern = step.use_regex;
    }
    if (compiled.has_pattern) {
      auto regex = Regex::compile(pattern, step.kind != Kind::kSplit || step.is_regex);
      if (!regex)
        return fail(ErrorCode::kInvalidArgument,
                    "pre-tokenizer step " + std::to_string(i) + ": " + regex.error().message);
      compiled.regex.push_back(std::move(*regex));
    }
    out.steps_.push_back(std::move(compiled));
  }
  return out;
}

const Pieces& PreTokenizer::split(std::string_view text, Scratch& scratch) const {
  auto& pieces = scratch.pieces;
  auto& next = scratch.next;
  pieces.clear();
  push(pieces, text);
  for (const auto& step : steps_) {
    if (step.add_prefix_space) {
      next.clear();
      std::string earlier = std::move(scratch.prefixed); // pieces may point into it
      scratch.prefixed.clear();
      add_prefix_spaces(pieces, scratch.prefixed, next);
      pieces.swap(next);
    }
    if (!step.has_pattern) continue;
    next.clear();
    for (const auto piece : pieces)
      split_piece(piece, step.regex.front(), step.behavior, step.invert, scratch.regex, next);
    pieces.swap(next);
  }
  return pieces;
}

} // namespace troupe::data
