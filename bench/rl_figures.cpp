#include "bench/rl_figures.h"

#include <cstdio>

namespace troupe::bench {

RlStage rl_stage(const std::vector<nlohmann::json>& metrics) {
  RlStage stage;
  double began = 0;
  for (const auto& line : metrics) {
    const double time = line.value("time", 0.0);
    if (line.value("stage", "") != "rl") {
      if (stage.steps == 0) began = time;
      continue;
    }
    if (line.contains("eval/accuracy")) {
      if (stage.steps == 0) began = time;  // evaluated before the first step
      stage.accuracy.push_back({time - began, line["eval/accuracy"].get<double>()});
    } else {
      ++stage.steps;
      stage.seconds = time - began;
    }
  }
  return stage;
}

std::optional<double> seconds_to(const std::vector<RlStage::Point>& curve, double level) {
  for (std::size_t i = 0; i < curve.size(); ++i) {
    if (curve[i].accuracy < level) continue;
    if (i == 0) return curve[0].seconds;
    const auto &a = curve[i - 1], &b = curve[i];
    return a.seconds + (b.seconds - a.seconds) * (level - a.accuracy) / (b.accuracy - a.accuracy);
  }
  return std::nullopt;
}

std::vector<std::string> trl_arguments(const RlWork& work) {
  const auto number = [](double value) {
    char text[32];
    std::snprintf(text, sizeof text, "%.9g", value);
    return std::string(text);
  };
  return {"--model",      work.model,
          "--groups",     std::to_string(work.prompts_per_step),
          "--samples",    std::to_string(work.samples_per_prompt),
          "--max-new",    std::to_string(work.max_new_tokens),
          "--lr",         number(work.lr),
          "--steps",      std::to_string(work.steps_max),
          "--until",      number(work.until),
          "--eval-every", std::to_string(work.eval_every)};
}

}  // namespace troupe::bench
