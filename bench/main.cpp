// troupe-bench: `troupe bench list | NAME... [--json] [--peers] [--repeats N] [--threads N]`.
#include <CLI/CLI.hpp>

#include <cstdio>

#include "bench/benchmark.h"
#include "bench/helper.h"

namespace {

using namespace troupe;

constexpr int kDone = 0, kFailed = 1, kUsage = 2;

// The records of a run and other programs' output are read without looking at every field: what is missing is one
// error.
Status run_caught(const bench::Benchmark& benchmark, bench::Context& context) {
  try {
    return benchmark.run(context);
  } catch (const std::exception& e) {
    return fail(ErrorCode::kInternal, std::string("what was measured cannot be read: ") + e.what());
  }
}

int play(const std::vector<std::string>& names, const bench::Options& options) {
  std::vector<const bench::Benchmark*> chosen;
  for (const std::string& name : names) {
    if (name == "all") {
      for (const auto& benchmark : bench::benchmarks()) chosen.push_back(&benchmark);
      continue;
    }
    const auto found = bench::find_benchmark(name);
    if (!found) {
      std::fprintf(stderr, "troupe: error: %s\n", found.error().to_string().c_str());
      return kUsage;
    }
    chosen.push_back(*found);
  }
  int worst = kDone;
  for (const bench::Benchmark* benchmark : chosen) {
    bench::Context context(options, bench::machine_conditions());
    context.say(std::string(benchmark->name) + ": " + std::string(benchmark->what));
    const Status done = run_caught(*benchmark, context);
    context.print_table();
    if (!context.complete()) worst = kFailed;
    if (done) continue;
    std::fprintf(stderr, "troupe: error: %s: %s\n", std::string(benchmark->name).c_str(),
                 done.error().to_string().c_str());
    worst = kFailed;  // the others are still worth their figures
  }
  return worst;
}

}  // namespace

int main(int argc, char** argv) {
  if (argc == 3 && bench::is_helper(argv[1])) return bench::run_helper(argv[1], argv[2]);
  CLI::App app{"Measures troupe, each figure with its conditions, and what a user would pick instead beside it.",
               "troupe bench"};
  std::vector<std::string> names;
  bench::Options options;
  int repeats = 0;
  app.add_option("names", names, "list, all, or benchmarks by name")->required()->type_name("NAME");
  app.add_flag("--json", options.json, "One JSON object a line and figure");
  app.add_flag("--peers", options.peers,
               "Measure the peers too (brings a Python environment of 3 GB at the first use)");
  app.add_option("--repeats", repeats, "Instead of each benchmark's own number of repeats")->check(CLI::Range(1, 1000));
  app.add_option("--threads", options.threads, "Of generate, train and kernels and their peers; 2 if left out")
      ->check(CLI::Range(1, 1024));
  try {
    app.parse(argc, argv);
  } catch (const CLI::ParseError& e) {
    return app.exit(e) == 0 ? kDone : kUsage;
  }
  if (repeats > 0) options.repeats = repeats;
  if (names.front() == "list") {
    std::fputs(bench::list_text(options.json).c_str(), stdout);
    return kDone;
  }
  return play(names, options);
}
