#!/usr/bin/env bash
# Installs what troupe builds and runs with. Idempotent: a second run takes milliseconds; once done, no network is used.
#
#   scripts/setup.sh                 Debian packages, wheels, CAF
#   scripts/setup.sh --tests         also the vocabularies and oracles of the test suite
#   scripts/setup.sh --slow          also transformers and tensorboard, the oracles of the slow tests (2 GB to fetch, 5 GB on disk)
#   scripts/setup.sh --model LINK    also the weights that scripts/deps.lock lists under LINK (e.g. models/smollm2-135m)
#
# Downloads and built dependencies are cached below ${XDG_CACHE_HOME:-~/.cache}/troupe, keyed by hash, and linked into .deps/.
# TROUPE_DOWNLOADS=DIR   a folder with copies of the pinned files, looked at before the network.
# CAF_ROOT, UCX_ROOT, TORCH_ROOT   use the site's own build of that dependency instead.
set -euo pipefail
cd "$(dirname "$0")/.."
lock=scripts/deps.lock
cache=${XDG_CACHE_HOME:-$HOME/.cache}/troupe
want_tests=no; want_slow=no; want_model=
while [[ $# -gt 0 ]]; do
  case $1 in
    --tests) want_tests=yes; shift;;
    --slow) want_slow=yes; shift;;
    --model) want_model=${2:?--model needs a link name}; shift 2;;
    *) echo "setup.sh: unknown option '$1' (allowed: --tests, --slow, --model LINK)" >&2; exit 2;;
  esac
done
say() { printf 'setup: %s\n' "$*" >&2; }
die() { say "error: $*"; exit 1; }
rows() { grep -E "^$1[[:space:]]" "$lock" | sed -E "s/^[^[:space:]]+[[:space:]]+//"; }

