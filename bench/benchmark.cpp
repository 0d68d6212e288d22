#include "bench/benchmark.h"

#include <sched.h>

#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <ctime>
#include <fstream>

#include "kernels/isa.h"

namespace troupe::bench {
namespace {

std::string cpu_model() {
  std::ifstream in("/proc/cpuinfo");
  for (std::string line; std::getline(in, line);)
    if (line.starts_with("model name")) return line.substr(line.find(':') + 2);
  return "unknown";
}

int cores() {
  cpu_set_t set;
  return ::sched_getaffinity(0, sizeof set, &set) == 0 ? CPU_COUNT(&set) : 1;
}

}  // namespace

nlohmann::json machine_conditions() {
  double load[1] = {0};
  nlohmann::json machine = {{"cores", cores()}, {"cpu", cpu_model()}};
  machine["isa"] = kernels::check_cpu() ? std::string(kernels::to_string(kernels::active_isa())) : "unsupported";
  machine["load1_at_start"] = ::getloadavg(load, 1) == 1 ? nlohmann::json(load[0]) : nlohmann::json(nullptr);
  return machine;
}

void Context::add(Figure figure) {
  if (options_.json) {
    std::printf("%s\n", json_row(figure, machine_).dump().c_str());
    std::fflush(stdout);
  } else {
    figures_.push_back(std::move(figure));
  }
}

void Context::say(const std::string& text) const { std::fprintf(stderr, "bench: %s\n", text.c_str()); }

void Context::print_table() {
  if (options_.json) return;
  std::fputs(table(figures_, machine_).c_str(), stdout);
  std::fflush(stdout);
  figures_.clear();
}

void Context::peer_failed(const Error& error) {
  say("error: no peer: " + error.to_string());
  complete_ = false;
}

double Stopwatch::wall_now() {
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

double Stopwatch::cpu_now() {
  timespec now{};
  ::clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &now);
  return static_cast<double>(now.tv_sec) + static_cast<double>(now.tv_nsec) * 1e-9;
}

Result<const Benchmark*> find_benchmark(std::string_view name) {
  std::string known;
  for (const Benchmark& benchmark : benchmarks()) {
    if (benchmark.name == name) return &benchmark;
    known += (known.empty() ? "" : ", ") + std::string(benchmark.name);
  }
  return fail(ErrorCode::kNotFound,
              "there is no benchmark \"" + std::string(name) + "\"; there are " + known + " and all");
}

std::string list_text(bool json) {
  nlohmann::json list = nlohmann::json::array();
  std::string text;
  for (const Benchmark& b : benchmarks()) {
    list.push_back({{"name", b.name}, {"what", b.what}, {"peer", b.peer}, {"peer_always", b.peer_always}});
    text += std::string(b.name) + std::string(b.name.size() < 12 ? 12 - b.name.size() : 1, ' ') + std::string(b.what);
    if (!b.peer.empty())
      text += " [peer" + std::string(b.peer_always ? "" : " with --peers") + ": " + std::string(b.peer) + "]";
    text += '\n';
  }
  return json ? list.dump() + "\n" : text;
}

}  // namespace troupe::bench
