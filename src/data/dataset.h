/// @file
/// Documents from JSONL files, in an order that is a function of (seed, epoch), cut out at a cursor that can be saved.
#pragma once

#include <cstdint>
#include <filesystem>
#include <string>
#include <string_view>
#include <vector>

#include "base/result.h"
#include "data/chat.h"
#include "data/options.h"

namespace troupe::data {

/// One line of a training file. What is trained: all of `text`; the completion; what the assistant says.
struct Example {
  enum class Kind : std::uint8_t { kText, kPromptCompletion, kMessages };
  Kind kind = Kind::kText;
  std::string text;               ///< kText.
  std::string prompt, completion; ///< kPromptCompletion.
  std::vector<Message> messages;  ///< kMessages; an assistant says something in it.
  std::string tools = {};         ///< kMessages: a JSON list of function definitions, or empty.
  std::int64_t line = 0;          ///< 1-based.
};

/// One task: a conversation so far, and the right answer.
struct TaskRow {
  std::vector<Message> messages;
  std::string answer;
  std::int64_t line = 0;
};

/// Reads and checks a whole training file; keeps the lines of `split`. Blank lines are skipped.
/// Errors: kNotFound; kCorrupt at "file:line" for bad JSON, ill-formed UTF-8, a missing field, a wrong type, mixed
/// kinds; kInvalidArgument for an empty file or split.
[[nodiscard]] Result<std::vector<Example>> read_examples(const DatasetOptions& options, Split split);

/// Reads and checks a whole task file; keeps the lines of `split`. Errors: as read_examples.
[[nodiscard]] Result<std::vector<TaskRow>> read_tasks(const TaskFileOptions& options, Split split);

/// A document as tokens. `sampled[i]` = token i is to be learned (prompts are not).
struct Document {
  std::vector<std::int32_t> ids;
  std::vector<std::uint8_t> sampled;
};

/// Encodes an example: text gets the tokenizer's begin-of-text token and ends in end-of-text; a completion and every
/// assistant turn end in the format's stop token, which is learned. One document, or several where the format's template shows earlier turns
/// otherwise than they were said (PromptFormat::documents).
/// Errors: kInvalidArgument "file:line" when it is longer than the context and too_long is kError, or the template refuses it.
[[nodiscard]] Result<std::vector<Document>> encode_example(const Example& example, const PromptFormat& format,
                                              const Tokenizer& tokenizer, const DatasetOptions& options);

/// Where a stream stands: everything before was handed out. Part of a checkpoint.
struct Cursor {
  std::uint64_t epoch = 0;
  std::uint64_t index = 0; ///< Position in the epoch's order.
  friend bool operator==(const Cursor&, const Cursor&) = default;
};

/// The order of one epoch: a permutation of 0..count-1 that depends on (seed, epoch) only. Identity without shuffle.
[[nodiscard]] std::vector<std::uint32_t> epoch_order(std::uint64_t count, std::uint64_t seed, std::uint64_t epoch,
                                                     bool shuffle);

/// Endless indices 0..count-1, every one once per epoch.
class IndexStream {
 public:
  /// `count` at least 1.
  IndexStream(std::uint64_t count, std::uint64_t seed, bool shuffle);
  /// The index at the cursor, without moving.
  [[nodiscard]] std::uint32_t peek();
  void advance();
  [[nodiscard]] Cursor cursor() const { return cursor_; }
  /// Errors: kInvalidArgument for a position outside the epoch (the data set changed).
  [[nodiscard]] Status seek(Cursor cursor);

 private:
  std::uint64_t count_, seed_;
  bool shuffle_;
  Cursor cursor_;
  std::uint64_t order_epoch_ = ~std::uint64_t{0};
  std::vector<std::uint32_t> order_;
};

} // namespace troupe::data
