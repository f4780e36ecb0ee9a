#!/usr/bin/env bash
# Runs the fuzzers for a while each, one on each processor, on seeds made of the table of hostile
# files and on what earlier runs found (kept in the build folder). Fails at an input that breaks a
# property, and starts no more fuzzers.
#
#   cmake --preset fuzz && cmake --build --preset fuzz
#   bash tests/fuzz/run.sh SECONDS_EACH [BUILD_FOLDER [TARGET[/SEED]...]]
#
# TARGET is header, slice, ...: without any, all run. TARGET/SEED starts with the one seed alone, and
# keeps what it finds apart: schemes/awq mutates the model of weights/tests/data/schemes/awq, and
# "schemes/*" each model in turn.
set -euo pipefail
here=$(cd -- "$(dirname -- "${BASH_SOURCE[0]}")" && pwd)
seconds=$1
build=$(realpath -- "${2:-$here/../../build/fuzz}")
programs=$build/tests/cpp/fuzz
found=$build/fuzz-found
weights=$here/../../weights/tests
models=$weights/data

# fuzz TARGET or TARGET/SEED
fuzz() {
  local target=${1%%/*} run=${1//\//-} seeds=("$found/seeds") folder executions edges
  local log=$found/$run.log
  local options=(-max_total_time="$seconds" -max_len=4096 -timeout=20 -rss_limit_mb=4096
    -artifact_prefix="$found/$run-" -print_final_stats=1)
  mkdir -p "$found/$run"
  for folder in "$here" "$weights/fuzz"; do
    if [[ -f $folder/$target.dict ]]; then options+=(-dict="$folder/$target.dict"); fi
  done
  case $target in
    gguf) seeds=("$models"/{bad,gguf}) ;;
    schemes | model_files) seeds=("$found/seeds-$target") ;;
    config) seeds=("$models"/{bad,mlx}) ;;
  esac
  if [[ $1 == */* ]]; then  # a folder with this seed
    seeds=("$found/seed-$run")
    mkdir -p "${seeds[0]}"
    cp "$found/seeds-$target/${1#*/}" "${seeds[0]}"
  fi
  "$programs/fuzz_$target" "${options[@]}" "$found/$run" "${seeds[@]}" >"$log" 2>&1 || {
    tail -n 60 "$log" >&2
    exit 255  # ends xargs
  }
  executions=$(sed -n 's/^stat::number_of_executed_units: *//p' "$log")
  edges=$(grep -oE 'cov: [0-9]+' "$log" | tail -n 1)
  printf 'fuzz_%s: %s executions in %s s, %s\n' "$1" "$executions" "$seconds" "$edges"
}
export here weights seconds programs found models
export -f fuzz

"$programs/replay_header" --seeds "$here/../../conformance/cases.json" "$found/seeds"
"$programs/replay_header" --join "$models"/{schemes,seeds} "$found/seeds-schemes"
"$programs/replay_header" --split "$here/../data/model_folders.txt" "$found/seeds-model_files"
runs=()
for run in "${@:3}"; do
  if [[ $run == */\* ]]; then  # all seeds of a target
    for seed in "$found/seeds-${run%/*}"/*; do runs+=("${run%/*}/${seed##*/}"); done
  else
    runs+=("$run")
  fi
done
if ((${#runs[@]} == 0)); then
  runs=(header slice save patch patch_file sums model_files gguf config schemes)
fi
printf '%s\n' "${runs[@]}" |
  xargs -P "$(nproc)" -I{} bash -euo pipefail -c 'fuzz {}'
