/// @file
/// One person and one model, turn by turn, without a network.
#pragma once

#include <atomic>
#include <functional>
#include <string>
#include <vector>

#include "base/result.h"
#include "data/conversation.h"
#include "generate/engine.h"
#include "serve/reply_stream.h"
#include "serve/served_model.h"

namespace troupe::serve {

struct ChatOptions {
  std::string system;                 ///< The first message; empty: none.
  data::ChatExtras extras;
  generate::SamplingParams sampling;  ///< max_new_tokens: of a reply.
  std::uint64_t seed = 0;
};

class ChatSession {
 public:
  /// Borrows `model`.
  ChatSession(ServedModel& model, const generate::EngineOptions& engine, ChatOptions options);

  struct Turn {
    Delta said;
    generate::Finish finish = generate::Finish::kStop;
    bool exact = true;      ///< The prompt went on from the ids of the turns before; false: it was rendered anew.
    std::size_t tokens = 0; ///< Sampled.
  };
  /// Says `text` and lets the model reply; `on_delta` hears it as it comes. Ends early, with what was said, when `stop` becomes true.
  /// Errors: those of Conversation and Engine::submit; the conversation is then as before.
  [[nodiscard]] Result<Turn> say(const std::string& text, const std::function<void(const Delta&)>& on_delta, const std::atomic<bool>& stop);

  /// Forgets everything; `system` replaces the first message.
  void reset();
  void reset(std::string system);
  /// The messages so far, the last reply included.
  [[nodiscard]] std::vector<data::Message> messages() const;
  /// The ids of all turns, the last reply included.
  [[nodiscard]] std::vector<std::int32_t> ids() const;
  [[nodiscard]] generate::EngineStats stats() const { return engine_.stats(); }

 private:
  ServedModel& model_;
  ChatOptions options_;
  generate::Engine engine_;
  data::Conversation conversation_;
  std::vector<std::int32_t> reply_; // of the last turn
  bool begun_ = false;
  std::uint64_t turns_ = 0;
};

} // namespace troupe::serve
