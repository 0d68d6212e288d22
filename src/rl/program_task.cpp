#include <array>
#include <nlohmann/json.hpp>

#include "base/log.h"
#include "rl/line_process.h"
#include "rl/tasks.h"

namespace troupe::rl {
namespace {

using nlohmann::json;

constexpr int kProtocol = 1;
constexpr std::size_t kExcerpt = 120; // bytes of a bad answer that are shown
constexpr std::array<const char*, 4> kFurther = {"reasoning_content", "tool_calls", "tool_call_id", "name"}; // fields of messages, for templates

std::string excerpt(std::string_view text) {
  std::string shown(text.substr(0, kExcerpt));
  for (char& c : shown)
    if (static_cast<unsigned char>(c) < 0x20 || static_cast<unsigned char>(c) >= 0x7f) c = '?';
  return "\"" + shown + (text.size() > kExcerpt ? "...\"" : "\"");
}

tl::unexpected<Error> bad_answer(const json& answer, const std::string& what) {
  return fail(ErrorCode::kCorrupt, "the task program's answer " + what + ": " + excerpt(answer.dump(-1, ' ', false, json::error_handler_t::replace)));
}

/// The definitions of functions in an answer, as text; nothing when it does not mention them.
Result<std::optional<std::string>> read_tools(const json& answer) {
  if (!answer.contains("tools") || answer["tools"].is_null()) return std::optional<std::string>{};
  const json& tools = answer["tools"];
  bool whole = tools.is_array();
  for (std::size_t i = 0; whole && i < tools.size(); ++i) {
    const json& tool = tools[i];
    whole = tool.is_object() && tool.contains("function") && tool["function"].is_object() && tool["function"].contains("name") && tool["function"]["name"].is_string();
  }
  if (!whole) return bad_answer(answer, "has \"tools\" that are no list of {\"type\": \"function\", \"function\": {\"name\": ...}}");
  return std::optional<std::string>(tools.empty() ? "" : tools.dump());
}

/// The one program behind a task: started, asked, restarted. `generation` tells its lives apart.
class Program {
 public:
  explicit Program(const TaskOptions& options) : options_(options) {}

  /// Starts the program if it does not run, and greets it.
  Status ensure_running() {
    if (running()) return {};
    if (failures_ > options_.program.restarts)
      return fail(ErrorCode::kUnavailable, "the task program failed " + std::to_string(failures_) + " times in a row, and task.restarts is " +
                                               std::to_string(options_.program.restarts) + "; last: " + last_failure_);
    return start();
  }

  /// One request, one answer with the same id.
  Result<json> ask(json request, Duration deadline) {
    request["id"] = ++last_id_;
    // Text of the policy may be any bytes: what is not UTF-8 travels as U+FFFD.
    auto line = process_->call(request.dump(-1, ' ', false, json::error_handler_t::replace), deadline);
    if (!line) {
      note_failure(line.error().message);
      return tl::unexpected(std::move(line).error());
    }
    auto answer = parse(*line);
    if (answer) failures_ = 0;
    return answer;
  }

  /// An episode that was left before its end; the program hears of it with the next reset.
  void forget(std::uint64_t episode, std::uint64_t generation) {
    if (generation == generation_) forgotten_.push_back(episode);
  }
  std::vector<std::uint64_t> take_forgotten() { return std::exchange(forgotten_, {}); }

  [[nodiscard]] bool running() const { return process_ && process_->running(); }
  [[nodiscard]] std::uint64_t generation() const { return generation_; }
  std::uint64_t next_episode() { return ++last_episode_; }
  [[nodiscard]] const std::string& tools() const { return tools_; } ///< Of every episode that does not say otherwise.
  [[nodiscard]] std::optional<std::uint64_t> size(Split split) const { return split == Split::kTrain ? train_ : eval_; }

 private:
  Status start() {
    const ProgramTaskOptions& p = options_.program;
    auto process = LineProcess::start({p.command, p.folder, p.output_limit, p.stderr_tail});
    if (!process) {
      note_failure(process.error().message);
      return tl::unexpected(std::move(process).error());
    }
    process_.emplace(std::move(*process));
    ++generation_;
    forgotten_.clear();
    const std::int64_t before = failures_;
    TROUPE_TRY(const json answer, ask({{"op", "hello"}, {"protocol", kProtocol}}, p.start_deadline));
    failures_ = before; // only work resets the count: a program that greets and dies would be restarted for ever
    TROUPE_TRY(train_, read_size(answer, "train"));
    TROUPE_TRY(eval_, read_size(answer, "eval"));
    auto tools = read_tools(answer);
    if (!tools) return broken("answers hello with something wrong: " + tools.error().message);
    tools_ = tools->value_or("");
    return {};
  }

  Result<std::optional<std::uint64_t>> read_size(const json& answer, const char* split) {
    if (!answer.contains(split) || answer[split].is_null()) return std::optional<std::uint64_t>{};
    if (answer[split].is_number_unsigned()) return std::optional<std::uint64_t>(answer[split].get<std::uint64_t>());
    return broken("answers hello with a bad \"" + std::string(split) + "\": a number of problems or null is expected");
  }

  void note_failure(const std::string& why) {
    ++failures_;
    last_failure_ = why;
    log_warning("task program: " + why);
  }

  /// The stream cannot be trusted any more: ends the program.
  tl::unexpected<Error> broken(const std::string& what) {
    process_->stop();
    const std::string said = process_->stderr_tail();
    const std::string why = "the task program " + what + (said.empty() ? "" : "; its stderr ends: " + said);
    note_failure(why);
    return fail(ErrorCode::kCorrupt, why);
  }

