/// @file
/// What clang 14 lacks of libstdc++ 12: std::source_location. Included before everything by cmake/FuzzToolchain.cmake.
#pragma once
#if defined(__clang__) && defined(__cplusplus) && !__has_builtin(__builtin_source_location)

namespace std {

struct source_location {
  static constexpr source_location current(const char* file = __builtin_FILE(), const char* function = __builtin_FUNCTION(),
                                           unsigned line = __builtin_LINE()) noexcept {
    return {file, function, line};
  }
  constexpr const char* file_name() const noexcept { return file_; }
  constexpr const char* function_name() const noexcept { return function_; }
  constexpr unsigned line() const noexcept { return line_; }
  const char* file_ = "";
  const char* function_ = "";
  unsigned line_ = 0;
};

}  // namespace std

#endif
