#!/bin/bash
# Builds the CPU kernel library without TensorFlow: build/libnv_norms_cpu_kernels.so.
# usage: benchmarks/kernels/build_cpu.sh [sanitized]   with AddressSanitizer and UndefinedBehaviorSanitizer, into
# build/sanitized
set -eu
cd "$(dirname "$0")/../.."
out=build${1:+/$1}
flags="-std=c++17 -O3 -DNDEBUG -fPIC -fno-exceptions -I. -Wall"
[ -z "${1:-}" ] || flags="$flags -O1 -g1 -fno-var-tracking -fno-omit-frame-pointer -fsanitize=address,undefined"
mkdir -p "$out/cpu"
for source in kernels/cpu/*.cc benchmarks/kernels/cpu_harness.cc; do
  object=$out/cpu/$(basename "$source").o
  if [ ! -f "$object" ] || [ -n "$(find kernels/*.h benchmarks/kernels/problem.h kernels/cpu "$source" -newer "$object" -name '*.[ch]*' \( -name '*.h' -o -path "$source" \) -print -quit)" ]; then
    echo "${CXX:-g++} $flags -c $source -o $object"
  fi
done | xargs -P "$(nproc)" -I{} sh -c '{}'
# shellcheck disable=SC2086
${CXX:-g++} $flags -shared -o "$out/libnv_norms_cpu_kernels.so" "$out"/cpu/*.o -lpthread
