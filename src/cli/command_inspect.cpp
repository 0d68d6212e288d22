// troupe inspect: what a model is and what it costs, from its configuration alone.
#include <cstdio>
#include <nlohmann/json.hpp>

#include "base/units.h"
#include "cli/common.h"
#include "data/chat_source.h"
#include "data/tokenizer.h"
#include "model/folder.h"
#include "observe/console.h"
#include "plan/cost.h"
#include "plan/describe.h"
#include "plan/layout.h"

namespace troupe::cli {
namespace {

using nlohmann::ordered_json;

struct InspectArguments {
  std::string path;
  std::string layout;
  std::int64_t tokens = 4096;
  bool json = false;
};

ordered_json parts_of(const model::ModelSpec& spec) {
  ordered_json layers = ordered_json::array();
  for (const plan::LayerKind& kind : plan::layer_kinds(spec))
    layers.push_back({{"layers", kind.layers}, {"attention", kind.attention}, {"feed_forward", kind.feed_forward}, {"residual", kind.residual}});
  ordered_json ropes = ordered_json::array();
  for (const model::RopeSpec& rope : spec.ropes) ropes.push_back(plan::rope_text(rope));
  return {{"layers", layers}, {"ropes", ropes}};
}

ordered_json parameters_of(const plan::ParameterCounts& counts) {
  ordered_json by_component = ordered_json::object();
  for (std::size_t i = 0; i < counts.of.size(); ++i)
    if (counts.of[i] > 0) by_component[std::string(plan::to_string(static_cast<plan::Component>(i)))] = counts.of[i];
  return {{"total", counts.total}, {"active", counts.active}, {"trained", counts.trained}, {"stored", counts.stored}, {"by_component", by_component}};
}

ordered_json operations_of(const model::ModelSpec& spec, std::int64_t tokens) {
  const plan::TokenOperations o = plan::count_operations(spec, tokens);
  return {{"sequence_tokens", tokens}, {"training", o.total()}, {"forward", o.total() / 3}, {"projections", o.projections}, {"attention", o.attention}, {"attention_windowed", o.attention_windowed}, {"extra", o.extra}};
}

ordered_json memory_of(const model::ModelSpec& spec, const plan::ParameterCounts& counts) {
  const plan::CacheCost cache = plan::count_cache(spec);
  return {{"weights_float32", 4 * counts.stored},
          {"weights_bfloat16", 2 * counts.stored},
          {"cache_per_token", cache.bytes_per_token},
          {"cache_per_token_bfloat16", plan::count_cache(spec, kernels::Precision::kBfloat16).bytes_per_token},
          {"state_per_sequence", cache.bytes_per_sequence},
          {"cache_at_context", cache.bytes_at_context},
          {"gradients", 4 * counts.trained},
          {"optimizer_adamw", 8 * counts.trained}};
}

ordered_json weights_of(const model::WeightFiles& found) {
  ordered_json missing = ordered_json::array();
  std::uint64_t bytes = 0;
  for (const auto& file : found.files) {
    bytes += file.bytes;
    if (!file.present) missing.push_back(file.name);
  }
  return {{"files", found.files.size()}, {"missing", missing}, {"bytes", bytes}, {"bytes_by_type", found.bytes_by_type}, {"problem", found.problem.empty() ? ordered_json() : ordered_json(found.problem)}};
}

// Something optional of a model: there, not there, or there and broken.
ordered_json tokenizer_of(const std::string& path, const model::ModelSpec& spec) {
  const auto tokenizer = data::Tokenizer::load(path);
  if (!tokenizer) return {{"found", tokenizer.error().code != ErrorCode::kNotFound}, {"problem", tokenizer.error().to_string()}};
  const Status fits = model::check_vocabulary(spec, tokenizer->vocab_size(), path);
  return {{"found", true}, {"vocabulary", tokenizer->vocab_size()}, {"problem", fits ? ordered_json() : ordered_json(fits.error().message)}};
}

ordered_json template_of(const std::string& path, const model::ModelSpec& spec) {
  const auto source = data::find_chat_template(path, spec.family);
  if (!source) return {{"found", true}, {"problem", source.error().to_string()}};
  return {{"found", !source->jinja.empty()}, {"where", source->where}, {"problem", nullptr}};
}

Result<ordered_json> inspect(const InspectArguments& args) {
  TROUPE_TRY(model::ModelSpec spec, model::configured_spec(args.path));
  TROUPE_TRY(const auto weights, model::weight_files(args.path, spec));
  const plan::ParameterCounts counts = plan::count_parameters(spec);
  ordered_json out{{"ok", true},
                   {"path", args.path},
                   {"family", spec.family},
                   {"width", spec.width},
                   {"layers", spec.layers.size()},
                   {"further_tokens", spec.mtp.size()},
                   {"vocabulary", spec.vocab_size},
                   {"context", spec.context},
                   {"tied", spec.tied},
                   {"stored_dtype", spec.stored_dtype},
                   {"parts", parts_of(spec)},
                   {"parameters", parameters_of(counts)},
                   {"operations_per_token", operations_of(spec, args.tokens)},
                   {"memory", memory_of(spec, counts)},
                   {"weights", weights_of(weights)},
                   {"tokenizer", tokenizer_of(args.path, spec)},
                   {"chat_template", template_of(args.path, spec)}};
  if (args.layout.empty()) return out;
  TROUPE_TRY(const plan::Layout layout, plan::parse_layout(args.layout));
  TROUPE_TRY(const plan::RankMemory memory, plan::fullest_rank(spec, layout));
  out["layout"] = {{"ranks", layout.ranks()}, {"weights", memory.weights}, {"gradients", memory.gradients}, {"optimizer", memory.optimizer}, {"total", memory.total()}};
  return out;
}

// ---- for people -----------------------------------------------------------------------------------------------------

std::string grouped(std::int64_t n) { // 1,234,567
  std::string digits = std::to_string(n);
  for (std::ptrdiff_t at = static_cast<std::ptrdiff_t>(digits.size()) - 3; at > 0; at -= 3) digits.insert(static_cast<std::size_t>(at), ",");
  return digits;
}

std::string giga(double operations) {
  char text[32];
  std::snprintf(text, sizeof text, "%.3f G", operations / 1e9);
  return text;
}

std::string bytes(const ordered_json& count) { return format_bytes(static_cast<std::uint64_t>(count.get<double>())); }

void print_parts(const ordered_json& m) {
  std::printf("%s, width %s, %s layers, vocabulary %s, context %s, head %s\n\n", m["family"].get<std::string>().c_str(), grouped(m["width"]).c_str(), grouped(m["layers"]).c_str(),
              grouped(m["vocabulary"]).c_str(), grouped(m["context"]).c_str(), m["tied"].get<bool>() ? "tied" : "of its own");
  std::vector<std::vector<std::string>> rows;
  for (const auto& kind : m["parts"]["layers"])
    rows.push_back({plan::ranges_text(kind["layers"].get<std::vector<std::int64_t>>()), kind["attention"], kind["feed_forward"], kind["residual"]});
  std::fputs(observe::format_table({"layers", "attention", "feed-forward", "residual"}, rows).c_str(), stdout);
  if (const auto further = m["further_tokens"].get<std::int64_t>(); further > 0)
    std::printf("Behind the layers: %s for further tokens.\n", further == 1 ? "a block" : (std::to_string(further) + " blocks").c_str());
  for (std::size_t i = 0; i < m["parts"]["ropes"].size(); ++i) std::printf("rope %zu: %s\n", i, m["parts"]["ropes"][i].get<std::string>().c_str());
}

void print_costs(const ordered_json& m) {
  std::vector<std::vector<std::string>> rows;
  for (const auto& [component, count] : m["parameters"]["by_component"].items()) rows.push_back({component, grouped(count)});
  rows.push_back({"total (without further_tokens and rules)", grouped(m["parameters"]["total"])});
  rows.push_back({"active for a token", grouped(m["parameters"]["active"])});
  std::printf("\n%s", observe::format_table({"parameters", "count"}, rows).c_str());
  const ordered_json& o = m["operations_per_token"];
  std::printf("\n%s", observe::format_table({"operations a token, sequences of " + grouped(o["sequence_tokens"]), "training"},
                                            {{"projections", giga(o["projections"])}, {"attention", giga(o["attention"])}, {"recurrence, indexer", giga(o["extra"])}, {"total", giga(o["training"])},
                                             {"attention with windows counted", giga(o["attention_windowed"])}, {"forward only", giga(o["forward"])}}).c_str());
  const ordered_json& b = m["memory"];
  rows = {{"weights, float32", bytes(b["weights_float32"])}, {"weights, bfloat16", bytes(b["weights_bfloat16"])}, {"kept for a token (generation)", bytes(b["cache_per_token"])},
          {"the same in bfloat16", bytes(b["cache_per_token_bfloat16"])},
          {"kept for a sequence beside its tokens", bytes(b["state_per_sequence"])}, {"a sequence of the whole context", bytes(b["cache_at_context"])},
          {"gradients", bytes(b["gradients"])}, {"AdamW", bytes(b["optimizer_adamw"])}};
  if (m.contains("layout")) rows.push_back({"fullest of " + grouped(m["layout"]["ranks"]) + " ranks: weights + gradients + AdamW", bytes(m["layout"]["total"])});
  std::printf("\n%s\n", observe::format_table({"memory", "bytes"}, rows).c_str());
}

void print_files(const ordered_json& m) {
  const ordered_json& w = m["weights"];
  const std::size_t missing = w["missing"].size();
  if (missing == 0) std::printf("weights: %s in %s file(s)", bytes(w["bytes"]).c_str(), grouped(w["files"]).c_str());
  else std::printf("weights: %zu of %s file(s) missing:", missing, grouped(w["files"]).c_str());
  for (std::size_t i = 0; i < missing && i < 5; ++i) std::printf(" %s", w["missing"][i].get<std::string>().c_str());
  std::printf("%s\n", missing > 5 ? " ..." : "");
  if (!w["problem"].is_null()) std::printf("weights: %s\n", w["problem"].get<std::string>().c_str());
  const ordered_json& t = m["tokenizer"];
  if (t.contains("vocabulary")) std::printf("tokenizer: %s tokens\n", grouped(t["vocabulary"]).c_str());
  if (!t["problem"].is_null()) std::printf("tokenizer: %s\n", t["problem"].get<std::string>().c_str());
  const ordered_json& c = m["chat_template"];
  if (!c["problem"].is_null()) std::printf("chat template: %s\n", c["problem"].get<std::string>().c_str());
  else std::printf("chat template: %s\n", c["found"].get<bool>() ? c["where"].get<std::string>().c_str() : "none");
}

int run(const InspectArguments& args) {
  const auto found = inspect(args);
  if (!found) return report(found.error(), args.json, kUsage);
  if (args.json) {
    std::printf("%s\n", found->dump().c_str());
  } else {
    print_parts(*found);
    print_costs(*found);
    print_files(*found);
  }
  return kDone;
}

} // namespace

void add_inspect(CLI::App& app, int& code) {
  auto* command = app.add_subcommand("inspect", "What a model is and costs: parts, parameters, operations, memory; needs no weights");
  auto args = std::make_shared<InspectArguments>();
  command->add_option("model", args->path, "Hugging Face folder (config.json is enough) or .gguf file")->type_name("DIR|FILE")->required();
  command->add_option("--tokens", args->tokens, "Length of the sequences whose operations are counted")->check(CLI::Range(1, 1 << 24))->capture_default_str();
  command->add_option("--layout", args->layout, "Memory of a rank: replicate=N,shard=N,tensor=N,pipeline=N,expert=N")->type_name("DEGREES");
  command->add_flag("--json", args->json, "Print JSON");
  command->callback([args, &code] { code = run(*args); });
}

} // namespace troupe::cli
