/// @file
/// A model on disk with a tokenizer and a chat template: the golden Qwen3 and a character for each of its ids.
#pragma once

#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <string>

namespace troupe::serve::test {

/// Makes `folder`/model.
inline void write_model_folder(const std::filesystem::path& folder) {
  const auto model = folder / "model";
  std::filesystem::create_directories(model);
  const auto golden = std::filesystem::path(TROUPE_GOLDEN_DIR) / "model/qwen3/base";
  for (const char* file : {"config.json", "model.safetensors"}) std::filesystem::copy(golden / file, model / file, std::filesystem::copy_options::overwrite_existing);
  nlohmann::json vocabulary = nlohmann::json::object(), added = nlohmann::json::array();
  int id = 0;
  // GPT-2's printable stand-ins for the first bytes: "!" to "~" stand for themselves, "Ġ" for the space, "Ċ" for the line feed.
  for (char c = '!'; c <= '~'; ++c) vocabulary[std::string(1, c)] = id++;
  vocabulary["\u0120"] = id++;
  vocabulary["\u010a"] = id++;
  for (const char* token : {"<|endoftext|>", "<|im_start|>", "<|im_end|>"}) {
    added.push_back({{"id", id}, {"content", token}, {"special", true}, {"single_word", false}, {"lstrip", false}, {"rstrip", false}, {"normalized", false}});
    vocabulary[token] = id++;
  }
  const nlohmann::json byte_level{{"type", "ByteLevel"}, {"add_prefix_space", false}, {"trim_offsets", true}, {"use_regex", true}};
  const nlohmann::json tokenizer{{"version", "1.0"}, {"truncation", nullptr}, {"padding", nullptr}, {"added_tokens", added}, {"normalizer", nullptr}, {"pre_tokenizer", byte_level}, {"post_processor", nullptr}, {"decoder", byte_level},
                                 {"model", {{"type", "BPE"}, {"dropout", nullptr}, {"unk_token", nullptr}, {"continuing_subword_prefix", nullptr}, {"end_of_word_suffix", nullptr}, {"fuse_unk", false}, {"byte_fallback", false}, {"vocab", vocabulary}, {"merges", nlohmann::json::array()}}}};
  std::ofstream(model / "tokenizer.json") << tokenizer.dump();
  std::ofstream(model / "tokenizer_config.json") << R"({"eos_token": "<|endoftext|>"})";
  std::ofstream(model / "chat_template.jinja") << "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}";
}

} // namespace troupe::serve::test
