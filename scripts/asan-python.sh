#!/usr/bin/env bash
# Builds the Python extension under ASan and UBSan (g++, Linux) and runs the Python tests with it.
#
#   bash scripts/asan-python.sh [PYTEST ARGUMENT...]
#
# PYTHON is an interpreter with torch, numpy, ml_dtypes, hypothesis, pytest, pytest-xdist and pybind11.
set -euo pipefail
cd -- "$(dirname -- "${BASH_SOURCE[0]}")/.."
# shellcheck source=scripts/common.sh
source scripts/common.sh

find_python
compiler=${CXX:-g++}
build=$PWD/build/asan-python
# Not optimised further: the templates of pybind11 then take minutes.
cmake -S . -B "$build" -G Ninja -DCMAKE_BUILD_TYPE=Debug -DCMAKE_CXX_COMPILER="$compiler" \
  -DCMAKE_CXX_FLAGS="-fno-sanitize-recover=all -D_GLIBCXX_ASSERTIONS" \
  -DCMAKE_CXX_FLAGS_DEBUG="-g1 -O1" -DSAFETENSORS_SANITIZE=address,undefined \
  -DSAFETENSORS_BUILD_PYTHON=ON -DSAFETENSORS_INSTALL=OFF -DSAFETENSORS_WERROR=ON \
  -DPython_EXECUTABLE="$base_python" -DSKBUILD_PROJECT_VERSION_FULL=0+asan \
  -Dpybind11_DIR="$("$base_python" -m pybind11 --cmakedir)"
cmake --build "$build"

rm -rf "$build/site"
mkdir "$build/site"
cp -r python/safetensors "$build/site/"
rm -f "$build"/site/safetensors/_*.so
cp "$build"/src/python/_*.so "$build/site/safetensors/"

# The sanitizer's library must come first, and libstdc++ with it: else a C++ throw is not seen.
LD_PRELOAD="$("$compiler" -print-file-name=libasan.so) $("$compiler" -print-file-name=libstdc++.so)"
export LD_PRELOAD
# Python, NumPy and torch do not free all their memory at exit, so leaks cannot be detected.
export ASAN_OPTIONS=detect_leaks=0:allocator_may_return_null=1
export UBSAN_OPTIONS=halt_on_error=1:print_stacktrace=1
export PYTHONPATH=$build/site
"$base_python" -c 'import safetensors; assert "+asan" in safetensors.__version__'

if (($# == 0)); then
  # These tests measure memory or time, which a sanitizer changes, or limit one of them.
  set -- {,weights/}tests/python --ignore=tests/python/test_{conformance,growth,interrupt}.py \
    --ignore=weights/tests/python/test_weights_costs.py \
    --deselect weights/tests/python/test_weights_json.py::test_memory_is_bounded
  for name in costs::test_instructions_and_allocations dcp::test_peak_memory \
    dcp_consolidate::test_peak_memory shards::test_memory_of_an_index \
    writer_failures::test_memory \
    range_reader_threads::test_a_child_forked_during_a_load_exits \
    remote_http::test_a_forked_child_leaves_the_parents_connections_alone; do
    set -- "$@" --deselect "tests/python/test_${name/::/.py::}"
  done
  # These need what pip installs, or run commands of the system, to which LD_PRELOAD applies, too.
  set -- "$@" --ignore=tests/python/test_distribution.py \
    --deselect tests/python/test_cli_terminal.py::test_help_and_version \
    --deselect 'tests/python/test_cli_docs.py::test_the_section_runs[hash]' \
    --deselect tests/python/test_cli_docs.py::test_the_page_about_sums_runs
fi
"$base_python" -m pytest -p no:cacheprovider -n "$(nproc)" "$@"
