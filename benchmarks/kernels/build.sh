#!/bin/bash
# Builds the CUDA kernel library without TensorFlow: build/libnv_norms_kernels.so.
# usage: benchmarks/kernels/build.sh [architecture, default 90]; nvcc: $CUDA_HOME/bin/nvcc or on the PATH
#   75:90: what is written for 7.5, compiled for a GPU of 9.0 (CONTRIBUTING.md, "Older GPUs on a newer one")
set -eu
cd "$(dirname "$0")/../.."
nvcc=${CUDA_HOME:+$CUDA_HOME/bin/}nvcc
architecture=${1:-90}
written=${architecture%:*} compiled=${architecture#*:}
out=build/kernels/${architecture/:/-}
mkdir -p "$out"
for source in kernels/cuda/*.cu; do
  object=$out/$(basename "$source").o
  if [ ! -f "$object" ] || [ -n "$(find kernels/*.h kernels/cuda "$source" -newer "$object" -name '*.[ch]*' ! -name '*.cu' -print -quit)" ] ||
      [ "$source" -nt "$object" ]; then
    "$nvcc" -O3 -std=c++17 -DNDEBUG -DNV_NORMS_CUDA=1 -I. -Xcompiler -fPIC \
      -gencode "arch=compute_$written,code=sm_$compiled" -c "$source" -o "$object"
  fi
done
"$nvcc" -O2 -std=c++17 -I. -Xcompiler -fPIC -shared -o build/libnv_norms_kernels.so \
  benchmarks/kernels/harness.cc "$out"/*.o
