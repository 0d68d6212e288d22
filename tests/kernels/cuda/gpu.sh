#!/usr/bin/env bash
# What needs a GPU and no LibTorch, in one go and under ten minutes: the kernels' tests, their offload, then their bench. Where
# LibTorch is too, `ctest -L gpu` adds tensors, whole models and steps.
#
#   tests/kernels/cuda/gpu.sh build [BUILD_DIR]   where nvcc is: builds the programs (default build/dev) and puts them,
#                                                 with the CUDA libraries they name, into build/gpu
#   tests/kernels/cuda/gpu.sh run [OUT_DIR]       where a GPU is, from the root of the checkout: runs what build/gpu
#                                                 holds; logs go to OUT_DIR (default build/gpu)
# The two may be different machines: carry build/gpu (below 64 MiB without cuBLASLt, which the other machine must have).
set -euo pipefail
cd "$(dirname "$0")/../../.."

build() {
  local dir=${1:-build/dev}
  ninja -C "$dir" -j2 cuda_device_test cuda_offload_test troupe_cuda_slim cuda_kernels_bench
  mkdir -p build/gpu
  for program in bin/cuda_device_test bin/cuda_offload_test tests/kernels/cuda/libtroupe_cuda_slim.so bin/cuda_kernels_bench; do
    strip -o "build/gpu/${program##*/}" "$dir/$program"
    # Small libraries travel; cuBLASLt has hundreds of megabytes and belongs to the machine with the GPU.
    ldd "$dir/$program" | awk '/libcudart|libgomp|libxxhash|libtbb/ && $3 ~ /^\// {print $3}' | xargs -r cp -Lt build/gpu
  done
  du -sh build/gpu
}

run() {
  local out=${1:-build/gpu} failed=0
  mkdir -p "$out"
  export LD_LIBRARY_PATH="$PWD/build/gpu:/usr/local/cuda/lib64${LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH}"
  if ! nvidia-smi -L; then
    echo "gpu.sh: no GPU on this machine" >&2
    exit 1
  fi
  timeout 240 build/gpu/cuda_device_test --gtest_brief=1 2>&1 | tee "$out/tests.log" || failed=1
  TROUPE_CUDA_LIBRARY="$PWD/build/gpu/libtroupe_cuda_slim.so" timeout 60 build/gpu/cuda_offload_test --gtest_brief=1 2>&1 |
    tee "$out/offload.log" || failed=1
  if grep -q SKIPPED "$out/tests.log" && ! grep -q "PASSED" "$out/tests.log"; then failed=1; fi
  timeout 240 build/gpu/cuda_kernels_bench 2>&1 | tee "$out/bench.log" || failed=1
  exit "$failed"
}

case "${1:-}" in
  build | run) "$@" ;;
  *)
    sed -n 's/^# \{0,1\}//p' "$0" | sed 1d >&2
    exit 2
    ;;
esac
