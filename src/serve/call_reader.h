/// @file
/// Reads fields of a request body and collects what is wrong with all of them. Private to this folder.
#pragma once

#include <nlohmann/json.hpp>
#include <set>
#include <string>
#include <string_view>

#include "serve/api.h"

namespace troupe::serve {

class CallReader {
 public:
  /// Parses; `ok()` is false when the body is no JSON object, is too deep or holds ill-formed UTF-8.
  explicit CallReader(std::string_view body);

  [[nodiscard]] bool ok() const { return body_.is_object(); }
  [[nodiscard]] bool failed() const { return !problems_.empty(); }
  void problem(const std::string& param, const std::string& text);
  [[nodiscard]] ApiError error() const;

  /// The field, or null where it is absent or null. Marks it as known.
  [[nodiscard]] const nlohmann::ordered_json& get(const char* key);
  void string(const char* key, std::string& out);
  void boolean(const char* key, bool& out);
  void number(const char* key, double& out, double least, double most);
  void integer(const char* key, std::optional<std::int64_t>& out, std::int64_t least, std::int64_t most);
  void integer(const char* key, int& out, std::int64_t least, std::int64_t most);
  /// Known, without influence here.
  void ignore(std::initializer_list<const char*> keys);
  /// Would change the answer and cannot be done: allowed only with the value that changes nothing.
  void refuse_unless(const char* key, const nlohmann::ordered_json& neutral);
  /// Every field that nobody asked for.
  void refuse_unknown();

 private:
  nlohmann::ordered_json body_;
  std::set<std::string> known_;
  std::string problems_, first_param_;
};

/// The fields of Call.
void read_common(CallReader& reader, const CallLimits& limits, Call& call);

} // namespace troupe::serve
