#!/usr/bin/env bash
# Runs the fuzzers for a while each, one on each processor, on seeds made of the table of hostile
# files and on what earlier runs found (kept in the build folder). Fails at an input that breaks a
# property, and starts no more fuzzers.
#
#   cmake --preset fuzz && cmake --build --preset fuzz
#   bash tests/fuzz/run.sh SECONDS_EACH [BUILD_FOLDER]
set -euo pipefail
here=$(cd -- "$(dirname -- "${BASH_SOURCE[0]}")" && pwd)
seconds=$1
build=$(realpath -- "${2:-$here/../../build/fuzz}")
programs=$build/tests/cpp/fuzz
found=$build/fuzz-found
models=$here/../data/weights

# fuzz TARGET
fuzz() {
  local target=$1 log=$found/$1.log seeds=("$found/seeds") executions edges
  local options=(-max_total_time="$seconds" -max_len=4096 -timeout=20 -rss_limit_mb=4096
    -artifact_prefix="$found/$target-" -print_final_stats=1)
  mkdir -p "$found/$target"
  if [[ -f $here/$target.dict ]]; then options+=(-dict="$here/$target.dict"); fi
  case $target in
    gguf) seeds=("$models"/{bad,gguf}) ;;
    schemes) seeds=("$found/seeds-schemes") ;;
    config) seeds=("$models"/{bad,mlx}) ;;
  esac
  "$programs/fuzz_$target" "${options[@]}" "$found/$target" "${seeds[@]}" >"$log" 2>&1 || {
    tail -n 60 "$log" >&2
    exit 255  # ends xargs
  }
  executions=$(sed -n 's/^stat::number_of_executed_units: *//p' "$log")
  edges=$(grep -oE 'cov: [0-9]+' "$log" | tail -n 1)
  printf 'fuzz_%s: %s executions in %s s, %s\n' "$target" "$executions" "$seconds" "$edges"
}
export here seconds programs found models
export -f fuzz

"$programs/replay_header" --seeds "$here/../../conformance/cases.json" "$found/seeds"
"$programs/replay_header" --join "$models/schemes" "$found/seeds-schemes"
printf '%s\n' header slice save patch sums gguf config schemes |
  xargs -P "$(nproc)" -I{} bash -euo pipefail -c 'fuzz {}'
