// Every task a config can name.
#include <array>

#include "rl/tasks.h"

namespace troupe::rl {

std::span<const TaskRow> tasks() {
  static constexpr std::array<TaskRow, 3> kRows = {{
      {"arithmetic", "sums or word problems made by rule, graded by task.reward", &make_arithmetic_task},
      {"jsonl", "prompts and answers from a JSONL file, graded by task.reward", &make_jsonl_task},
      {"program", "a program that speaks JSON lines gives the problems and the rewards", &make_program_task},
  }};
  return kRows;
}

} // namespace troupe::rl
