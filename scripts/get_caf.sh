#!/usr/bin/env bash
# Fetches CAF 0.18.7's source (Debian source package actor-framework, suite experimental), verifies it,
# builds it and installs it into a prefix. Usage: get_caf.sh PREFIX [WORKDIR]   (JOBS=2 by default)
# Only the upstream tarball is taken (--tar-only): apt checks it against the signed index, and we pin its SHA-256 too. A mirror whose index
# has outlived its date is therefore good enough.
set -euo pipefail
prefix=${1:?prefix}; work=${2:-$(mktemp -d)}; jobs=${JOBS:-2}
version=0.18.7; debver=0.18.7-1~exp1; tarball=actor-framework_$version.orig.tar.gz
sha256=d5c3abe8fd67a729aab1baeece10367637d903ba335f4c79378bcadfbcd34552
mkdir -p "$work"; work=$(cd "$work" && pwd)
[[ -n ${TROUPE_DOWNLOADS:-} && -e $TROUPE_DOWNLOADS/$tarball ]] && cp "$TROUPE_DOWNLOADS/$tarball" "$work/"
if ! (cd "$work" && echo "$sha256  $tarball" | sha256sum -c --status 2>/dev/null); then
  apt=$work/apt; mkdir -p "$apt"/{lists/partial,archives/partial,state}
  # the base URI and key come from this machine's own apt set-up, so no address is written here
  src=$(ls /etc/apt/sources.list.d/debian.sources 2>/dev/null || true)
  if [[ -n $src ]]; then uri=$(awk '/^URIs:/{print $2; exit}' "$src"); key=$(awk '/^Signed-By:/{print $2; exit}' "$src")
  else uri=$(awk '$1=="deb"{for(i=2;i<=NF;i++) if ($i ~ /:\/\//) {print $i; exit}}' /etc/apt/sources.list); key=/usr/share/keyrings/debian-archive-keyring.gpg; fi
  echo "deb-src [signed-by=$key] $uri experimental main" > "$apt/sources.list"
  cat > "$apt/apt.conf" <<CONF
Dir::Etc::sourcelist "$apt/sources.list";
Dir::Etc::sourceparts "/dev/null";
Dir::State "$apt/state";
Dir::State::lists "$apt/lists";
Dir::State::status "/var/lib/dpkg/status";
Dir::Cache "$apt";
Acquire::Retries "5";
Acquire::Check-Valid-Until "false";
APT::Sandbox::User "root";
CONF
  export APT_CONFIG=$apt/apt.conf
  apt-get -qq update
  (cd "$work" && apt-get -qq source --download-only --tar-only "actor-framework=$debver")
  unset APT_CONFIG
  (cd "$work" && echo "$sha256  $tarball" | sha256sum -c --quiet)
fi
rm -rf "$work/src" "$work/build"; mkdir -p "$work/src"; tar -xzf "$work/$tarball" -C "$work/src" --strip-components=1
# Unity batches cut the compile time by more than half; two sources must stay alone, since the names in their
# anonymous namespaces clash with a neighbour's.
cat > "$work/unity.cmake" <<'CMAKE'
cmake_language(DEFER CALL set_source_files_properties
  ${CMAKE_CURRENT_SOURCE_DIR}/libcaf_core/src/binary_serializer.cpp TARGET_DIRECTORY libcaf_core
  PROPERTIES SKIP_UNITY_BUILD_INCLUSION ON)
cmake_language(DEFER CALL set_source_files_properties
  ${CMAKE_CURRENT_SOURCE_DIR}/libcaf_io/src/io/network/native_socket.cpp TARGET_DIRECTORY libcaf_io
  PROPERTIES SKIP_UNITY_BUILD_INCLUSION ON)
CMAKE
cmake -S "$work/src" -B "$work/build" -G Ninja -DCMAKE_BUILD_TYPE=Release -DCMAKE_INSTALL_PREFIX="$prefix" \
  -DCMAKE_CXX_STANDARD=20 -DCMAKE_CXX_FLAGS=-w -DCMAKE_INSTALL_LIBDIR=lib -DCMAKE_INSTALL_RPATH='$ORIGIN' \
  -DCMAKE_PROJECT_CAF_INCLUDE="$work/unity.cmake" -DCMAKE_UNITY_BUILD=ON -DCMAKE_UNITY_BUILD_BATCH_SIZE="${BATCH:-16}" \
  -DCAF_ENABLE_EXAMPLES=OFF -DCAF_ENABLE_TESTING=OFF -DCAF_ENABLE_TOOLS=OFF -DCAF_LOG_LEVEL=INFO > "$work/configure.log"
cmake --build "$work/build" -j "$jobs" > "$work/build.log" 2>&1 || { grep -E 'error|FAILED' "$work/build.log" | head -20; exit 1; }
cmake --install "$work/build" > "$work/install.log"
echo "CAF $version installed in $prefix"
