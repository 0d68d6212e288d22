#include "base/log.h"

#include <unistd.h>

#include <atomic>
#include <chrono>
#include <cstdio>
#include <ctime>
#include <mutex>
#include <string>

namespace troupe {
namespace {

// The one piece of process-wide state: where a line of text goes is a property of the process.
std::atomic<LogLevel> g_level{LogLevel::kInfo};
std::mutex g_name_mutex;
std::string g_name;

constexpr const char* kLevelNames[] = {"debug", "info", "warning", "error"};

} // namespace

void set_log_level(LogLevel level) { g_level = level; }

void set_log_name(std::string_view name) {
  const std::lock_guard lock(g_name_mutex);
  g_name = name;
}

void log(LogLevel level, std::string_view text) {
  if (level < g_level.load(std::memory_order_relaxed)) return;
  const auto now = std::chrono::system_clock::now();
  const std::time_t t = std::chrono::system_clock::to_time_t(now);
  const auto ms = static_cast<int>(std::chrono::duration_cast<std::chrono::milliseconds>(now.time_since_epoch()).count() % 1000);
  std::tm tm{};
  localtime_r(&t, &tm);
  char head[64];
  std::snprintf(head, sizeof head, "%02d:%02d:%02d.%03d %s ", tm.tm_hour, tm.tm_min, tm.tm_sec, ms, kLevelNames[static_cast<int>(level)]);
  std::string line = head;
  {
    const std::lock_guard lock(g_name_mutex);
    if (!g_name.empty()) line += g_name + ": ";
  }
  line.append(text).push_back('\n');
  [[maybe_unused]] const auto written = ::write(STDERR_FILENO, line.data(), line.size());
}

} // namespace troupe
