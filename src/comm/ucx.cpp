#include "comm/ucx.h"

#include <dlfcn.h>

#include <cstdlib>

#include "comm/transfer.h"

namespace troupe::comm {
namespace internal {
namespace {

Result<Ucx> load() {
  void* library = ::dlopen("libucp.so.0", RTLD_NOW | RTLD_LOCAL); // found by the program's run path; never closed
  if (library == nullptr) return fail(ErrorCode::kUnavailable, std::string("UCX cannot be loaded: ") + ::dlerror());
  Ucx out;
#define TROUPE_UCX_FIND(name)                                                                                             \
  out.name = reinterpret_cast<decltype(out.name)>(::dlsym(library, #name));                                               \
  if (out.name == nullptr) return fail(ErrorCode::kUnavailable, "this UCX is another one than troupe was built for: it lacks " #name);
  TROUPE_UCX_FUNCTIONS(TROUPE_UCX_FIND)
#undef TROUPE_UCX_FIND
  return out;
}

} // namespace

const Result<Ucx>& open_ucx() {
  static const Result<Ucx> kOpened = load();
  return kOpened;
}

} // namespace internal

void skip_memory_hooks() { ::setenv("UCX_MEM_MMAP_HOOK_MODE", "none", 0); }

} // namespace troupe::comm
