#include "observe/console.h"

#include <sys/ioctl.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <cstdlib>

namespace troupe::observe {
namespace {

constexpr Duration kRedraw = std::chrono::milliseconds(100);  // faster is flicker

std::string number(const char* format, double value) {
  char text[48];
  std::snprintf(text, sizeof text, format, value);
  return text;
}

// 950, 3.1k, 12k, 1.2M
std::string rate(double value) {
  if (value < 1000) return number("%.0f", value);
  if (value < 10'000) return number("%.1fk", value / 1e3);
  if (value < 1e6) return number("%.0fk", value / 1e3);
  return number("%.1fM", value / 1e6);
}

std::size_t characters(std::string_view text) {
  return static_cast<std::size_t>(
      std::ranges::count_if(text, [](char c) { return (static_cast<unsigned char>(c) & 0xC0) != 0x80; }));
}

bool numeric(std::string_view cell) {
  return !cell.empty() && cell.find_first_of("0123456789") == (cell.front() == '-' ? 1u : 0u);
}

}  // namespace

std::string format_progress(const Progress& p, std::size_t columns_max) {
  std::string line = p.stage + (p.stage.empty() ? "" : " ") + std::to_string(p.step) + "/" + std::to_string(p.steps);
  if (p.reward) line += "  reward " + number("%.3f", *p.reward);
  if (p.loss) line += "  loss " + number("%.4g", *p.loss);
  if (p.tokens_per_second) line += "  " + rate(*p.tokens_per_second) + " tok/s";
  if (p.policy_age_mean)
    line += "  age " + number("%.1f", *p.policy_age_mean) +
            (p.policy_age_max ? " (max " + number("%.0f", *p.policy_age_max) + ")" : "");
  if (p.eval_accuracy) line += "  eval " + number("%.1f%%", *p.eval_accuracy * 100);
  if (p.left) line += "  " + format_duration(*p.left) + " left";
  if (columns_max == 0 || characters(line) <= columns_max) return line;
  std::size_t bytes = 0;
  for (std::size_t seen = 0; bytes < line.size(); ++bytes)
    if ((static_cast<unsigned char>(line[bytes]) & 0xC0) != 0x80 && seen++ == columns_max) break;
  return line.substr(0, bytes);
}

ProgressLine::ProgressLine(int fd, bool is_terminal, std::size_t columns, Duration interval)
    : fd_(fd), is_terminal_(is_terminal), columns_(columns), interval_(interval) {}

std::size_t ProgressLine::terminal_columns(int fd) {
  const char* term = std::getenv("TERM");
  winsize size{};
  if (::isatty(fd) == 0 || (term != nullptr && std::string_view(term) == "dumb")) return 0;
  return ::ioctl(fd, TIOCGWINSZ, &size) == 0 && size.ws_col > 0 ? size.ws_col : 80;
}

void ProgressLine::write(std::string_view text) const {
  while (!text.empty()) {  // what nobody reads is not worth an error: a closed terminal must not stop the run
    const ssize_t written = ::write(fd_, text.data(), text.size());
    if (written < 0 && errno != EINTR) return;
    if (written > 0) text.remove_prefix(static_cast<std::size_t>(written));
  }
}

void ProgressLine::update(const Progress& progress, TimePoint now) {
  const bool new_stage = progress.stage != stage_;
  if (new_stage && !stage_.empty()) finish();
  stage_ = progress.stage;
  pending_ = format_progress(progress, is_terminal_ && columns_ > 1 ? columns_ - 1 : 0);
  const bool due = new_stage || !drawn_at_ || now - *drawn_at_ >= (is_terminal_ ? kRedraw : interval_);
  const bool last = progress.steps > 0 && progress.step >= progress.steps;
  if (!due && !last) return;
  if (pending_ != shown_) write(is_terminal_ ? "\r\x1b[K" + pending_ : pending_ + "\n");
  shown_ = pending_;
  drawn_at_ = now;
}

void ProgressLine::print(std::string_view line) {
  if (is_terminal_ && !shown_.empty())
    write("\r\x1b[K" + std::string(line) + "\n" + shown_);
  else
    write(std::string(line) + "\n");
}

void ProgressLine::finish() {
  if (is_terminal_) {
    if (pending_ != shown_) write("\r\x1b[K" + pending_);
    if (!pending_.empty()) write("\n");
  } else if (pending_ != shown_) {
    write(pending_ + "\n");
  }
  shown_.clear();
  pending_.clear();
  stage_.clear();
  drawn_at_.reset();
}

std::optional<Duration> estimate_left(std::uint64_t steps_done, std::uint64_t steps, Duration elapsed) {
  if (steps_done == 0 || steps < steps_done) return {};
  return from_seconds(seconds(elapsed) * static_cast<double>(steps - steps_done) / static_cast<double>(steps_done));
}

std::string format_table(const std::vector<std::string>& header, const std::vector<std::vector<std::string>>& rows) {
  std::vector<std::size_t> widths;
  for (const std::string& cell : header) widths.push_back(characters(cell));
  for (const auto& row : rows)
    for (std::size_t i = 0; i < row.size() && i < widths.size(); ++i)
      widths[i] = std::max(widths[i], characters(row[i]));
  std::string out;
  const auto line = [&](const std::vector<std::string>& row) {
    std::string text;
    for (std::size_t i = 0; i < widths.size(); ++i) {
      const std::string cell = i < row.size() ? row[i] : "";
      const std::string pad(widths[i] - characters(cell), ' ');
      text += (i == 0 ? "" : "  ") + (numeric(cell) ? pad + cell : cell + pad);
    }
    out += text.substr(0, text.find_last_not_of(' ') + 1) + "\n";
  };
  line(header);
  std::vector<std::string> rule;
  for (const std::size_t width : widths) rule.emplace_back(width, '-');
  line(rule);
  for (const auto& row : rows) line(row);
  return out;
}

}  // namespace troupe::observe
