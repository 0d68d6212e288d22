#include "plan/layout.h"

#include <algorithm>
#include <array>
#include <charconv>
#include <string>
#include <vector>

#include "model/parameters.h"
#include "plan/cost.h"

namespace troupe::plan {

namespace {

struct Degree {
  std::string_view name;
  std::int64_t Layout::* value;
};
constexpr std::array kDegrees = {Degree{"replicate", &Layout::replicate}, Degree{"shard", &Layout::shard},
                                 Degree{"tensor", &Layout::tensor}, Degree{"pipeline", &Layout::pipeline},
                                 Degree{"expert", &Layout::expert}};
constexpr std::int64_t kDegreeMax = 1 << 20;

std::int64_t cut(std::int64_t elements, std::int64_t parts) { return (elements + parts - 1) / parts; }

/// Which stage has a place: as many layers to each as there can be, the longer ones first; embedding on the first, the
/// rest of the model and the blocks for further tokens on the last.
std::int64_t stage_of(const model::ParameterSpec& row, const model::ModelSpec& spec, std::int64_t stages) {
  if (row.place < 0) return row.role == model::Role::kEmbedding ? 0 : stages - 1;
  const auto layers = static_cast<std::int64_t>(spec.layers.size());
  if (row.place >= layers) return stages - 1;
  const std::int64_t usual = layers / stages, longer = layers % stages;
  const std::int64_t in_longer = longer * (usual + 1);
  return row.place < in_longer ? row.place / (usual + 1) : longer + (row.place - in_longer) / usual;
}

std::string problem_of(std::string_view entry, Layout& layout) {
  const std::string quoted = "'" + std::string(entry) + "'";
  const auto equals = entry.find('=');
  const auto found = std::find_if(kDegrees.begin(), kDegrees.end(), [&](const Degree& d) { return d.name == entry.substr(0, equals); });
  if (equals == std::string_view::npos || found == kDegrees.end())
    return quoted + " is not one of replicate=N, shard=N, tensor=N, pipeline=N, expert=N";
  const std::string_view number = entry.substr(equals + 1);
  std::int64_t value = 0;
  const auto [end, error] = std::from_chars(number.data(), number.data() + number.size(), value);
  if (error != std::errc{} || end != number.data() + number.size() || value < 1 || value > kDegreeMax)
    return quoted + " must have a whole number from 1 to " + std::to_string(kDegreeMax);
  layout.*(found->value) = value;
  return {};
}

Status check(const model::ModelSpec& spec, const Layout& layout) {
  std::string problems;
  const auto add = [&](const std::string& text) { problems += (problems.empty() ? "" : "; ") + text; };
  if (layout.pipeline > static_cast<std::int64_t>(spec.layers.size()))
    add("pipeline=" + std::to_string(layout.pipeline) + " is more than the " + std::to_string(spec.layers.size()) + " layers");
  if (layout.expert > layout.replicate * layout.shard)
    add("expert=" + std::to_string(layout.expert) + " is more than replicate x shard, over which experts are dealt");
  for (const model::LayerSpec& layer : spec.layers) {
    const auto experts = layer.ffn.kind == model::FfnKind::kExperts ? layer.ffn.experts.count : layout.expert;
    if (experts % layout.expert == 0) continue;
    add("expert=" + std::to_string(layout.expert) + " does not divide the " + std::to_string(experts) + " experts");
    break;
  }
  for (const model::LayerSpec& layer : spec.layers) {
    const auto heads = layer.attention.kind == model::AttentionKind::kDeltaNet ? layer.attention.delta.value_heads : layer.attention.heads;
    if (heads % layout.tensor == 0) continue;
    add("tensor=" + std::to_string(layout.tensor) + " does not divide the " + std::to_string(heads) + " heads");
    break;
  }
  if (problems.empty()) return {};
  return fail(ErrorCode::kInvalidArgument, "the layout does not fit the model: " + problems, "--layout");
}

}  // namespace

Result<Layout> parse_layout(std::string_view text) {
  Layout layout;
  std::string problems;
  for (std::string_view rest = text;;) {
    const auto comma = rest.find(',');
    const std::string problem = problem_of(rest.substr(0, comma), layout);
    if (!problem.empty()) problems += (problems.empty() ? "" : "; ") + problem;
    if (comma == std::string_view::npos) break;
    rest.remove_prefix(comma + 1);
  }
  if (problems.empty()) return layout;
  return fail(ErrorCode::kInvalidArgument, problems, "--layout");
}

Result<RankMemory> fullest_rank(const model::ModelSpec& spec, const Layout& layout) {
  TROUPE_TRY_STATUS(check(spec, layout));
  std::vector<RankMemory> stages(static_cast<std::size_t>(layout.pipeline));
  for (const model::ParameterSpec& row : model::parameter_table(spec)) {
    std::int64_t elements = row.elements();
    if (row.shape.size() >= 2) elements = cut(elements, layout.tensor);
    // A rank's experts are cut over the data ranks that do not hold other ones.
    elements = component_of(row, spec) == Component::kExperts && row.shape.size() == 3
                   ? cut(cut(elements, layout.expert), std::max<std::int64_t>(layout.shard / layout.expert, 1))
                   : cut(elements, layout.shard);
    const std::int64_t bytes = elements * static_cast<std::int64_t>(sizeof(float));
    RankMemory& memory = stages[static_cast<std::size_t>(stage_of(row, spec, layout.pipeline))];
    memory.weights += bytes;
    if (!row.trains) continue;
    memory.gradients += bytes;
    memory.optimizer += 2 * bytes;
  }
  return *std::max_element(stages.begin(), stages.end(), [](const RankMemory& a, const RankMemory& b) { return a.total() < b.total(); });
}

}  // namespace troupe::plan
