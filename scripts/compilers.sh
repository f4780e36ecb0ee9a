#!/usr/bin/env bash
# Parses all C++ sources, those of the tests and of the extension as well, with each compiler, and fails at
# the first warning. Clang also does so with libc++.
#
#   bash scripts/compilers.sh [COMPILER...]    default: those of g++-12 to g++-16 and clang++-16 to
#                                              clang++-22 that are installed
#
# Compilers only parse (-fsyntax-only), which takes a fifth of the time of a build. BUILD=1 instead
# builds everything and runs the C++ tests.
# PYTHON is an interpreter with pybind11; without pybind11, the extension is left out.
set -euo pipefail
cd -- "$(dirname -- "${BASH_SOURCE[0]}")/.."
# shellcheck source=scripts/common.sh
source scripts/common.sh

find_python
options=(-DCMAKE_BUILD_TYPE=Debug -DCMAKE_CXX_FLAGS_DEBUG=-O1 -DCMAKE_EXPORT_COMPILE_COMMANDS=ON
  -DCMAKE_UNITY_BUILD=ON -DCMAKE_DISABLE_PRECOMPILE_HEADERS=ON
  -DSAFETENSORS_WERROR=ON -DSAFETENSORS_BUILD_TESTS=ON -DSAFETENSORS_BUILD_BENCHMARKS=ON)
if pybind11=$("$base_python" -m pybind11 --cmakedir 2>/dev/null); then
  options+=(-DSAFETENSORS_BUILD_PYTHON=ON -DSKBUILD_PROJECT_VERSION_FULL=0
    -Dpybind11_DIR="$pybind11" -DPython_EXECUTABLE="$base_python")
else
  note "no pybind11 for $base_python: without the extension"
fi

# check COMPILER [FLAG]
check() {
  local build=$PWD/build/compilers/$*
  build=${build// /}
  cmake -S . -B "$build" -G Ninja -DCMAKE_CXX_COMPILER="$1" -DCMAKE_CXX_FLAGS="${2:-}" \
    "${options[@]}" >"$build.log" 2>&1 || { cat "$build.log" >&2; return 1; }
  if [[ -n ${BUILD:-} ]]; then
    cmake --build "$build"
    ctest --test-dir "$build" --output-on-failure --parallel "$(nproc)"
  else
    "$base_python" - "$build/compile_commands.json" <<'PY' |
import json, sys

for entry in json.load(open(sys.argv[1])):
    # Clang warns that nothing is left for -c to do.
    print(entry["command"], "-fsyntax-only -Wno-unused-command-line-argument", end="\0")
PY
      (cd "$build" && xargs -0 -n 1 -P "$(nproc)" bash -c)
  fi
  note "$*: no warnings"
}

for compiler in "$@"; do
  command -v "$compiler" >/dev/null || die "$compiler is not installed"
done
if (($# == 0)); then
  for compiler in g++-{12..16} clang++-{16..22}; do
    if command -v "$compiler" >/dev/null; then
      set -- "$@" "$compiler"
    else
      note "$compiler: skipped, it is not installed"
    fi
  done
fi
mkdir -p build/compilers
for compiler in "$@"; do
  if [[ $compiler == g++* ]]; then
    check "$compiler"
    continue
  fi
  check "$compiler"
  if "$compiler" -stdlib=libc++ -x c++ -fsyntax-only - <<<'#include <vector>' 2>/dev/null; then
    check "$compiler" -stdlib=libc++
  else
    note "$compiler: without libc++, which is not installed"
  fi
done
