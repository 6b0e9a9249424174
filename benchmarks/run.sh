#!/bin/bash
# Runs every benchmark of the ops in TensorFlow, and makes tables and plots of what they measured.
#
# usage: benchmarks/run.sh NAME   writes benchmarks/results/NAME/: *.csv, tables.md, and *.svg if there is matplotlib
#   PYTHON     the interpreter, default .venv/bin/python
#   PREFIX     a command that runs each benchmark, such as one that waits for a quiet machine
set -eu
cd "$(dirname "$0")/.."
name=${1:?usage: benchmarks/run.sh NAME}
python=${PYTHON:-.venv/bin/python}
out=benchmarks/results/$name
export PYTHONPATH="$PWD/python${PYTHONPATH:+:$PYTHONPATH}"
mkdir -p "$out"
rm -f "$out"/*.csv

run() {
  local script=$1 csv=$2
  shift 2
  echo "== $script $*"
  ${PREFIX:-} "$python" "benchmarks/benchmark_$script.py" --csv "$out/$csv.csv" "$@" 2>>"$out/stderr.log"
}

for shapes in "0 1 2" "3 4 5" "6 7 8"; do run layer_norm layer_norm --shapes $shapes; done
for layout in last first; do
  for shapes in "0 1 2" "3 4 5" "6 7 8 9"; do run instance_norm instance_norm --layouts $layout --shapes $shapes; done
done
run dense_layers dense_layers
run keras_layers keras_layers
for model in bert convnext unet3d diffusion; do run models models --models $model; done
rm -f "$out/stderr.log"
plots=()
if "$python" -c "import matplotlib" 2>/dev/null; then plots=(--plots "$out"); fi
"$python" benchmarks/report.py "$out"/*.csv "${plots[@]}" | tee "$out/tables.md"
