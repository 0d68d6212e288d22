/// @file
/// What a user can set about data. Plain structs; src/cli binds them to TOML keys.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace troupe::data {

/// Which half of a data set or of a problem space a text belongs to. Decided by a hash of the text, see split.h.
enum class Split : std::uint8_t { kTrain, kEval };

/// Where a tokenizer comes from.
struct TokenizerOptions {
  /// A folder with tokenizer.json (or encoder.json + vocab.bpe, or vocab.json + merges.txt), a tokenizer.json, a .gguf
  /// file, or a .tiktoken rank file.
  std::string path;
  /// For rank files only: the named splitting pattern ("qwen2", "qwen3_5", "llama3", "o200k", ...).
  /// Empty: from the file's name.
  std::string pattern;
};

/// How a vocabulary is made from scratch.
struct VocabularyOptions {
  /// "bpe": bytes plus merges learned from a corpus. "bytes": the 256 bytes. "characters": only
  /// `alphabet` and `words`, and `<unk>`.
  std::string kind = "bytes";
  /// For "bpe": ids below the added tokens, at least 256.
  int size = 512;
  /// For "bpe": pairs seen less often than this are not merged.
  int frequency_min = 2;
  /// The named splitting pattern of "bpe" and "bytes".
  std::string pattern = "gpt-2";
  /// For "characters": every character that gets an id, in this order.
  std::string alphabet = "0123456789+-*=? ";
  /// For "characters": words that are one token each, matched longest first.
  std::vector<std::string> words;
  /// Control tokens, in id order after everything else. The names give their role: see `eos` and `pad`.
  std::vector<std::string> added = {"<|endoftext|>", "<|im_start|>", "<|im_end|>"};
  /// Name of the end-of-text token; must be in `added`.
  std::string eos = "<|endoftext|>";
  /// Name of the padding token; must be in `added`, or empty.
  std::string pad = "<|endoftext|>";
};

/// What happens to a document that is longer than the context.
enum class TooLong : std::uint8_t { kError, kTruncate };

/// A JSONL file of documents to train on.
struct DatasetOptions {
  /// The .jsonl file. Every line is an object with `text`, or `prompt` and `completion`, or
  /// `messages`; one kind per file.
  std::string path;
  /// How conversations become tokens: data::FormatSource::name.
  std::string format = "auto";
  /// The part of the documents held out for evaluation, by hash of their text.
  double eval_fraction = 0.0;
  /// Shuffle anew each epoch; off keeps the order of the file.
  bool shuffle = true;
  /// Tokens of one packed batch at most. Documents are never cut to fill it.
  int tokens_per_batch = 4096;
  /// Tokens of one document at most (the model's context).
  int context_tokens = 2048;
  /// What happens to a longer one.
  TooLong too_long = TooLong::kError;
};

/// A JSONL file of tasks: a prompt and the right answer per line.
struct TaskFileOptions {
  /// The .jsonl file.
  std::string path;
  /// The field with the prompt: a string, or a list of {role, content}.
  std::string prompt_field = "prompt";
  /// The field with the answer: a string or a number.
  std::string answer_field = "answer";
  /// The part held out for evaluation, by hash of the prompt.
  double eval_fraction = 0.1;
};

/// Arithmetic problems made by rule.
struct ArithmeticOptions {
  /// "sums": an expression such as 23+45. "word_problems": a little story.
  std::string kind = "sums";
  /// For "sums": the least and greatest operand.
  int operand_min = 10;
  int operand_max = 99;
  /// For "sums": which of + - * occur. Differences are never negative.
  std::string operators = "+";
  /// For "sums": the question; {expr} stands for the expression.
  std::string question = "{expr}=";
  /// For "word_problems": the number of things that happen in the story.
  int steps_min = 1;
  int steps_max = 2;
  /// For "word_problems": no number in the story is greater.
  int number_max = 20;
  /// The part of all problems that belongs to the evaluation split, by hash of the question.
  double eval_fraction = 0.1;
};

} // namespace troupe::data
