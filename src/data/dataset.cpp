#include "data/dataset.h"

#include <algorithm>
#include <array>
#include <functional>
#include <numeric>

#include "base/check.h"
#include "base/file.h"
#include "base/rng.h"
#include "data/json.h"
#include "data/split.h"
#include "data/utf8.h"

namespace troupe::data {
namespace {

// Calls `each` with every line that is not blank, parsed, and its number.
Status for_each_line(const std::string& path, const std::function<Status(const JsonView&, std::int64_t)>& each) {
  TROUPE_TRY(const auto text, read_file(path));
  std::string_view rest = text;
  if (rest.starts_with("\xEF\xBB\xBF")) rest.remove_prefix(3);
  std::int64_t number = 0;
  while (!rest.empty()) {
    const std::size_t end = std::min(rest.find('\n'), rest.size());
    const std::string_view line = rest.substr(0, end);
    rest.remove_prefix(std::min(end + 1, rest.size()));
    ++number;
    if (line.find_first_not_of(" \t\r") == std::string_view::npos) continue;
    const std::string where = path + ":" + std::to_string(number);
    if (!is_valid_utf8(line)) return fail(ErrorCode::kCorrupt, "the line has ill-formed UTF-8", where);
    auto json = parse_json(line, where);
    if (!json) return fail(ErrorCode::kCorrupt, "the line " + json.error().message, where);
    const JsonView view(*json, where);
    TROUPE_TRY_STATUS(view.require_object());
    TROUPE_TRY_STATUS(each(view, number));
  }
  return {};
}

// What templates know of a message besides role and content.
constexpr std::array<const char*, 6> kFurther = {"reasoning_content", "thinking", "tool_calls", "tool_call_id", "name", "tools"};

std::string further_fields(const nlohmann::json& message) {
  nlohmann::ordered_json more = nlohmann::ordered_json::object();
  for (const char* key : kFurther)
    if (message.contains(key) && !message[key].is_null()) more[key] = nlohmann::ordered_json(message[key]);
  return more.empty() ? std::string() : more.dump();
}

Result<Message> read_message(const JsonView& item) {
  Message message;
  TROUPE_TRY(const auto role, item.at("role"));
  TROUPE_TRY(message.role, role.string());
  if (message.role != "system" && message.role != "user" && message.role != "assistant" && message.role != "tool")
    return role.error(ErrorCode::kCorrupt, "is '" + message.role + "'; roles are system, user, assistant and tool");
  message.more = further_fields(item.value());
  // A turn of nothing but calls may do without text.
  const bool calls = message.role == "assistant" && item.value().contains("tool_calls") && item.value()["tool_calls"].is_array();
  const auto content = item.find("content");
  if (calls && (!content || content->value().is_null())) return message;
  TROUPE_TRY(const auto text, item.at("content"));
  TROUPE_TRY(message.content, text.string());
  return message;
}

Result<std::vector<Message>> read_messages(const JsonView& list) {
  TROUPE_TRY(const auto count, list.array_size());
  if (count == 0) return list.error(ErrorCode::kCorrupt, "is an empty list");
  std::vector<Message> messages;
  for (std::size_t i = 0; i < count; ++i) {
    TROUPE_TRY(auto message, read_message(list.element(i)));
    messages.push_back(std::move(message));
  }
  return messages;
}

std::string_view kind_fields(Example::Kind kind) {
  switch (kind) {
    case Example::Kind::kText:
      return "text";
    case Example::Kind::kPromptCompletion:
      return "prompt and completion";
    case Example::Kind::kMessages:
      return "messages";
  }
  return "";
}

Result<Example> read_example(const JsonView& line) {
  Example example;
  const auto text = line.find("text"), prompt = line.find("prompt"), completion = line.find("completion"),
             messages = line.find("messages");
  const int kinds = int(text.has_value()) + int(prompt || completion) + int(messages.has_value());
  if (kinds == 0)
    return line.error(ErrorCode::kCorrupt, "has none of the fields text, prompt and completion, or messages");
  if (kinds > 1)
    return line.error(ErrorCode::kCorrupt, "mixes the fields text, prompt and completion, and messages; use one kind");
  if (text) {
    TROUPE_TRY(example.text, text->string());
    if (example.text.empty()) return text->error(ErrorCode::kCorrupt, "is empty");
  } else if (messages) {
    example.kind = Example::Kind::kMessages;
    TROUPE_TRY(example.messages, read_messages(*messages));
    if (const auto tools = line.find("tools"); tools && !tools->value().is_null()) {
      if (!tools->value().is_array()) return tools->wrong_type("a list of function definitions");
      example.tools = tools->value().dump();
    }
    if (std::none_of(example.messages.begin(), example.messages.end(),
                     [](const Message& m) { return m.role == "assistant"; }))
      return messages->error(ErrorCode::kCorrupt,
                             "holds nothing that an assistant says, so that there is nothing to learn");
  } else {
    example.kind = Example::Kind::kPromptCompletion;
    TROUPE_TRY(const auto p, line.at("prompt"));
    TROUPE_TRY(const auto c, line.at("completion"));
    TROUPE_TRY(example.prompt, p.string());
    TROUPE_TRY(example.completion, c.string());
  }
  return example;
}

std::string text_of(const std::vector<Message>& messages) {
  std::string text;
  for (const auto& message : messages)
    text.append(message.role).append(1, '\0').append(message.content).append(1, '\0');
  return text;
}

// What the split is decided by: the prompt where there is one, so that a prompt never stands on
// both sides with two completions.
std::string identity_of(const Example& example) {
  switch (example.kind) {
    case Example::Kind::kText:
      return example.text;
    case Example::Kind::kPromptCompletion:
      return example.prompt;
    case Example::Kind::kMessages:
      break;
  }
  const auto first_reply = std::find_if(example.messages.begin(), example.messages.end(),
                                        [](const Message& m) { return m.role == "assistant"; });
  return text_of({example.messages.begin(), first_reply});
}

tl::unexpected<Error> nothing_left(const std::string& path, bool any_line, Split split) {
  if (!any_line) return fail(ErrorCode::kInvalidArgument, "the file holds no lines", path);
  return fail(ErrorCode::kInvalidArgument,
              std::string("no line falls into the ") + (split == Split::kEval ? "evaluation" : "training") +
                  " split; change eval_fraction or give more lines",
              path);
}

} // namespace

Result<std::vector<Example>> read_examples(const DatasetOptions& options, Split split) {
  std::vector<Example> examples;
  std::optional<Example::Kind> kind;
  TROUPE_TRY_STATUS(for_each_line(options.path, [&](const JsonView& line, std::int64_t number) -> Status {
    TROUPE_TRY(auto example, read_example(line));
    if (kind && example.kind != *kind)
      return line.error(ErrorCode::kCorrupt, "has " + std::string(kind_fields(example.kind)) +
                                                 " where earlier lines have " + std::string(kind_fields(*kind)) +
                                                 "; use one kind per file");
    kind = example.kind;
    example.line = number;
    if (split_of(identity_of(example), options.eval_fraction) == split) examples.push_back(std::move(example));
    return {};
  }));
  if (examples.empty()) return nothing_left(options.path, kind.has_value(), split);
  return examples;
}

Result<std::vector<TaskRow>> read_tasks(const TaskFileOptions& options, Split split) {
  std::vector<TaskRow> rows;
  bool any_line = false;
  TROUPE_TRY_STATUS(for_each_line(options.path, [&](const JsonView& line, std::int64_t number) -> Status {
    any_line = true;
    TaskRow row;
    row.line = number;
    TROUPE_TRY(const auto prompt, line.at(options.prompt_field));
    if (prompt.value().is_array()) {
      TROUPE_TRY(row.messages, read_messages(prompt));
    } else if (prompt.value().is_string()) {
      TROUPE_TRY(auto content, prompt.string());
      row.messages = {{"user", std::move(content)}};
    } else {
      return prompt.wrong_type("a string or a list of messages");
    }
    TROUPE_TRY(const auto answer, line.at(options.answer_field));
    if (answer.value().is_number())
      row.answer = answer.value().dump();
    else if (answer.value().is_string())
      row.answer = answer.value().get<std::string>();
    else
      return answer.wrong_type("a string or a number");
    if (split_of(text_of(row.messages), options.eval_fraction) == split) rows.push_back(std::move(row));
    return {};
  }));
  if (rows.empty()) return nothing_left(options.path, any_line, split);
  return rows;
}

namespace {

Result<std::vector<Document>> encode_conversation(const Example& example, const PromptFormat& format, const Tokenizer& tokenizer, const std::string& where) {
  const auto messages = example.kind == Example::Kind::kMessages ? example.messages
                                                                 : std::vector<Message>{{"user", example.prompt}, {"assistant", example.completion}};
  ChatExtras extras;
  extras.tools = example.tools;
  extras.now = kTrainingDate;
  auto rendered = format.documents(messages, tokenizer, extras);
  if (!rendered) return fail(rendered.error().code, std::move(rendered).error().message, where);
  std::vector<Document> documents;
  for (Rendered& one : *rendered) {
    Document& document = documents.emplace_back(Document{std::move(one.ids), std::move(one.sampled)});
    // What follows the last learned token (the line end of its turn) teaches nothing.
    while (!document.sampled.empty() && document.sampled.back() == 0) document.ids.pop_back(), document.sampled.pop_back();
  }
  return documents;
}

Result<Document> encode_text(const Example& example, const Tokenizer& tokenizer, const std::string& where) {
  if (!tokenizer.eos())
    return fail(ErrorCode::kInvalidArgument,
                "text needs an end-of-text token, which the tokenizer does not name (eos_token in tokenizer_config.json)", where);
  Document document;
  document.ids = tokenizer.with_template(tokenizer.encode(example.text, Special::kPlain));
  if (document.ids.empty() || document.ids.back() != *tokenizer.eos()) document.ids.push_back(*tokenizer.eos());
  document.sampled.assign(document.ids.size(), 1);
  return document;
}

} // namespace

Result<std::vector<Document>> encode_example(const Example& example, const PromptFormat& format, const Tokenizer& tokenizer,
                                             const DatasetOptions& options) {
  const std::string where = options.path + ":" + std::to_string(example.line);
  std::vector<Document> documents;
  if (example.kind == Example::Kind::kText) {
    TROUPE_TRY(auto document, encode_text(example, tokenizer, where));
    documents.push_back(std::move(document));
  } else {
    TROUPE_TRY(documents, encode_conversation(example, format, tokenizer, where));
  }
  const auto context = static_cast<std::size_t>(options.context_tokens);
  for (Document& document : documents) {
    if (document.ids.size() <= context) continue;
    if (options.too_long == TooLong::kError)
      return fail(ErrorCode::kInvalidArgument,
                  "the document has " + std::to_string(document.ids.size()) + " tokens and the context " +
                      std::to_string(context) + "; shorten it, raise context_tokens, or set too_long = \"truncate\"",
                  where);
    document.ids.resize(context);
    document.sampled.resize(context);
  }
  return documents;
}

std::vector<std::uint32_t> epoch_order(std::uint64_t count, std::uint64_t seed, std::uint64_t epoch, bool shuffle) {
  TROUPE_CHECK(count < (std::uint64_t{1} << 32), "an order holds 32-bit indices");
  std::vector<std::uint32_t> order(count);
  std::iota(order.begin(), order.end(), 0u);
  if (!shuffle) return order;
  Rng rng(seed, RngStream::kShuffle, epoch);
  for (std::uint64_t i = count; i > 1; --i) std::swap(order[i - 1], order[rng.below(i)]);
  return order;
}

IndexStream::IndexStream(std::uint64_t count, std::uint64_t seed, bool shuffle)
    : count_(count), seed_(seed), shuffle_(shuffle) {
  TROUPE_CHECK(count > 0, "a stream of nothing never ends");
}

std::uint32_t IndexStream::peek() {
  if (order_epoch_ != cursor_.epoch) {
    order_ = epoch_order(count_, seed_, cursor_.epoch, shuffle_);
    order_epoch_ = cursor_.epoch;
  }
  return order_[cursor_.index];
}

void IndexStream::advance() {
  if (++cursor_.index == count_) cursor_ = {cursor_.epoch + 1, 0};
}

Status IndexStream::seek(Cursor cursor) {
  if (cursor.index >= count_)
    return fail(ErrorCode::kInvalidArgument, "the saved position " + std::to_string(cursor.index) +
                                                 " is outside the data set of " + std::to_string(count_) +
                                                 " entries; has the file changed since the run began?");
  cursor_ = cursor;
  return {};
}

} // namespace troupe::data
