#include "base/check.h"

#include <cstdio>
#include <cstdlib>

namespace troupe {

void check_failed(std::string_view condition, std::string_view why, std::source_location where) {
  std::fprintf(stderr, "%s:%u: check failed: %.*s: %.*s\n", where.file_name(), static_cast<unsigned>(where.line()),
               static_cast<int>(condition.size()), condition.data(), static_cast<int>(why.size()), why.data());
  std::fflush(stderr);
  std::abort();
}

} // namespace troupe
