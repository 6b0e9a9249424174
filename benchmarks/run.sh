#!/bin/bash
# Runs the benchmarks of the ops in TensorFlow, and makes tables of what they measured (for plots: report.py).
#
# usage: benchmarks/run.sh [-p "PART ..."] [-t SECONDS] [-j] [-q] FOLDER
#   writes FOLDER/*.csv, tables.md, log.txt and stderr.txt; adds to what is there
#   -p  which of "layer_norm instance_norm dense_layers keras_layers models layout layout_times xla_training", default all
#   -t  how long one benchmark may take; what it has measured by then counts
#   -j  all at once: they trace and compile beside each other, and are timed one at a time (models and layout_times at
#       full size want more than 80 GB of a GPU then)
#   -q  tiny sizes, to see that everything runs
#   PYTHON     the interpreter, default .venv/bin/python
#   PREFIX     a command that runs each benchmark, such as one that waits for a quiet machine
set -u
cd "$(dirname "$0")/.."
parts="layer_norm instance_norm dense_layers keras_layers models layout layout_times xla_training"
limit=0 together='' quick=''
while getopts "p:t:jq" option; do
  case $option in
    p) parts=$OPTARG ;;
    t) limit=$OPTARG ;;
    j) together=1 ;;
    q) quick=1 ;;
    *) exit 2 ;;
  esac
done
shift $((OPTIND - 1))
out=${1:?usage: benchmarks/run.sh [-p PARTS] [-t SECONDS] [-j] [-q] FOLDER}
python=${PYTHON:-.venv/bin/python}
export PYTHONPATH="$PWD/python${PYTHONPATH:+:$PYTHONPATH}" PYTHONUNBUFFERED=1
mkdir -p "$out" || exit 1
[ ! "$together" ] || lock=$(mktemp)
nvidia-smi >/dev/null 2>&1 && gpu=1 || gpu=''
failed=0 jobs=()

# run CSV SCRIPT ARGUMENT...
run() {
  local csv=$1 script=$2 status=0
  shift 2
  echo "== $script $*"
  ${PREFIX:-} timeout -k 5 "$limit" "$python" "benchmarks/$script.py" --csv "$out/$csv.csv" ${quick:+--rounds 1} "$@" || status=$?
  [ $status = 0 ] || echo "FAILED ($status): $script $*"
  return $status
}

benchmark() {
  if [ "$together" ]; then
    { flock -s 9 && BENCHMARK_LOCK=9 run "$@"; } > >(tee -a "$out/log.txt") 2>>"$out/stderr.txt" 9>>"$lock" &
    jobs+=($!)
  else
    run "$@" > >(tee -a "$out/log.txt") 2>>"$out/stderr.txt" || failed=1
  fi
}

part() {
  case $1 in
    layer_norm) benchmark layer_norm benchmark_layer_norm ${quick:+--divide 1000} ;;
    instance_norm)
      for layout in last first; do
        benchmark instance_norm benchmark_instance_norm --layouts $layout ${quick:+--divide 16}
      done ;;
    dense_layers)
      benchmark dense_layers benchmark_dense_layers --batches ${quick:+--units 32} # no batches, the default units
      benchmark dense_layers benchmark_dense_layers --units ${quick:+--batches 16} ;;
    keras_layers) benchmark keras_layers benchmark_keras_layers ${quick:+--batch 2 --size 16} ;;
    models)
      for model in bert llama qwen3 convnext unet3d diffusion guided dit resnet; do
        benchmark models benchmark_models --models $model ${quick:+--small}
      done ;;
    layout) benchmark layout layout ${quick:+--models unet3d --policies float32} ;;
    layout_times) # beside those of "models"; a CPU has no layouts to choose from
      [ "$gpu" ] || return
      local options=(--modes train --ways stock fused "no norms" ${quick:+--small})
      for model in convnext unet3d diffusion resnet; do
        benchmark models benchmark_models --models $model --policy float32 "${options[@]}"
      done ;;
    xla_training)
      small=$quick
      [ "$gpu" ] || small=1
      for model in bert convnext unet3d ${gpu:+unet3d_128}; do
        benchmark xla_training xla_training --models $model ${small:+--small}
      done ;;
    *)
      echo "no such part: $1" >&2
      failed=1 ;;
  esac
}

for name in $parts; do part "$name"; done
for job in ${jobs+"${jobs[@]}"}; do wait "$job" || failed=1; done
"$python" benchmarks/report.py "$out"/*.csv >"$out/tables.md" || failed=1
exit $failed
