# What scripts/setup.sh brought, as imported targets. Everything heavy is optional for the folders that do not name it.
set(TROUPE_DEPS "${PROJECT_SOURCE_DIR}/.deps" CACHE PATH "The folder that scripts/setup.sh fills")
if(NOT EXISTS "${TROUPE_DEPS}/caf")
  message(FATAL_ERROR "${TROUPE_DEPS} is not set up: run scripts/setup.sh")
endif()

find_package(Threads REQUIRED)
find_package(OpenSSL REQUIRED) # before CAF, whose package file does not look for it itself
set(caf "${TROUPE_DEPS}/caf")
if(TROUPE_SANITIZE MATCHES "thread")
  # A CAF that is not instrumented hides what its mailboxes order: every message would be reported as a race.
  set(caf "${TROUPE_DEPS}/caf-tsan")
  if(NOT EXISTS "${caf}")
    message(FATAL_ERROR "the tsan preset needs a CAF of its own: CXX='c++ -fsanitize=thread -g' scripts/get_caf.sh ${caf}")
  endif()
endif()
find_package(CAF 0.18.7 EXACT REQUIRED COMPONENTS core io openssl PATHS "${caf}" NO_DEFAULT_PATH)
find_package(nlohmann_json REQUIRED)
find_package(GTest REQUIRED)
find_package(PkgConfig REQUIRED)
pkg_check_modules(pcre2 REQUIRED IMPORTED_TARGET libpcre2-8)
pkg_check_modules(icu REQUIRED IMPORTED_TARGET icu-uc)
pkg_check_modules(xxhash REQUIRED IMPORTED_TARGET libxxhash)
pkg_check_modules(httplib REQUIRED IMPORTED_TARGET cpp-httplib)
pkg_check_modules(simdjson REQUIRED IMPORTED_TARGET simdjson)
find_package(OpenMP REQUIRED)

# The engine for chat templates: sources of a PyPI package, as they are.
file(GLOB jinja_root "${TROUPE_DEPS}/jinja/*/vendor/llama.cpp/common")
if(NOT EXISTS "${jinja_root}/jinja/runtime.h")
  message(FATAL_ERROR "${TROUPE_DEPS}/jinja is not set up: run scripts/setup.sh")
endif()
add_library(jinja_engine STATIC EXCLUDE_FROM_ALL ${jinja_root}/jinja/lexer.cpp ${jinja_root}/jinja/parser.cpp ${jinja_root}/jinja/runtime.cpp
            ${jinja_root}/jinja/string.cpp ${jinja_root}/jinja/value.cpp ${jinja_root}/json.cpp ${jinja_root}/unicode.cpp)
target_include_directories(jinja_engine SYSTEM PUBLIC "${jinja_root}" PRIVATE "${PROJECT_SOURCE_DIR}/cmake/jinja")
target_compile_options(jinja_engine PRIVATE -w)
target_link_libraries(jinja_engine PRIVATE nlohmann_json::nlohmann_json troupe_sanitizers)

# UCX: compiled against Debian's headers, run on the wheel's libraries, which have the faster shared memory: opened at the first transfer, by the
# programs' rpath (src/comm/ucx.h says why).
find_path(TROUPE_UCX_INCLUDE ucp/api/ucp.h REQUIRED)
set(ucx_lib "${TROUPE_DEPS}/ucx/libucx/lib")
if(NOT EXISTS "${ucx_lib}/libucp.so.0")
  set(ucx_lib "${TROUPE_DEPS}/ucx/lib") # UCX_ROOT of the site
endif()
add_library(ucx_ucp INTERFACE)
target_include_directories(ucx_ucp SYSTEM INTERFACE "${TROUPE_UCX_INCLUDE}")
target_link_options(ucx_ucp INTERFACE "-Wl,-rpath,${ucx_lib}")
target_link_libraries(ucx_ucp INTERFACE ${CMAKE_DL_LIBS})

# LibTorch's CPU half: torch_cpu and c10 only. The CUDA half is linked by kernels/cuda alone.
if(TROUPE_TORCH)
  set(torch_root "${TROUPE_DEPS}/torch/torch")
  if(NOT EXISTS "${torch_root}/lib/libtorch_cpu.so")
    set(torch_root "${TROUPE_DEPS}/torch") # TORCH_ROOT of the site
  endif()
  add_library(torch_cpu INTERFACE)
  target_include_directories(torch_cpu SYSTEM INTERFACE "${torch_root}/include" "${torch_root}/include/torch/csrc/api/include")
  target_compile_definitions(torch_cpu INTERFACE USE_C10D_GLOO USE_DISTRIBUTED)
  # RPATH, not RUNPATH: the search for what libtorch_cpu itself names (libcupti, libcudart) must come here too; there may be no CUDA on the machine.
  target_link_options(torch_cpu INTERFACE -Wl,--allow-shlib-undefined -Wl,--disable-new-dtags "-Wl,-rpath,${torch_root}/lib" "-Wl,-rpath,${TROUPE_DEPS}/runtime"
                      "-Wl,-rpath-link,${TROUPE_DEPS}/runtime")
  target_link_libraries(torch_cpu INTERFACE "${torch_root}/lib/libtorch_cpu.so" "${torch_root}/lib/libc10.so")
endif()
