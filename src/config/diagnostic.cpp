#include "config/diagnostic.h"

#include <algorithm>
#include <nlohmann/json.hpp>
#include <tuple>

namespace troupe::config {
namespace {

// The white space under which column `column` of `line` stands: tabs stay tabs, every other character is one blank.
std::string padding(std::string_view line, int column) {
  std::string out;
  int seen = 0;
  for (std::size_t i = 0; i < line.size() && seen < column - 1; ++i) {
    if ((static_cast<unsigned char>(line[i]) & 0xC0) == 0x80) continue;  // inside a UTF-8 character
    out += line[i] == '\t' ? '\t' : ' ';
    ++seen;
  }
  return out;
}

int characters(std::string_view line) {
  return static_cast<int>(
      std::ranges::count_if(line, [](char c) { return (static_cast<unsigned char>(c) & 0xC0) != 0x80; }));
}

// Damerau-Levenshtein distance (optimal string alignment).
std::size_t distance(std::string_view a, std::string_view b) {
  std::vector<std::size_t> before(b.size() + 1), last(b.size() + 1), row(b.size() + 1);
  for (std::size_t j = 0; j <= b.size(); ++j) last[j] = j;
  for (std::size_t i = 1; i <= a.size(); ++i) {
    row[0] = i;
    for (std::size_t j = 1; j <= b.size(); ++j) {
      row[j] = std::min({last[j] + 1, row[j - 1] + 1, last[j - 1] + (a[i - 1] == b[j - 1] ? 0 : 1)});
      if (i > 1 && j > 1 && a[i - 1] == b[j - 2] && a[i - 2] == b[j - 1]) row[j] = std::min(row[j], before[j - 2] + 1);
    }
    before = last;
    last = row;
  }
  return last[b.size()];
}

}  // namespace

int Sources::add_file(std::string name, std::string text) {
  Source source{std::move(name), {}, true};
  std::string_view rest = text;
  while (!rest.empty()) {
    const std::size_t end = std::min(rest.find('\n'), rest.size());
    std::string line(rest.substr(0, end));
    if (line.ends_with('\r')) line.pop_back();
    source.lines.push_back(std::move(line));
    rest.remove_prefix(std::min(end + 1, rest.size()));
  }
  sources_.push_back(std::move(source));
  return static_cast<int>(sources_.size()) - 1;
}

int Sources::add_flag(std::string name) {
  sources_.push_back({std::move(name), {}, false});
  return static_cast<int>(sources_.size()) - 1;
}

std::string Sources::place(const Origin& origin) const {
  if (origin.source < 0) return "default";
  const Source& source = sources_.at(static_cast<std::size_t>(origin.source));
  if (!source.has_lines || origin.line <= 0) return source.name;
  return source.name + ":" + std::to_string(origin.line) + ":" + std::to_string(origin.column);
}

std::string Sources::provenance(const Origin& origin) const {
  if (origin.source < 0) return "default";
  const Source& source = sources_.at(static_cast<std::size_t>(origin.source));
  return source.has_lines && origin.line > 0 ? source.name + ":" + std::to_string(origin.line) : source.name;
}

std::string Sources::excerpt(const Origin& origin) const {
  if (origin.source < 0) return {};
  const Source& source = sources_.at(static_cast<std::size_t>(origin.source));
  if (!source.has_lines || origin.line <= 0 || origin.line > static_cast<int>(source.lines.size())) return {};
  const std::string& line = source.lines[static_cast<std::size_t>(origin.line) - 1];
  std::string number = std::to_string(origin.line);
  if (number.size() < 5) number.insert(0, 5 - number.size(), ' ');
  const int room = std::max(1, characters(line) - origin.column + 1);
  const int width = std::clamp(origin.width, 1, room);
  return number + " | " + line + "\n" + std::string(number.size(), ' ') + " | " + padding(line, origin.column) + "^" +
         std::string(static_cast<std::size_t>(width) - 1, '~') + "\n";
}

void Diagnostics::error(std::string_view path, Diagnostic diagnostic) {
  if (!path.empty()) bad_paths_.emplace_back(path);
  list_.push_back(std::move(diagnostic));
}

std::vector<Diagnostic> Diagnostics::sorted() const {
  std::vector<Diagnostic> out = list_;
  std::ranges::stable_sort(
      out, {}, [](const Diagnostic& d) { return std::tuple(d.origin.source, d.origin.line, d.origin.column); });
  return out;
}

bool Diagnostics::is_bad(std::string_view path) const {
  return std::ranges::any_of(bad_paths_, [path](const std::string& bad) {
    const std::string_view shorter = bad.size() < path.size() ? std::string_view(bad) : path;
    const std::string_view longer = bad.size() < path.size() ? path : std::string_view(bad);
    return longer.starts_with(shorter) && (longer.size() == shorter.size() || longer[shorter.size()] == '.');
  });
}

std::string Diagnostics::text() const {
  std::string out;
  const auto with_place = [this](const Origin& origin) {
    return origin.source < 0 ? std::string() : sources.place(origin) + ": ";
  };
  for (const Diagnostic& d : sorted()) {
    out += with_place(d.origin) + "error: " + d.message + "\n" + sources.excerpt(d.origin);
    for (const Note& note : d.notes)
      out += with_place(note.origin) + "note: " + note.message + "\n" + sources.excerpt(note.origin);
    if (!d.hint.empty()) out += "   hint: " + d.hint + "\n";
  }
  if (!empty()) out += std::to_string(size()) + (size() == 1 ? " error" : " errors") + "; nothing was started\n";
  return out;
}

nlohmann::json Diagnostics::json() const {
  nlohmann::json out = nlohmann::json::array();
  for (const Diagnostic& d : sorted()) {
    nlohmann::json notes = nlohmann::json::array();
    for (const Note& note : d.notes)
      notes.push_back({{"place", sources.place(note.origin)}, {"message", note.message}});
    out.push_back({{"place", sources.place(d.origin)},
                   {"line", d.origin.line},
                   {"column", d.origin.column},
                   {"message", d.message},
                   {"hint", d.hint},
                   {"notes", std::move(notes)}});
  }
  return out;
}

std::vector<std::string> suggestions(std::string_view word, std::span<const std::string> candidates,
                                     std::size_t count_max) {
  const std::size_t limit = std::max<std::size_t>(1, word.size() / 3);
  std::vector<std::pair<std::size_t, std::string>> near;
  for (const std::string& candidate : candidates)
    if (const std::size_t d = distance(word, candidate); d <= limit) near.emplace_back(d, candidate);
  std::ranges::sort(near);
  near.erase(std::unique(near.begin(), near.end()), near.end());
  std::vector<std::string> out;
  for (std::size_t i = 0; i < near.size() && i < count_max && near[i].first <= near.front().first + 1; ++i)
    out.push_back(near[i].second);
  return out;
}

}  // namespace troupe::config
