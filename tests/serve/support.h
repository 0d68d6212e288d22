/// @file
/// Tiny models that talk, and servers of them on loopback.
#pragma once

#include <gmock/gmock.h>
#include <httplib.h>

#include <chrono>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <thread>

#include "data/bpe_trainer.h"
#include "formats/safetensors.h"
#include "model/load.h"
#include "serve/server.h"

namespace troupe::serve::test {

using nlohmann::ordered_json;

inline std::string letters(char32_t first, int count) {
  std::string text;
  for (char32_t c = first; c < first + static_cast<char32_t>(count); ++c) {
    if (c < 0x80) {
      text += static_cast<char>(c);
    } else {
      text += static_cast<char>(0xC0 | (c >> 6));
      text += static_cast<char>(0x80 | (c & 0x3F));
    }
  }
  return text;
}

/// 192 ids: a character each, so that a text tells its ids.
inline data::Tokenizer letter_tokenizer() {
  data::VocabularyOptions o;
  o.kind = "characters";
  o.alphabet = letters(' ', 95) + letters(0x0410, 93);
  auto made = data::make_vocabulary(o);
  EXPECT_TRUE(made) << made.error().to_string();
  EXPECT_EQ(made->vocab_size(), 192);
  return std::move(*made);
}

inline ServedModel with_letters(model::Model model) {
  data::Tokenizer tokenizer = letter_tokenizer();
  auto format = data::PromptFormat::create("chatml", tokenizer);
  EXPECT_TRUE(format);
  return {std::move(model), std::move(tokenizer), std::move(*format), "chatml"};
}

inline ServedModel golden(const std::string& fixture) {
  auto model = model::load_model(std::filesystem::path(TROUPE_GOLDEN_DIR) / "model" / fixture);
  EXPECT_TRUE(model) << model.error().to_string();
  return with_letters(std::move(*model));
}

/// Large enough that a long reply takes seconds.
inline ServedModel slow_model() {
  auto spec = model::spec_from_sizes("qwen3", {.vocab_size = 192, .width = 256, .layers = 8, .heads = 4, .kv_heads = 2, .head_dim = 64, .ffn_width = 512, .context = 16384});
  spec->vocab_used = 188; // without the tokens that would end it
  return with_letters(model::Model::create(*spec, 3));
}

inline std::vector<std::int32_t> golden_ids(const std::string& fixture, const std::string& name) {
  const auto file = formats::SafetensorsFile::open(std::filesystem::path(TROUPE_GOLDEN_DIR) / "model" / fixture / "golden.safetensors");
  const formats::TensorView* tensor = file->find(name);
  std::vector<std::int32_t> ids;
  for (std::int64_t i = 0; i < tensor->elements(); ++i) {
    std::int64_t wide = 0;
    std::memcpy(&wide, tensor->bytes.data() + 8 * i, sizeof wide);
    ids.push_back(static_cast<std::int32_t>(wide));
  }
  return ids;
}

inline generate::EngineOptions engine_options() {
  generate::EngineOptions o;
  o.kv_memory = Bytes{32ull << 20};
  o.sequences_max = 16;
  o.reuse_prefixes = true;
  return o;
}

/// A server on a port of its own.
struct Running {
  explicit Running(ServedModel served, ServeOptions options = {}) : model(std::move(served)) {
    options.port = 0;
    options.name = "tiny";
    auto started = Server::start(options, model, engine_options(), 1);
    EXPECT_TRUE(started) << started.error().to_string();
    server = std::move(*started);
  }
  [[nodiscard]] httplib::Client client() const {
    httplib::Client client("127.0.0.1", server->port());
    client.set_read_timeout(60);
    return client;
  }
  [[nodiscard]] httplib::Result post(const std::string& path, const ordered_json& body, const httplib::Headers& headers = {}) const {
    return client().Post(path, headers, body.dump(), "application/json");
  }
  [[nodiscard]] ordered_json ask(const std::string& path, const ordered_json& body) const {
    const auto answer = post(path, body);
    EXPECT_TRUE(answer);
    if (!answer) return {};
    EXPECT_EQ(answer->status, 200) << answer->body;
    return ordered_json::parse(answer->body, nullptr, false);
  }
  /// A number of /metrics.
  [[nodiscard]] double figure(const std::string& name) const {
    const auto answer = client().Get("/metrics");
    EXPECT_TRUE(answer);
    const auto at = answer->body.find("\n" + name + " ");
    return at == std::string::npos ? -1 : std::stod(answer->body.substr(at + name.size() + 2));
  }
  /// Whether so many completions wait or run within 20 s.
  [[nodiscard]] bool wait_until_held(int count) const {
    for (int i = 0; i < 2000; ++i) {
      if (figure("troupe_completions_held") == count) return true;
      std::this_thread::sleep_for(std::chrono::milliseconds(10));
    }
    return false;
  }
  ServedModel model;
  std::unique_ptr<Server> server;
};

/// The events of a stream; the last one must be [DONE].
inline std::vector<ordered_json> events(const std::string& body) {
  std::vector<ordered_json> all;
  std::size_t at = 0;
  bool done = false;
  while (at < body.size()) {
    const auto end = body.find("\n\n", at);
    EXPECT_NE(end, std::string::npos);
    const std::string event = body.substr(at, end - at);
    EXPECT_TRUE(event.starts_with("data: ")) << event;
    EXPECT_FALSE(done) << "nothing follows [DONE]";
    if (event == "data: [DONE]") done = true;
    else all.push_back(ordered_json::parse(event.substr(6)));
    at = end + 2;
  }
  EXPECT_TRUE(done);
  return all;
}

inline ordered_json user(const std::string& text) { return ordered_json::array({{{"role", "user"}, {"content", text}}}); }

} // namespace troupe::serve::test
