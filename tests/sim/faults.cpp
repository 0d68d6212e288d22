#include "sim/faults.h"

#include <algorithm>
#include <chrono>

#include "base/rng.h"

namespace troupe::sim {

using namespace std::chrono_literals;

namespace {

constexpr std::uint64_t kMessages = 40'000;  // more than a run sends while there are faults

struct Row {
  FaultKind kind;
  const char* name;
  double chance;        // that a seed has any of them
  std::uint64_t every;  // seconds between two of them, about
  std::uint64_t least, most;  // milliseconds that one lasts
};
constexpr Row kRows[] = {
    {FaultKind::kCrashWorker, "kill -9 of a rollout worker", 0.5, 5, 0, 0},
    {FaultKind::kCrashRank, "kill -9 of a rank", 0.35, 12, 0, 0},
    {FaultKind::kCrashWriter, "kill -9 of the writer", 0.3, 8, 0, 0},
    {FaultKind::kCrashAgent, "kill -9 of the node agent", 0.2, 15, 0, 0},
    {FaultKind::kCrashHead, "kill -9 of the head", 0.4, 12, 50, 14'000},
    {FaultKind::kFreezeWorker, "SIGSTOP of a rollout worker", 0.4, 6, 300, 6000},
    {FaultKind::kFreezeRank, "SIGSTOP of a rank", 0.25, 10, 300, 5000},
    {FaultKind::kFreezeWriter, "SIGSTOP of the writer", 0.25, 10, 300, 5000},
    {FaultKind::kFreezeHead, "SIGSTOP of the head", 0.2, 12, 300, 6000},
    {FaultKind::kFreezeAgent, "SIGSTOP of the node agent", 0.2, 12, 300, 6000},
    {FaultKind::kClockOfHead, "the head's clock jumps", 0.2, 10, 200, 20'000},
    {FaultKind::kClockOfRank, "the clock of rank/0 jumps", 0.2, 8, 200, 20'000},
    {FaultKind::kClockBackOfHead, "the head's clock goes back", 0.2, 10, 200, 20'000},
    {FaultKind::kClockBackOfRank, "the clock of rank/0 goes back", 0.2, 8, 200, 20'000},
    {FaultKind::kFullDisk, "the disk is full", 0.3, 12, 500, 8000},
    {FaultKind::kScale, "scale", 0.5, 4, 0, 0},
    {FaultKind::kStop, "stop", 0.15, 25, 0, 0},
};
struct MessageRow {
  FaultKind kind;
  const char* name;
  double chance, rate;
};
constexpr MessageRow kMessageRows[] = {{FaultKind::kLoseMessage, "is lost", 0.7, 0.03},
                                       {FaultKind::kDoubleMessage, "comes twice", 0.7, 0.05},
                                       {FaultKind::kDelayMessage, "is late", 0.7, 0.05}};

std::string seconds(Duration d) { return format_duration(std::chrono::duration_cast<std::chrono::milliseconds>(d)); }

}  // namespace

std::string to_string(const Fault& fault) {
  for (const MessageRow& row : kMessageRows)
    if (row.kind == fault.kind) return "message " + std::to_string(fault.message) + " " + row.name;
  for (const Row& row : kRows) {
    if (row.kind != fault.kind) continue;
    std::string text = "at " + seconds(fault.at) + ": " + row.name;
    if (fault.kind == FaultKind::kScale) text += " rollout=" + std::to_string(fault.pick % 7);
    if (fault.lasts > Duration{}) text += ", " + seconds(fault.lasts);
    return text;
  }
  return "?";
}

Faults faults_of(std::uint64_t seed, Duration span) {
  Rng rng(seed, RngStream::kTest, 1);
  Faults faults;
  for (const MessageRow& row : kMessageRows) {
    if (rng.uniform() >= row.chance) continue;
    for (std::uint64_t i = 0; i < kMessages; ++i)
      if (rng.uniform() < row.rate) faults.push_back({row.kind, {}, i, 0, {}});
  }
  for (const Row& row : kRows) {
    if (rng.uniform() >= row.chance) continue;
    const auto gap = [&] { return std::chrono::milliseconds(200 + rng.below(2000 * row.every)); };
    for (Duration at = gap(); at < span; at += gap())
      faults.push_back({row.kind, at, 0, rng.next(), std::chrono::milliseconds(row.least + rng.below(row.most - row.least + 1))});
  }
  return faults;
}

Faults minimise(Faults faults, const std::function<bool(const Faults&)>& fails, int runs_max) {
  int runs = 0;
  for (std::size_t chunk = (faults.size() + 1) / 2; chunk > 0;) {
    bool smaller = false;
    for (std::size_t begin = 0; begin < faults.size() && runs < runs_max;) {
      Faults rest(faults.begin(), faults.begin() + static_cast<std::ptrdiff_t>(begin));
      rest.insert(rest.end(), faults.begin() + static_cast<std::ptrdiff_t>(std::min(begin + chunk, faults.size())), faults.end());
      ++runs;
      if (fails(rest)) {
        faults = std::move(rest);
        smaller = true;
      } else {
        begin += chunk;
      }
    }
    if (runs >= runs_max) break;
    if (chunk > 1) chunk = (chunk + 1) / 2;
    else if (!smaller) break;  // no single one can be spared
  }
  return faults;
}

} // namespace troupe::sim