apt_packages() {
  local missing=() optional=() p
  for p in $(rows apt); do dpkg-query -W -f='${db:Status-Status}' "$p" 2>/dev/null | grep -q '^installed$' || missing+=("$p"); done
  for p in $(rows 'apt\?'); do dpkg-query -W -f='${db:Status-Status}' "$p" 2>/dev/null | grep -q '^installed$' || optional+=("$p"); done
  [[ ${#missing[@]} -eq 0 && ${#optional[@]} -eq 0 ]] && return 0
  if [[ $(id -u) -ne 0 ]]; then
    if [[ ${#missing[@]} -gt 0 ]]; then
      say "these Debian packages are missing; as root, run:"
      echo "  apt-get update && apt-get install -y --no-install-recommends ${missing[*]} ${optional[*]}" >&2
      exit 1
    fi
    return 0
  fi
  say "installing ${missing[*]} ${optional[*]}"
  export DEBIAN_FRONTEND=noninteractive
  apt-get -qq -o Acquire::Retries=5 update >&2 || say "warning: apt-get update failed, trying with the lists at hand"
  apt-get -qq -o Acquire::Retries=5 install -y --no-install-recommends "${missing[@]}" "${optional[@]}" >"$cache/apt.log" 2>&1 ||
    { tail -n 5 "$cache/apt.log" >&2; die "apt-get could not install the packages above"; }
}

wheel() { # NAME VERSION SHA256 FOLDER
  echo "$1==$2 --hash=sha256:$3" > "$4/requirements.txt"
  python3 -m pip --disable-pip-version-check download -q --no-deps --require-hashes --only-binary=:all: --retries 5 \
    --python-version 311 --implementation cp --abi cp311 --abi abi3 --abi none \
    --platform manylinux_2_28_x86_64 --platform manylinux_2_27_x86_64 --platform manylinux_2_25_x86_64 \
    --platform manylinux_2_24_x86_64 --platform manylinux_2_18_x86_64 --platform manylinux_2_17_x86_64 --platform manylinux2014_x86_64 --platform any \
    -d "$4" -r "$4/requirements.txt" >&2
}

# Sources as they are: pip would run their build scripts to learn what it knows already.
sources() { # NAME FILE FOLDER
  python3 - "$@" <<'PY'
import os, re, subprocess, sys, time, urllib.parse, urllib.request
name, file, folder = sys.argv[1:]
asked = subprocess.run([sys.executable, "-m", "pip", "config", "get", "global.index-url"], capture_output=True, text=True).stdout.strip()
page = (os.environ.get("PIP_INDEX_URL") or asked or "https://pypi.org/simple").rstrip("/") + "/" + name + "/"
for attempt in range(5):
    try:
        links = re.findall(r'href="([^"#]+)', urllib.request.urlopen(page, timeout=60).read().decode())
        link = next(l for l in links if urllib.parse.urlparse(l).path.endswith("/" + file))
        with urllib.request.urlopen(urllib.parse.urljoin(page, link), timeout=60) as source, open(os.path.join(folder, file), "wb") as target:
            while block := source.read(1 << 20): target.write(block)
        break
    except Exception as error:
        print(f"setup: {page}: {error!r}", file=sys.stderr)
        if attempt == 4: sys.exit(1)
        time.sleep(2 ** attempt)
PY
}

# Puts the pinned file into the cache and prints its path. Looks in the cache, in TROUPE_DOWNLOADS, then asks pip.
pinned_file() { # NAME VERSION FILE SHA256
  local path=$cache/downloads/$3
  ok() { echo "$2  $1" | sha256sum -c --status 2>/dev/null; }
  if [[ ! -e $path ]] || ! ok "$path" "$4"; then
    if [[ -n ${TROUPE_DOWNLOADS:-} && -e $TROUPE_DOWNLOADS/$3 ]]; then
      ok "$TROUPE_DOWNLOADS/$3" "$4" || die "$TROUPE_DOWNLOADS/$3 does not have the pinned sha256 $4"
      cp "$TROUPE_DOWNLOADS/$3" "$path.part" && mv "$path.part" "$path"
    else
      say "fetching $1 $2"
      local work; work=$(mktemp -d "$cache/downloads/work.XXXXXX")
      case $3 in *.tar.gz) sources "$1" "$3" "$work";; *) wheel "$1" "$2" "$4" "$work";; esac ||
        { rm -rf "$work"; die "could not fetch $1 $2; without a network put $3 into a folder and set TROUPE_DOWNLOADS to it"; }
      mv "$work/$3" "$path"; rm -rf "$work"
    fi
    ok "$path" "$4" || { rm -f "$path"; die "$3 does not have the pinned sha256 $4"; }
  fi
  echo "$path"
}

unpack() { # NAME VERSION FILE SHA256 MEMBERS LINK
  local dir; dir=$cache/unpacked/$1-$2-${4:0:12}-$(printf %s "$5" | sha256sum | cut -c1-6)
  if [[ ! -e $dir/.complete ]]; then
    local file; file=$(pinned_file "$1" "$2" "$3" "$4")
    rm -rf "$dir" "$dir.part"; mkdir -p "$dir.part"
    python3 - "$file" "$dir.part" "$5" <<'PY'
import re, sys, tarfile, zipfile
path, target, pattern = sys.argv[1], sys.argv[2], re.compile(sys.argv[3])
if path.endswith(".tar.gz"):
    with tarfile.open(path) as archive: archive.extractall(target, [m for m in archive if m.isfile() and pattern.search(m.name)])
else:
    with zipfile.ZipFile(path) as archive: archive.extractall(target, [n for n in archive.namelist() if pattern.search(n)])
PY
    touch "$dir.part/.complete"; mv "$dir.part" "$dir"
  fi
  mkdir -p ".deps/$(dirname "$6")"; ln -sfn "$dir" ".deps/$6"
}

install_rows() { # KIND
  local name version file sha members link
  while read -r name version file sha members link; do
    [[ $name == torch && -n ${TORCH_ROOT:-} ]] && { ln -sfn "$TORCH_ROOT" ".deps/$link"; continue; }
    [[ $name == libucx-cu13 && -n ${UCX_ROOT:-} ]] && { ln -sfn "$UCX_ROOT" ".deps/$link"; continue; }
    unpack "$name" "$version" "$file" "$sha" "$members" "$link"
  done < <(rows "$1")
}

# One folder that Python can import transformers, torch and tensorboard from: .deps/oracle/site.
oracle_site() {
  local list site; list=$(rows '(wheel|test)' | awk '$6 ~ /^(torch|cudart|cupti)$|^oracle\//'; rows slow)
  [[ $(python3 -c 'import sys; print(*sys.version_info[:2])') == "3 11" ]] || die "the pinned wheels of the slow tests are for Python 3.11, and python3 is $(python3 --version)"
  site=$cache/oracle-site-$(sha256sum <<<"$list" | cut -c1-12)
  if [[ ! -e $site/.complete ]]; then
    local name version file sha _; local -a files=()
    while read -r name version file sha _; do files+=("$(pinned_file "$name" "$version" "$file" "$sha")"); done <<<"$list"
    say "unpacking the oracles of the slow tests"
    rm -rf "$site" "$site.part"; mkdir -p "$site.part"
    python3 - "$site.part" "${files[@]}" <<'PY'
import sys, zipfile
for path in sys.argv[2:]:
    with zipfile.ZipFile(path) as wheel: wheel.extractall(sys.argv[1], [n for n in wheel.namelist() if ".data/" not in n])
PY
    touch "$site.part/.complete"; mv "$site.part" "$site"
  fi
  mkdir -p .deps/oracle; ln -sfn "$site" .deps/oracle/site
}

# One folder with the CUDA runtime libraries that libtorch_cpu.so names, so one rpath finds them.
link_runtime() {
  mkdir -p .deps/runtime
  local so
  for so in $(find -L .deps/cudart .deps/cupti -name 'lib*.so.13'); do ln -sfn "$(readlink -f "$so")" ".deps/runtime/$(basename "$so")"; done
}

caf() {
  if [[ -n ${CAF_ROOT:-} ]]; then ln -sfn "$CAF_ROOT" .deps/caf; return; fi
  local prefix; prefix=$cache/caf-$(sha256sum scripts/get_caf.sh | cut -c1-12)
  if [[ ! -e $prefix/.complete ]]; then
    say "building CAF (about 80 s on two cores)"
    rm -rf "$prefix"; bash scripts/get_caf.sh "$prefix" "$cache/caf-work" >&2; touch "$prefix/.complete"; rm -rf "$cache/caf-work"
  fi
  ln -sfn "$prefix" .deps/caf
}

stamp=$(sha256sum "$lock" scripts/setup.sh scripts/get_caf.sh | sha256sum | cut -c1-16)-${CAF_ROOT:-}-${UCX_ROOT:-}-${TORCH_ROOT:-}
done_with() { [[ -e .deps/.stamp-$1 && $(<".deps/.stamp-$1") == "$stamp" ]]; }
mkdir -p .deps "$cache/downloads" "$cache/unpacked" 2>/dev/null || die "cannot write .deps or $cache; set XDG_CACHE_HOME to a folder of yours"
if ! done_with base || [[ ! -e .deps/torch/torch/lib/libtorch_cpu.so || ! -e .deps/caf/lib ]]; then
  apt_packages; install_rows wheel; link_runtime; caf; echo "$stamp" > .deps/.stamp-base; say "done"
fi
if [[ $want_tests == yes ]] && ! done_with tests; then install_rows test; echo "$stamp" > .deps/.stamp-tests; fi
if [[ $want_slow == yes ]] && ! done_with slow; then oracle_site; echo "$stamp" > .deps/.stamp-slow; fi
if [[ -n $want_model && ! -e .deps/$want_model/.complete ]]; then
  row=$(rows model | awk -v l="$want_model" '$6 == l') ; [[ -n $row ]] || die "scripts/deps.lock lists no model '$want_model'"
  read -r n v f s m l <<<"$row"; unpack "$n" "$v" "$f" "$s" "$m" "$l"
fi
