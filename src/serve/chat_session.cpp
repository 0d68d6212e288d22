#include "serve/chat_session.h"

#include <utility>

namespace troupe::serve {

ChatSession::ChatSession(ServedModel& model, const generate::EngineOptions& engine, ChatOptions options)
    : model_(model),
      options_(std::move(options)),
      engine_(model.model, &model.tokenizer, engine),
      conversation_(model.format, model.tokenizer, options_.extras) {}

void ChatSession::reset() {
  begun_ = false;
  reply_.clear();
}

void ChatSession::reset(std::string system) {
  options_.system = std::move(system);
  reset();
}

std::vector<data::Message> ChatSession::messages() const {
  if (!begun_) return {};
  std::vector<data::Message> all = conversation_.messages();
  all.push_back(conversation_.message_of(reply_));
  return all;
}

std::vector<std::int32_t> ChatSession::ids() const {
  if (!begun_) return {};
  std::vector<std::int32_t> all = conversation_.rendered().ids;
  all.insert(all.end(), reply_.begin(), reply_.end());
  return all;
}

Result<ChatSession::Turn> ChatSession::say(const std::string& text, const std::function<void(const Delta&)>& on_delta, const std::atomic<bool>& stop) {
  Turn turn;
  data::Conversation next = conversation_;
  const data::Message message{"user", text, {}};
  if (begun_) {
    TROUPE_TRY(turn.exact, next.go_on(reply_, std::span(&message, 1)));
  } else {
    std::vector<data::Message> first;
    if (!options_.system.empty()) first.push_back({"system", options_.system, {}});
    first.push_back(message);
    TROUPE_TRY_STATUS(next.begin(std::move(first)));
  }
  generate::Request request;
  request.id = {turns_, 0};
  request.seed = options_.seed;
  request.prompt = next.rendered().ids;
  request.sampling = options_.sampling;
  request.sampling.stop_ids = model_.format.stop_ids();
  TROUPE_TRY_STATUS(engine_.submit(request));
  ++turns_;

  ReplyStream::Options reply;
  if (model_.format.is_template()) reply.format = model_.format.reply_format();
  reply.thinking = next.thinking();
  reply.stops = options_.sampling.stop_strings;
  ReplyStream stream(model_.tokenizer, std::move(reply));
  std::optional<generate::Completion> done;
  for (std::size_t seen = 0; !done;) {
    generate::StepReport report = engine_.step();
    if (!report.finished.empty()) done = std::move(report.finished.front());
    else if (stop) done = *engine_.abort(request.id);
    const generate::Completion* now = done ? &*done : engine_.peek(request.id);
    for (; now != nullptr && seen < now->ids.size(); ++seen)
      if (const Delta delta = stream.push(now->ids[seen]); !delta.empty()) on_delta(delta);
  }
  if (done->finish == generate::Finish::kError) return fail(ErrorCode::kInternal, done->error);
  if (const Delta delta = stream.finish(*done); !delta.empty()) on_delta(delta);
  conversation_ = std::move(next);
  reply_ = std::move(done->ids);
  begun_ = true;
  turn.said = stream.said();
  turn.finish = done->finish;
  turn.tokens = reply_.size();
  return turn;
}

} // namespace troupe::serve
