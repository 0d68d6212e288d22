#!/usr/bin/env bash
# Makes .deps/bench-venv: a Python environment with the programs that troupe is compared with. Never part of the product; `troupe bench
# --peers` calls this. Idempotent, pinned by hash; kept below ${XDG_CACHE_HOME:-~/.cache}/troupe. About 2 GB to fetch and 6 GB on disk.
# TROUPE_DOWNLOADS=DIR   a folder with copies of the pinned wheels, looked at before the network.
set -euo pipefail
here=$(cd "$(dirname "$(readlink -f "$0")")" && pwd)
root=$(cd "$here/../.." && pwd)
cache=${XDG_CACHE_HOME:-$HOME/.cache}/troupe
torch=$(awk '$1 == "wheel" && $2 == "torch" { print "torch==" $3 " --hash=sha256:" $5 }' "$root/scripts/deps.lock")
venv=$cache/bench-venv-$({ cat "$here/requirements.lock" "$here/setup.sh"; echo "$torch"; } | sha256sum | cut -c1-12)
say() { printf 'peers: %s\n' "$*" >&2; }

python=$(command -v python3.11 || command -v python3)
if ! "$python" -c 'import sys; sys.exit(sys.version_info[:2] != (3, 11))'; then
  say "error: the pinned wheels are for Python 3.11, and $python is $("$python" --version 2>&1)"; exit 1
fi
if [[ ! -e $venv/.complete ]]; then
  mkdir -p "$cache"
  exec 9> "$venv.lock"; flock 9
  if [[ ! -e $venv/.complete ]]; then
    say "setting up $venv (about 2 GB to fetch)"
    rm -rf "$venv"; "$python" -m venv --without-pip "$venv"
    pip=("$python" -m pip --python "$venv/bin/python" --disable-pip-version-check install -q --no-deps --require-hashes --only-binary=:all: --retries 5)
    links=(); for d in "${TROUPE_DOWNLOADS:-}" "$cache/downloads"; do [[ -n $d && -d $d ]] && links+=(--find-links "$d"); done
    echo "$torch" > "$venv/torch.txt"
    # The wheel that set-up fetched serves here too; without it, all comes from the network.
    "${pip[@]}" --no-index "${links[@]}" -r "$venv/torch.txt" 2>/dev/null || true
    "${pip[@]}" "${links[@]}" -r "$venv/torch.txt" -r "$here/requirements.lock" >&2 || {
      rm -rf "$venv"; say "error: could not fetch the peers' wheels: is there a network? Without one, put the files that $here/requirements.lock names into a folder and set TROUPE_DOWNLOADS to it"; exit 1; }
    touch "$venv/.complete"
  fi
fi
ln -sfn "$venv" "$root/.deps/bench-venv"
