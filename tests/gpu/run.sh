#!/bin/bash
# Everything that needs an NVIDIA GPU, in one go; builds nothing. What a machine lacks is said and left out.
#
# usage: tests/gpu/run.sh [folder for logs and tables, default build/gpu]
#   PYTHON       the interpreter, default .venv/bin/python; with torch for the kernels' tests, tensorflow for the ops'
#   GPU_STEPS    which of "kernels sanitizer ops benchmark" to run, default all
# Built before: build/libnv_norms_kernels.so (benchmarks/kernels/build.sh) for kernels, sanitizer and
# benchmark; the package's libraries (make test), or a library named by NV_NORMS_LIBRARY, for ops.
set -u
cd "$(dirname "$0")/../.."
out=$(mkdir -p "${1:-build/gpu}" && cd "${1:-build/gpu}" && pwd)
python=${PYTHON:-.venv/bin/python}
steps=${GPU_STEPS:-kernels sanitizer ops benchmark}
failed=0
ran=0
export PYTHONUNBUFFERED=1

wants() { [[ " $steps " == *" $1 "* ]]; }

# Runs a command, keeps its output in a log, shows the log's end.
step() {
  local name=$1
  shift
  ran=1
  "$@" >"$out/$name.log" 2>&1 || { failed=1; echo "FAILED: $name ($*)"; grep -E "^(E  |FAILED|=====.*(Invalid|Race|Uninit|Barrier))" "$out/$name.log" | head -20; }
  echo "$name: $(grep -v '^$' "$out/$name.log" | tail -1 | cut -c1-150)"
}

nvidia-smi --query-gpu=name,driver_version --format=csv,noheader || exit 1
kernels=(env PYTHONPATH= "$python" -m pytest -q --noconftest -p no:cacheprovider --tb=short -rs tests/kernels/test_cuda*.py)
have_kernels=0
if [ -f build/libnv_norms_kernels.so ] && "$python" -c "import torch" 2>/dev/null; then have_kernels=1; fi
[ $have_kernels = 1 ] || echo "left out: kernels, sanitizer, benchmark (no torch, or no build/libnv_norms_kernels.so)"

if wants kernels && [ $have_kernels = 1 ]; then step kernels "${kernels[@]}"; fi

if wants sanitizer && [ $have_kernels = 1 ]; then
  if command -v compute-sanitizer >/dev/null; then
    export NV_NORMS_SMALL=1
    for tool in memcheck racecheck synccheck initcheck; do
      filter=()
      # initcheck must see torch's kernels write what ours read.
      [ $tool = initcheck ] || filter=(--kernel-name regex=nv_norms)
      step "$tool" compute-sanitizer --tool $tool --launch-timeout 0 --error-exitcode 9 "${filter[@]}" "${kernels[@]}"
    done
    unset NV_NORMS_SMALL
  else
    echo "left out: sanitizer (no compute-sanitizer on the PATH)"
  fi
fi

if wants ops; then
  if "$python" -c "import tensorflow" 2>/dev/null; then
    confcutdir=()
    # With a library of its own the package's need not be built.
    [ -z "${NV_NORMS_LIBRARY:-}" ] || confcutdir=(--confcutdir tests/ops)
    step ops env PYTHONPATH="$PWD/python:${PYTHONPATH:-}" "$python" -m pytest -q "${confcutdir[@]}" -p no:cacheprovider \
      --tb=short -k GPU tests/ops
    step graphs env PYTHONPATH="$PWD/python:${PYTHONPATH:-}" "$python" -m pytest -q -p no:cacheprovider --tb=short \
      tests/xla/test_ops_small_graphs.py
  else
    echo "left out: ops (no tensorflow)"
  fi
fi

if wants benchmark && [ $have_kernels = 1 ]; then
  step layer_norm env PYTHONPATH= "$python" benchmarks/kernels/rows.py --csv "$out/layer_norm.csv"
  step rms_norm env PYTHONPATH= "$python" benchmarks/kernels/rows.py --rms --csv "$out/rms_norm.csv"
fi
[ $ran = 1 ] || { echo "nothing ran"; exit 1; }
exit $failed
