#include "serve/reply_stream.h"

#include <algorithm>
#include <utility>

namespace troupe::serve {

namespace {

constexpr std::size_t kMarkBytesMax = 64; // longer than any mark of a grammar
constexpr std::string_view kBlank = " \t\r\n";

} // namespace

ReplyStream::ReplyStream(const data::Tokenizer& tokenizer, Options options)
    : tokenizer_(tokenizer), options_(std::move(options)), decoder_(tokenizer, !options_.format) {}

data::Reply ReplyStream::parse(std::string_view text) const {
  if (options_.format) return data::parse_reply(*options_.format, text, options_.thinking, options_.tools);
  data::Reply reply;
  reply.content = std::string(text);
  return reply;
}

// How much of the text nothing that follows can change the meaning of.
std::size_t ReplyStream::certain() {
  std::size_t end = text_.size(), longest = 0;
  for (const std::string& stop : options_.stops) {
    longest = std::max(longest, stop.size());
    if (const auto at = text_.find(stop, searched_); at != std::string::npos) end = std::min(end, at);
    for (std::size_t n = std::min(stop.size() - 1, text_.size()); n > 0; --n)
      if (text_.ends_with(std::string_view(stop).substr(0, n))) {
        end = std::min(end, text_.size() - n);
        break;
      }
  }
  if (end >= longest && end == text_.size()) searched_ = end - longest; // what is found once is found again
  if (!options_.format) return end;
  const std::size_t from = text_.size() - std::min(kMarkBytesMax, text_.size());
  const std::string_view tail = std::string_view(text_).substr(from);
  const auto open = tail.rfind('<');
  if (open != std::string_view::npos && tail.find('>', open) == std::string_view::npos) end = std::min(end, from + open);
  return end;
}

Delta ReplyStream::grow(std::string_view reasoning, std::string_view content) {
  Delta delta;
  if (reasoning.starts_with(said_.reasoning)) delta.reasoning = reasoning.substr(said_.reasoning.size());
  if (content.starts_with(said_.content)) delta.content = content.substr(said_.content.size());
  said_.reasoning += delta.reasoning;
  said_.content += delta.content;
  return delta;
}

Delta ReplyStream::push(std::int32_t id) {
  text_ += decoder_.push(id);
  const std::size_t end = certain();
  if (end <= parsed_ || end - parsed_ < text_.size() / 256) return {}; // looked at in steps that grow with the text
  parsed_ = end;
  const std::string_view text = std::string_view(text_).substr(0, end);
  if (options_.format == data::ReplyFormat::kLlama3) { // a whole reply of JSON is a call
    const auto first = text.find_first_not_of(kBlank);
    if (first == std::string_view::npos || text[first] == '{' || text[first] == '<') return {};
  }
  const data::Reply reply = parse(text);
  return grow(reply.reasoning, reply.content);
}

Delta ReplyStream::finish(const generate::Completion& completion) {
  const std::span<const std::int32_t> ids(completion.ids);
  const auto kept = ids.first(completion.text_tokens_kept);
  const bool cut = completion.text_bytes_kept < completion.text.size() || completion.text_tokens_kept + 1 < ids.size();
  // Grammars of messages want to see the token that ended the last one.
  const bool segments = options_.format == data::ReplyFormat::kHarmony || options_.format == data::ReplyFormat::kMuse;
  const bool token_ended = !cut && !ids.empty() && tokenizer_.is_added(ids.back());
  std::string text = tokenizer_.decode(segments && token_ended ? ids : kept, !options_.format);
  if (cut) text += completion.text.substr(std::min(completion.text_bytes_kept, completion.text.size()));
  data::Reply reply = parse(text);
  Delta delta = grow(reply.reasoning, reply.content);
  delta.calls = said_.calls = std::move(reply.calls);
  delta.problems = said_.problems = std::move(reply.problems);
  return delta;
}

} // namespace troupe::serve