  Result<json> parse(const std::string& line) {
    json answer = json::parse(line, nullptr, false);
    if (answer.is_discarded()) {
      // Python's json module writes them; the line is whole, so the program may live.
      if (line.find("NaN") != std::string::npos || line.find("Infinity") != std::string::npos)
        return fail(ErrorCode::kCorrupt, "the task program answered with NaN or Infinity where a finite number belongs: " + excerpt(line));
      return broken("wrote a line that is not JSON (its own output belongs on stderr): " + excerpt(line));
    }
    if (!answer.is_object() || !answer.contains("id") || answer["id"] != last_id_)
      return broken("did not answer with the id of the request, " + std::to_string(last_id_) + ": " + excerpt(line));
    if (answer.contains("error")) {
      const json& error = answer["error"];
      return fail(ErrorCode::kUnavailable, "the task program reports: " + (error.is_string() ? error.get<std::string>() : error.dump()));
    }
    return answer;
  }

  TaskOptions options_;
  std::optional<LineProcess> process_;
  std::uint64_t generation_ = 0, last_id_ = 0, last_episode_ = 0;
  std::int64_t failures_ = 0; ///< In a row.
  std::string last_failure_;
  std::vector<std::uint64_t> forgotten_;
  std::optional<std::uint64_t> train_, eval_;
  std::string tools_;
};

Result<std::vector<Message>> read_messages(const json& answer, bool required) {
  std::vector<Message> messages;
  if (!answer.contains("messages") && !required) return messages;
  if (!answer.contains("messages") || !answer["messages"].is_array()) return bad_answer(answer, "has no list \"messages\"");
  for (const json& m : answer["messages"]) {
    const bool whole = m.is_object() && m.contains("role") && m["role"].is_string() && m.contains("content") && m["content"].is_string();
    if (!whole) return bad_answer(answer, "has a message without the strings \"role\" and \"content\"");
    json more = json::object();
    for (const char* key : kFurther)
      if (m.contains(key)) more[key] = m[key];
    messages.push_back({m["role"].get<std::string>(), m["content"].get<std::string>(), more.empty() ? "" : more.dump()});
  }
  return messages;
}

class ProgramEpisode final : public Environment {
 public:
  ProgramEpisode(Program& program, Duration deadline) : program_(program), deadline_(deadline) {}
  ~ProgramEpisode() override {
    if (open_) program_.forget(episode_, generation_);
  }

  Result<Opening> reset(const ProblemId& problem) override {
    const auto size = program_.size(problem.split);
    if (problem.split == Split::kEval && size && problem.index >= *size)
      return fail(ErrorCode::kNotFound, to_string(problem) + " does not exist: the program has " + std::to_string(*size));
    TROUPE_TRY_STATUS(program_.ensure_running());
    generation_ = program_.generation();
    episode_ = program_.next_episode();
    const char* split = problem.split == Split::kTrain ? "train" : "eval";
    const json request = {{"op", "reset"},       {"episode", episode_},     {"seed", problem.seed},
                          {"split", split},      {"index", problem.index},  {"closed", program_.take_forgotten()}};
    TROUPE_TRY(const json answer, program_.ask(request, deadline_));
    open_ = true;
    Opening opening;
    TROUPE_TRY(opening.messages, read_messages(answer, true));
    TROUPE_TRY(const auto tools, read_tools(answer));
    opening.tools = tools.value_or(program_.tools());
    return opening;
  }

  Result<Step> step(const Message& reply) override {
    if (generation_ != program_.generation() || !program_.running())
      return fail(ErrorCode::kUnavailable, "the episode was lost when the task program was restarted");
    json said = {{"role", reply.role}, {"content", reply.content}};
    if (!reply.more.empty()) said.update(json::parse(reply.more, nullptr, false));
    const json request = {{"op", "step"}, {"episode", episode_}, {"reply", std::move(said)}};
    TROUPE_TRY(const json answer, program_.ask(request, deadline_));
    if (!answer.contains("reward") || !answer["reward"].is_number()) return bad_answer(answer, "has no number \"reward\"");
    if (!answer.contains("done") || !answer["done"].is_boolean()) return bad_answer(answer, "has no true or false \"done\"");
    Step step;
    step.reward = answer["reward"].get<double>();
    step.done = answer["done"].get<bool>();
    if (answer.contains("answered") && answer["answered"].is_boolean()) step.answered = answer["answered"].get<bool>();
    TROUPE_TRY(step.messages, read_messages(answer, !step.done));
    open_ = !step.done;
    return step;
  }

 private:
  Program& program_;
  Duration deadline_;
  std::uint64_t episode_ = 0, generation_ = 0;
  bool open_ = false; ///< Whether the program holds state for it.
};

class ProgramTask final : public Task {
 public:
  explicit ProgramTask(const TaskOptions& options) : program_(options), deadline_(options.deadline) {}
  [[nodiscard]] Status start() { return program_.ensure_running(); }
  std::unique_ptr<Environment> new_episode() override { return std::make_unique<ProgramEpisode>(program_, deadline_); }
  std::optional<std::uint64_t> size(Split split) const override { return program_.size(split); }

 private:
  Program program_;
  Duration deadline_;
};

} // namespace

Result<std::unique_ptr<Task>> make_program_task(const TaskOptions& options) {
  if (options.program.command.empty())
    return fail(ErrorCode::kInvalidConfig, "task.type = program needs task.command, a list: the program and its arguments");
  if (options.program.start_deadline <= Duration::zero()) return fail(ErrorCode::kInvalidConfig, "task.start_deadline must be longer than 0s");
  auto task = std::make_unique<ProgramTask>(options);
  TROUPE_TRY_STATUS(task->start());
  return task;
}

} // namespace troupe::rl
