# Compiler launcher, linker, warnings and sanitizers. Targets take them by linking troupe_warnings / troupe_sanitizers.
find_program(TROUPE_CCACHE ccache)
if(TROUPE_CCACHE)
  set(CMAKE_CXX_COMPILER_LAUNCHER
      "${CMAKE_COMMAND};-E;env;CCACHE_BASEDIR=${PROJECT_SOURCE_DIR};CCACHE_NOHASHDIR=1;CCACHE_SLOPPINESS=pch_defines,time_macros;${TROUPE_CCACHE}")
endif()
find_program(TROUPE_MOLD mold)

add_library(troupe_warnings INTERFACE)
target_compile_options(troupe_warnings INTERFACE -Wall -Wextra -Wpedantic -Wshadow -Wnon-virtual-dtor -Woverloaded-virtual)

add_library(troupe_sanitizers INTERFACE)
if(TROUPE_SANITIZE)
  target_compile_options(troupe_sanitizers INTERFACE -fsanitize=${TROUPE_SANITIZE} -fno-omit-frame-pointer -fno-sanitize-recover=all)
  target_link_options(troupe_sanitizers INTERFACE -fsanitize=${TROUPE_SANITIZE})
endif()
if(TROUPE_MOLD AND NOT TROUPE_SANITIZE)
  target_link_options(troupe_sanitizers INTERFACE -fuse-ld=mold)
endif()
