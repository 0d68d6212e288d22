/// @file
/// Lines for people, on stderr. Thread-safe; one write(2) a line, so that processes sharing a file never tear lines.
#pragma once

#include <string_view>

namespace troupe {

enum class LogLevel { kDebug, kInfo, kWarning, kError };

/// Lines below `level` are dropped; the default is kInfo.
void set_log_level(LogLevel level);
/// The name in front of every line of this process, e.g. "rollout/1".
void set_log_name(std::string_view name);
/// "12:30:01.123 warning rollout/1: text".
void log(LogLevel level, std::string_view text);

inline void log_debug(std::string_view text) { log(LogLevel::kDebug, text); }
inline void log_info(std::string_view text) { log(LogLevel::kInfo, text); }
inline void log_warning(std::string_view text) { log(LogLevel::kWarning, text); }
inline void log_error(std::string_view text) { log(LogLevel::kError, text); }

} // namespace troupe
