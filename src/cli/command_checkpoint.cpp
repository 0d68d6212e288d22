// troupe checkpoint ls | verify
#include <cstdio>
#include <filesystem>
#include <nlohmann/json.hpp>

#include "checkpoint/repository.h"
#include "cli/common.h"
#include "observe/console.h"

namespace troupe::cli {
namespace {

namespace fs = std::filesystem;

fs::path checkpoints_of(const Target& target) {
  if (const auto live = find_run(target)) return live->folder / "checkpoints";
  const fs::path given = target.run;
  return (fs::exists(given / "checkpoints") ? given : fs::path("runs") / given) / "checkpoints";
}

int list(const Target& target, bool verify) {
  const fs::path folder = checkpoints_of(target);
  if (!fs::exists(folder)) return report({ErrorCode::kNotFound, "no run with checkpoints is called \"" + target.run + "\"; name its folder with --run", ""}, target.json, kUsage);
  const checkpoint::Repository repository(folder);
  const auto commits = repository.list();
  if (!commits) return report(commits.error(), target.json, kRunFailed);
  std::vector<std::vector<std::string>> rows;
  nlohmann::json out = nlohmann::json::array();
  bool all_good = true;
  for (const auto& commit : *commits) {
    std::uintmax_t bytes = 0;
    std::error_code ec;
    for (const auto& file : fs::directory_iterator(commit.folder, ec)) bytes += file.file_size(ec);
    const Status status = verify ? repository.verify(commit.folder) : Status{};
    all_good = all_good && status.has_value();
    rows.push_back({commit.folder.filename().string(), format_bytes(bytes), !verify ? "" : status ? "every checksum is right" : status.error().message});
    out.push_back({{"name", rows.back()[0]}, {"bytes", bytes}, {"ok", status.has_value()}});
  }
  if (target.json) std::printf("%s\n", out.dump().c_str());
  else std::fputs(observe::format_table({"checkpoint", "size", verify ? "verified" : ""}, rows).c_str(), stdout);
  return all_good ? kDone : kRunFailed;
}

} // namespace

void add_checkpoint(CLI::App& app, int& code) {
  auto* command = app.add_subcommand("checkpoint", "The checkpoints of a run");
  command->require_subcommand(1);
  auto target = std::make_shared<Target>();
  auto* ls = command->add_subcommand("ls", "List them, newest first");
  add_target(*ls, *target);
  ls->callback([=, &code] { code = list(*target, false); });
  auto* verify = command->add_subcommand("verify", "Read every byte and compare checksums");
  add_target(*verify, *target);
  verify->callback([=, &code] { code = list(*target, true); });
}

} // namespace troupe::cli
