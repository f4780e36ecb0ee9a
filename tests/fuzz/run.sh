#!/usr/bin/env bash
# Runs the fuzzers for a while each, on seeds made of the table of hostile files and on what
# earlier runs found (kept in the build folder). Stops at the first input that breaks a property.
#
#   cmake --preset fuzz && cmake --build --preset fuzz
#   bash tests/fuzz/run.sh SECONDS_EACH [BUILD_FOLDER]
set -euo pipefail
here=$(cd -- "$(dirname -- "${BASH_SOURCE[0]}")" && pwd)
seconds=$1
build=$(realpath -- "${2:-$here/../../build/fuzz}")
programs=$build/tests/cpp/fuzz
found=$build/fuzz-found

"$programs/replay_header" --seeds "$here/../../conformance/cases.json" "$found/seeds"
models=$here/../data/weights
"$programs/replay_header" --join "$models/schemes" "$found/seeds-schemes"
for target in header slice save patch sums gguf config schemes; do
  mkdir -p "$found/$target"
  seeds=("$found/seeds")
  options=(-max_total_time="$seconds" -max_len=4096 -timeout=20 -rss_limit_mb=4096)
  options+=(-artifact_prefix="$found/$target-" -print_final_stats=1)
  if [[ -f $here/$target.dict ]]; then options+=(-dict="$here/$target.dict"); fi
  case $target in
    gguf) seeds=("$models"/{bad,gguf}) ;;
    schemes) seeds=("$found/seeds-schemes") ;;
    config) seeds=("$models"/{bad,mlx}) ;;
  esac
  log=$found/$target.log
  "$programs/fuzz_$target" "${options[@]}" "$found/$target" "${seeds[@]}" >"$log" 2>&1 || {
    tail -n 60 "$log" >&2
    exit 1
  }
  executions=$(sed -n 's/^stat::number_of_executed_units: *//p' "$log")
  edges=$(grep -oE 'cov: [0-9]+' "$log" | tail -n 1)
  printf 'fuzz_%s: %s executions in %s s, %s\n' "$target" "$executions" "$seconds" "$edges"
done
