#include "data/chat_template.h"

#include <algorithm>
#include <array>
#include <cstdint>
#include <stdexcept>

#include <jinja/lexer.h>
#include <jinja/parser.h>
#include <jinja/runtime.h>
#include <json.h>

namespace troupe::data {
namespace {

using nlohmann::ordered_json;

// ---- limits: the engine has none ------------------------------------------------------------------------------------

struct Budget {
  std::int64_t steps_left = 0;
  std::size_t bytes_left = 0;
  const char* stack = nullptr;
  std::string exhausted; // why it was stopped: the engine wraps exceptions on their way out
};
thread_local Budget* budget = nullptr; // of the rendering that this thread is in

[[noreturn]] void give_up(std::string reason) {
  budget->exhausted = std::move(reason);
  throw std::runtime_error(budget->exhausted);
}

void count_step() {
  const char here = 0;
  if (--budget->steps_left < 0) give_up("it loops for more than " + std::to_string(ChatTemplate::kStepsMax) + " turns");
  if (static_cast<std::size_t>(std::abs(budget->stack - &here)) > ChatTemplate::kStackBytesMax) give_up("it calls itself without end");
}

void count_bytes(const jinja::value_t& value) {
  const auto& parts = value.val_str.parts;
  const std::size_t bytes = (parts.size() > 1 ? sizeof(parts[0]) * parts.size() : 0) + value.val_str.length() +
                            sizeof(jinja::value) * (value.val_arr.size() + 2 * value.val_obj.size());
  if (bytes > budget->bytes_left) give_up("it makes more than " + std::to_string(ChatTemplate::kBytesMax >> 20) + " MiB of text");
  budget->bytes_left -= bytes;
}

// In the place of every expression whose value is kept, handed on or written out: what is doubled again and again passes through here.
struct Measured final : jinja::expression {
  explicit Measured(jinja::statement_ptr&& what) : inner(std::move(what)) { pos = inner->pos; }
  jinja::value execute_impl(jinja::context& context) const override {
    jinja::value value = inner->execute(context);
    count_bytes(*value);
    return value;
  }
  jinja::statement_ptr inner;
};

// The first statement of every loop and macro.
struct Step final : jinja::statement {
  jinja::value execute_impl(jinja::context&) const override {
    count_step();
    return jinja::mk_val<jinja::value_string>(std::string());
  }
};

void measure(jinja::statement_ptr& one) {
  if (auto* named = dynamic_cast<jinja::keyword_argument_expression*>(one.get())) return measure(named->val);
  if (dynamic_cast<const jinja::expression*>(one.get()) != nullptr) one = std::make_unique<Measured>(std::move(one));
}
void measure_all(jinja::statements& body) {
  for (auto& statement : body) measure(statement);
}

void limit(jinja::statement* node) {
  const auto counted = [](jinja::statements& body) {
    measure_all(body);
    body.insert(body.begin(), std::make_unique<Step>());
  };
  if (auto* loop = dynamic_cast<jinja::for_statement*>(node)) counted(loop->body), measure_all(loop->default_block);
  if (auto* macro = dynamic_cast<jinja::macro_statement*>(node)) counted(macro->body);
  if (auto* choice = dynamic_cast<jinja::if_statement*>(node)) measure_all(choice->body), measure_all(choice->alternate);
  if (auto* block = dynamic_cast<jinja::filter_statement*>(node)) measure_all(block->body);
  if (auto* block = dynamic_cast<jinja::call_statement*>(node)) measure_all(block->body);
  if (auto* call = dynamic_cast<jinja::call_expression*>(node)) measure_all(call->args);
  if (auto* assignment = dynamic_cast<jinja::set_statement*>(node)) {
    measure_all(assignment->body);
    if (assignment->val) measure(assignment->val);
  }
}

void limit_all(jinja::program& program) {
  jinja::context walk;
  std::vector<const jinja::statement*> all, open;
  for (const auto& statement : program.body) open.push_back(statement.get());
  walk.visitor = [&](bool, const jinja::statement*, std::vector<jinja::visitor_pair> children) {
    for (const auto& [label, list] : children)
      for (const auto* child : list)
        if (child != nullptr) open.push_back(child);
  };
  while (!open.empty()) {
    const auto* node = open.back();
    open.pop_back();
    all.push_back(node);
    node->visit(walk);
  }
  for (const auto* node : all) limit(const_cast<jinja::statement*>(node)); // the tree is ours; its visitor hands it out as constant
  measure_all(program.body);
}

// range(), which would fill the memory before the first turn.
jinja::value bounded_range(const jinja::func_args& args) {
  std::array<std::int64_t, 3> n{0, 0, 1};
  if (args.count() < 1 || args.count() > 3) throw jinja::raised_exception("range() takes 1 to 3 numbers");
  for (std::size_t i = 0; i < args.count(); ++i) n[args.count() == 1 ? 1 : i] = args.get_pos(i)->as_int();
  const auto [start, stop, step] = n;
  if (step == 0) throw jinja::raised_exception("range() step argument must not be zero");
  auto out = jinja::mk_val<jinja::value_array>();
  for (std::int64_t i = start; step > 0 ? i < stop : i > stop;) {
    count_step();
    out->push_back(jinja::mk_val<jinja::value_int>(i));
    if (__builtin_add_overflow(i, step, &i)) break;
  }
  return out;
}

// ---- control tokens in what people wrote ----------------------------------------------------------------------------

// A character of no script, put behind the first character of each control token's name in the request and taken out of the rendering: so the
// template cannot lose the mark, whatever it does with the text.
constexpr std::string_view kMarks = "\uFDD0\uFDD1\uFDD2\uFDD3\uFDD4\uFDD5\uFDD6\uFDD7\uFDD8\uFDD9\uFDDA\uFDDB\uFDDC\uFDDD\uFDDE\uFDDF";

std::size_t character_bytes(char first) {
  const auto byte = static_cast<unsigned char>(first);
  return byte < 0x80 ? 1 : byte < 0xE0 ? 2 : byte < 0xF0 ? 3 : 4;
}

std::string marked(const std::string& text, std::span<const std::string> control, std::string_view mark) {
  std::string out;
  for (std::size_t i = 0; i < text.size();) {
    const std::string_view rest = std::string_view(text).substr(i);
    const bool name = std::any_of(control.begin(), control.end(), [&](const std::string& c) { return !c.empty() && rest.starts_with(c); });
    const std::size_t n = std::min(name ? character_bytes(text[i]) : 1, rest.size());
    out.append(rest.substr(0, n));
    if (name) out.append(mark);
    i += n;
  }
  return out;
}

ordered_json marked(const ordered_json& value, std::span<const std::string> control, std::string_view mark) {
  if (value.is_string()) return marked(value.get_ref<const std::string&>(), control, mark);
  if (value.is_array()) {
    ordered_json out = ordered_json::array();
    for (const auto& item : value) out.push_back(marked(item, control, mark));
    return out;
  }
  if (!value.is_object()) return value;
  ordered_json out = ordered_json::object();
  for (const auto& [key, item] : value.items()) out[marked(key, control, mark)] = marked(item, control, mark);
  return out;
}

void append(std::vector<TextPart>& parts, std::string_view text, bool from_input) {
  if (text.empty()) return;
  if (!parts.empty() && parts.back().from_input == from_input) parts.back().text.append(text);
  else parts.push_back({std::string(text), from_input});
}

// Without the marks; the character before each is of the input.
void append_unmarked(std::vector<TextPart>& parts, std::string_view text, bool from_input, std::string_view mark, std::string_view escaped) {
  std::size_t at = 0;
  for (std::size_t i = 0; i < text.size();) {
    const std::string_view rest = text.substr(i);
    const std::size_t n = rest.starts_with(mark) ? mark.size() : rest.starts_with(escaped) ? escaped.size() : 0;
    if (n == 0) {
      ++i;
      continue;
    }
    std::size_t character = i;
    while (character > at && (static_cast<unsigned char>(text[--character]) & 0xC0) == 0x80) {}
    append(parts, text.substr(at, character - at), from_input);
    append(parts, text.substr(character, i - character), true);
    at = i += n;
  }
  append(parts, text.substr(at), from_input);
}

// Templates call the reasoning by either of two names; transformers gives it under both.
ordered_json with_both_names(ordered_json messages) {
  for (ordered_json& message : messages) {
    if (!message.is_object()) continue;
    for (const auto& [from, to] : {std::pair("reasoning_content", "thinking"), std::pair("thinking", "reasoning_content")})
      if (message.contains(from) && !message.contains(to)) message[to] = ordered_json(message[from]);
  }
  return messages;
}

std::string one_line(std::string text) {
  std::replace(text.begin(), text.end(), '\n', ' ');
  text.erase(std::unique(text.begin(), text.end(), [](char a, char b) { return a == ' ' && b == ' '; }), text.end());
  return text.substr(text.find_first_not_of(' ') == std::string::npos ? 0 : text.find_first_not_of(' '));
}

} // namespace

struct ChatTemplate::Program {
  jinja::program program;
  std::string source;
  ordered_json special;
};

ChatTemplate::ChatTemplate(std::unique_ptr<const Program> program) : program_(std::move(program)) {}
ChatTemplate::ChatTemplate(ChatTemplate&&) noexcept = default;
ChatTemplate& ChatTemplate::operator=(ChatTemplate&&) noexcept = default;
ChatTemplate::~ChatTemplate() = default;

Result<ChatTemplate> ChatTemplate::parse(std::string_view source, ordered_json special) {
  auto program = std::make_unique<Program>();
  program->source = source;
  program->special = std::move(special);
  try {
    jinja::lexer lexer;
    program->program = jinja::parse_from_tokens(lexer.tokenize(program->source));
    limit_all(program->program);
  } catch (const std::exception& e) {
    return fail(ErrorCode::kCorrupt, "the chat template cannot be read: " + one_line(e.what()));
  }
  return ChatTemplate(std::move(program));
}

Result<std::vector<TextPart>> ChatTemplate::render(const ChatRequest& request, std::span<const std::string> control) const {
  const ordered_json inputs{{"messages", with_both_names(request.messages)}, {"tools", request.tools}};
  const std::string before = inputs.dump(-1, ' ', false, ordered_json::error_handler_t::replace);
  std::string_view mark = kMarks.substr(0, 3);
  for (std::size_t i = 0; i < kMarks.size() && before.find(mark) != std::string::npos; i += 3) mark = kMarks.substr(i, 3);
  if (before.find(mark) != std::string::npos) return fail(ErrorCode::kInvalidArgument, "the conversation holds all of U+FDD0 to U+FDDF, which are no characters");
  static constexpr char kHex[] = "0123456789abcdef";
  const std::string escaped = std::string("\\ufdd") + kHex[static_cast<unsigned char>(mark[2]) & 0xF];

  const char here = 0;
  Budget mine{kStepsMax, kBytesMax, &here, {}};
  budget = &mine;
  try {
    jinja::context context(program_->source);
    if (request.now != 0) context.current_time = request.now;
    context.set_val("range", jinja::mk_val<jinja::value_func>("range", bounded_range));
    jinja::global_from_json(context, common_json::parse(program_->special.dump()), false);
    jinja::global_from_json(context, common_json::parse(request.variables.dump()), false);
    jinja::global_from_json(context, common_json::parse(marked(inputs, control, mark).dump(-1, ' ', false, ordered_json::error_handler_t::replace)), true);
    context.set_val("add_generation_prompt", jinja::mk_val<jinja::value_bool>(request.generation_prompt));
    jinja::runtime runtime(context);
    const auto rendered = jinja::runtime::gather_string_parts(runtime.execute(program_->program));
    std::vector<TextPart> parts;
    for (const auto& part : rendered->as_string().parts) append_unmarked(parts, part.val, part.is_input, mark, escaped);
    return parts;
  } catch (const std::exception& e) {
    if (!mine.exhausted.empty()) return fail(ErrorCode::kResourceExhausted, "the chat template was stopped: " + mine.exhausted);
    const std::string text = e.what();
    constexpr std::string_view kRaised = "Jinja Exception: ";
    if (const auto at = text.find(kRaised); at != std::string::npos)
      return fail(ErrorCode::kInvalidArgument, "the chat template refuses the conversation: " + one_line(text.substr(at + kRaised.size())));
    return fail(ErrorCode::kCorrupt, "the chat template failed: " + one_line(text));
  }
}

std::vector<std::string> control_names(const Tokenizer& tokenizer) {
  std::vector<std::string> names;
  for (const AddedToken& token : tokenizer.spec().added)
    if (token.special) names.push_back(token.content);
  return names;
}

} // namespace troupe::data
