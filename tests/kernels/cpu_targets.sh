#!/bin/bash
# Runs tests/kernels/test_cpu.py and test_cpu_precision.py for every instruction set that this CPU has, then with AddressSanitizer and
# UndefinedBehaviorSanitizer together. usage: tests/kernels/cpu_targets.sh [pytest's options]; python: $PYTHON, default .venv/bin/python
set -eu
cd "$(dirname "$0")/../.."
python=${PYTHON:-.venv/bin/python}
tests="tests/kernels/test_cpu.py tests/kernels/test_cpu_precision.py"
targets="baseline"
grep -q -w avx2 /proc/cpuinfo && targets="$targets avx2"
grep -q -w avx512vl /proc/cpuinfo && targets="$targets avx512"
grep -q -w avx512_bf16 /proc/cpuinfo && targets="$targets avx512bf16"
benchmarks/kernels/build_cpu.sh
for target in $targets; do
  echo "== $target"
  # shellcheck disable=SC2086
  NV_NORMS_CPU_TARGET=$target "$python" -m pytest -q "$@" $tests
done
benchmarks/kernels/build_cpu.sh sanitized
preload="$(g++ -print-file-name=libasan.so) $(g++ -print-file-name=libubsan.so)"
for target in $targets; do
  echo "== $target, sanitized"
  NV_NORMS_CPU_TARGET=$target NV_NORMS_CPU_KERNELS=$PWD/build/sanitized/libnv_norms_cpu_kernels.so \
    LD_PRELOAD=$preload ASAN_OPTIONS=detect_leaks=0 UBSAN_OPTIONS=halt_on_error=1:print_stacktrace=1 \
    PYTHONMALLOC=malloc "$python" -m pytest -q "$@" $tests
done
