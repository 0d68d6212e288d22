/// @file
/// What is wrong with the user's input: all of it, each with its place, the source line, a hint.
#pragma once

#include <nlohmann/json_fwd.hpp>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "config/value.h"

namespace troupe::config {

/// The texts that values came from.
class Sources {
 public:
  /// A file; its places print as "name:line:column".
  int add_file(std::string name, std::string text);
  /// A flag or a document without lines; its places print as `name` alone.
  int add_flag(std::string name);

  /// "exp.toml:3:7", "--set optim.lr=1", "default".
  [[nodiscard]] std::string place(const Origin& origin) const;
  /// "exp.toml:3", "--set optim.lr=1", "default": where a value came from, for people.
  [[nodiscard]] std::string provenance(const Origin& origin) const;
  /// The source line with a line of ^~~~ under it, each ended by a newline; empty when the place has no line.
  [[nodiscard]] std::string excerpt(const Origin& origin) const;

 private:
  struct Source {
    std::string name;
    std::vector<std::string> lines;
    bool has_lines = false;
  };
  std::vector<Source> sources_;
};

struct Note {
  Origin origin;
  std::string message;
};

struct Diagnostic {
  Origin origin;
  std::string message;
  std::string hint;         ///< What to do about it, or empty.
  std::vector<Note> notes;  ///< The other places of a conflict.
};

/// Collects every error of a load. Errors come out in the order of the sources, then of the lines.
class Diagnostics {
 public:
  Sources sources;

  /// `path` is the key the error is about ("" when there is none): later checks of the same key stay silent.
  void error(std::string_view path, Diagnostic diagnostic);
  [[nodiscard]] bool empty() const { return list_.empty(); }
  [[nodiscard]] std::size_t size() const { return list_.size(); }
  [[nodiscard]] std::vector<Diagnostic> sorted() const;
  /// Whether the key, or a section round it, already has an error.
  [[nodiscard]] bool is_bad(std::string_view path) const;

  /// All errors as a compiler prints them, and a last line "2 errors; nothing was started".
  [[nodiscard]] std::string text() const;
  /// [{"file","line","column","place","message","hint","notes":[...]}].
  [[nodiscard]] nlohmann::json json() const;

 private:
  std::vector<Diagnostic> list_;
  std::vector<std::string> bad_paths_;
};

/// The candidates nearest to a mistyped word, at most `count_max`, best first; empty when none is near.
/// Distance: insertions, deletions, replacements and swaps of neighbours, at most a third of the word's length (at
/// least 1).
[[nodiscard]] std::vector<std::string> suggestions(std::string_view word, std::span<const std::string> candidates,
                                                   std::size_t count_max = 2);

}  // namespace troupe::config
