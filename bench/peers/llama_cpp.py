"""llama.cpp on a GGUF file, all matrices converted to one type; prints one JSON object: tok/s of prefill, of decoding alone and in a batch.
Built at the first use from the sdist of llama-cpp-python that scripts/setup.sh keeps (the same pinned file), below ${XDG_CACHE_HOME:-~/.cache}/troupe."""
import argparse
import hashlib
import json
import os
import pathlib
import subprocess
import sys
import tarfile

parser = argparse.ArgumentParser(description=__doc__)
parser.add_argument("--gguf", required=True)
parser.add_argument("--dtype", default="bfloat16", choices=["bfloat16", "float32"])
parser.add_argument("--prompt", type=int, default=512)
parser.add_argument("--new", type=int, default=128)
parser.add_argument("--batch", type=int, default=16)
parser.add_argument("--batch-prompt", type=int, default=64)
parser.add_argument("--batch-new", type=int, default=96)
parser.add_argument("--threads", type=int, default=2)
parser.add_argument("--repeats", type=int, default=3)
a = parser.parse_args()
root = pathlib.Path(__file__).resolve().parents[2]
cache = pathlib.Path(os.environ.get("XDG_CACHE_HOME", pathlib.Path.home() / ".cache")) / "troupe"
version, name, digest = next(line.split()[2:5] for line in (root / "scripts" / "deps.lock").read_text().splitlines()
                             if line.startswith("wheel llama-cpp-python "))


def sdist():
    for folder in (os.environ.get("TROUPE_DOWNLOADS", ""), cache / "downloads"):
        file = pathlib.Path(folder) / name
        if folder and file.exists() and hashlib.sha256(file.read_bytes()).hexdigest() == digest:
            return file
    sys.exit(f"{name} is not in {cache / 'downloads'}: scripts/setup.sh fetches it, or set TROUPE_DOWNLOADS")


def built():
    """The folder of the programs."""
    home = cache / f"bench-llama-{digest[:12]}"
    programs = home / "build" / "bin"
    if (home / ".complete").exists():
        return programs
    source = f"llama_cpp_python-{version}/vendor/llama.cpp"
    with tarfile.open(sdist()) as archive:
        archive.extractall(home, [m for m in archive.getmembers() if m.name.startswith(source + "/")], filter="data")
    off = [f"-DLLAMA_{what}=OFF" for what in ("CURL", "BUILD_TESTS", "BUILD_SERVER", "BUILD_EXAMPLES", "OPENSSL")]
    for command in (["cmake", "-S", home / source, "-B", home / "build", "-DCMAKE_BUILD_TYPE=Release", "-DGGML_NATIVE=ON",
                     "-DBUILD_SHARED_LIBS=OFF", *off],
                    ["cmake", "--build", home / "build", "-j", str(a.threads), "-t", "llama-bench", "llama-batched-bench",
                     "llama-quantize"]):
        subprocess.run(command, check=True, stdout=sys.stderr)
    (home / ".complete").touch()
    return programs


def converted(programs):
    kind = {"bfloat16": "BF16", "float32": "F32"}[a.dtype]
    file = cache / f"bench-{pathlib.Path(a.gguf).stem}-{kind}.gguf"
    if not file.exists():
        subprocess.run([programs / "llama-quantize", "--allow-requantize", a.gguf, f"{file}.part", kind, str(a.threads)], check=True,
                       stdout=sys.stderr, stderr=sys.stderr)
        os.replace(f"{file}.part", file)
    return file


def lines(command):
    out = subprocess.run([str(c) for c in command], check=True, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True).stdout
    return [json.loads(line) for line in out.splitlines() if line.startswith("{")]


programs = built()
model = converted(programs)
rates = lines([programs / "llama-bench", "-m", model, "-p", a.prompt, "-n", a.new, "-t", a.threads, "-r", a.repeats, "-o", "jsonl"])
batch = lines([programs / "llama-batched-bench", "-m", model, "-c", a.batch * (a.batch_prompt + a.batch_new) + 512, "-b", 2048, "-ub", 512,
               "-npp", a.batch_prompt, "-ntg", a.batch_new, "-npl", a.batch, "-t", a.threads, "-tb", a.threads, "--output-format", "jsonl"])
print(json.dumps(dict(peer="llama.cpp", dtype=a.dtype, prefill_tok_s=next(r["avg_ts"] for r in rates if r["n_gen"] == 0),
                      decode_tok_s=next(r["avg_ts"] for r in rates if r["n_prompt"] == 0),
                      batch_tok_s=next(r["speed_tg"] for r in batch if r["pl"] == a.batch))))
