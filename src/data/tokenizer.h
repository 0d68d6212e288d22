/// @file
/// Text to token ids and back. A tokenizer is data (`TokenizerSpec`) compiled once; it never adds a token that was not
/// asked for. All const functions may be called from several threads.
#pragma once

#include <cstdint>
#include <filesystem>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/result.h"
#include "data/tokenizer_spec.h"

namespace troupe::data {

/// What text that looks like a control token means.
enum class Special : std::uint8_t {
  kPlain,   ///< Ordinary text: never a control or added token. For everything a user, a data set or a tool wrote.
  kSpecial, ///< The token itself. For text of our own, such as a rendered template.
};

/// A piece of a text and where it comes from.
struct TextPart {
  std::string text;
  bool from_input = false; ///< Somebody wrote it: never a control token, nor part of one.
  friend bool operator==(const TextPart&, const TextPart&) = default;
};

class Tokenizer {
 public:
  /// Reads whatever `path` is; see TokenizerOptions::path. `pattern` is for rank files.
  /// Errors: kNotFound; kCorrupt with the place in the file for anything malformed;
  /// kInvalidArgument naming an unsupported component.
  [[nodiscard]] static Result<Tokenizer> load(const std::filesystem::path& path, std::string_view pattern = {});

  /// Compiles a description. Errors: kCorrupt naming the entry that contradicts another;
  /// kInvalidArgument for a pattern that does not compile.
  [[nodiscard]] static Result<Tokenizer> create(TokenizerSpec spec, std::string where = {});

  Tokenizer(Tokenizer&&) noexcept;
  Tokenizer& operator=(Tokenizer&&) noexcept;
  ~Tokenizer();

  /// The ids of a text, without begin- or end-of-text tokens. Each maximal ill-formed part of the UTF-8 becomes U+FFFD
  /// first. Bytes that the vocabulary lacks become the unknown token, or nothing where there is none (as Hugging Face
  /// does). Cost: about 10 MB/s or more; linear up to a logarithm in the text.
  [[nodiscard]] std::vector<std::int32_t> encode(std::string_view text, Special mode) const;

  /// The ids of the parts joined, as Special::kSpecial gives them, except that no added token is found where a part `from_input` is touched: there it
  /// is ordinary text. Words go on over the edges of parts.
  [[nodiscard]] std::vector<std::int32_t> encode(std::span<const TextPart> parts) const;

  /// The text of some ids; a character that is cut off or ill-formed becomes U+FFFD. Ids outside
  /// the vocabulary give nothing.
  [[nodiscard]] std::string decode(std::span<const std::int32_t> ids, bool skip_special = false) const;

  /// Puts the begin- (and end-) of-text tokens that the tokenizer asks for round `ids`. A begin-of-text token that is
  /// there already is not doubled. Used for bare documents; templates bring their own.
  [[nodiscard]] std::vector<std::int32_t> with_template(std::vector<std::int32_t> ids) const;

  /// The bytes one id stands for; empty for ids outside the vocabulary. Added tokens give their name.
  [[nodiscard]] std::string_view bytes(std::int32_t id) const;
  /// One more than the greatest id. The model's embedding must have at least as many rows.
  [[nodiscard]] int vocab_size() const;
  /// The id of an added token by its name, or of an ordinary token by its spelling in the file.
  [[nodiscard]] std::optional<std::int32_t> token_id(std::string_view name) const;
  /// Whether decode(skip_special) leaves the id out.
  [[nodiscard]] bool is_special(std::int32_t id) const;
  /// Whether the id is an added token, special or not.
  [[nodiscard]] bool is_added(std::int32_t id) const;

  [[nodiscard]] std::optional<std::int32_t> bos() const { return spec().bos; }
  [[nodiscard]] std::optional<std::int32_t> eos() const { return spec().eos; }
  [[nodiscard]] std::optional<std::int32_t> pad() const { return spec().pad; }

  /// Writes tokenizer.json and tokenizer_config.json, readable by Hugging Face `tokenizers` with the same results.
  /// `chat_template`: Jinja text for the configuration, or empty. Errors: as write_file_atomic.
  [[nodiscard]] Status save(const std::filesystem::path& folder, std::string_view chat_template = {}) const;

  [[nodiscard]] const TokenizerSpec& spec() const;

 private:
  struct Compiled;
  explicit Tokenizer(std::unique_ptr<const Compiled> compiled);
  friend class StreamDecoder;
  std::unique_ptr<const Compiled> compiled_;
};

/// Decodes token by token: the pieces joined are exactly `decode` of all ids; no character is split, lost or doubled.
class StreamDecoder {
 public:
  /// The tokenizer must outlive the decoder.
  explicit StreamDecoder(const Tokenizer& tokenizer, bool skip_special = false);

  /// The text that became certain with this id; a character still incomplete is held back.
  [[nodiscard]] std::string push(std::int32_t id);
  /// What is held back, as U+FFFD. The decoder can be used anew afterwards.
  [[nodiscard]] std::string finish();

 private:
  const Tokenizer* tokenizer_;
  std::string pending_;
  bool skip_special_;
  std::size_t strip_left_;
};

} // namespace troupe::data
