#!/usr/bin/env bash
# Installs what the tests need into a virtual environment and runs all of them: the C++ tests, the
# Python tests, and the tests with real client packages.
#
#   bash run-tests.sh
#
# VENV, PYTHON, TORCH_SPEC, TORCH_PIP_OPTIONS and SAFETENSORS_WHEEL are as in quickstart.sh (VENV: .venv-test).
set -euo pipefail

root=$(CDPATH='' cd -- "$(dirname -- "${BASH_SOURCE[0]}")" && pwd)
# shellcheck source=scripts/common.sh
source "$root/scripts/common.sh"
no_arguments "$@"
# A relative VENV is relative to the caller's working directory.
venv_folder=$(absolute "${VENV:-$root/.venv-test}")
cd -- "$root"

heading "What the build and the tests need"
find_python
require_build_tools
debian_packages=()
command -v cmake >/dev/null || debian_packages+=(cmake)
command -v ninja >/dev/null || debian_packages+=(ninja-build)
[[ -e /usr/include/doctest/doctest.h ]] || debian_packages+=(doctest-dev)
# For examples/cpp/read_url.cpp, whose tests are skipped without it.
command -v curl-config >/dev/null || debian_packages+=(libcurl4-openssl-dev)
if ((${#debian_packages[@]})); then
  install_debian "${debian_packages[@]}" || note "not installed: ${debian_packages[*]}"
fi

heading "Virtual environment"
make_venv "$venv_folder"
install_torch
install_project

heading "Test packages and clients"
logs=$(mktemp -d)
trap 'rm -rf "$logs"' EXIT
install_beside --group test --group clients
"$venv_python" -c 'import model_signing'  # else the tests of signatures would be skipped
note "safetensors $(version_of safetensors), torch $(version_of torch)"

jobs=$(getconf _NPROCESSORS_ONLN)  # macOS has no nproc

cpp_tests() {
  cmake --preset dev && cmake --build --preset dev &&
    ctest --preset dev --parallel "$jobs"
}

# Tests wait for a third of their time, so there is one process more than processors.
python_tests() {
  "$venv_python" -m pytest tests/python weights/tests/python -n "$((jobs + 1))" --durations=15
}

client_tests() {
  "$venv_python" -m pytest tests/clients -n "$jobs"
}

# run_suite NAME FUNCTION: runs FUNCTION, keeps its summary line, and records a failure.
summary=()
failed=0
run_suite() {
  heading "$1"
  local status=0
  "$2" 2>&1 | tee "$logs/$2" || status=$?
  summary+=("$(grep -E ' (passed|failed|errors?)' "$logs/$2" | tail -n 1 || true)")
  ((status == 0)) || failed=1
}

run_suite "C++ tests" cpp_tests
run_suite "Python tests" python_tests
run_suite "Client tests" client_tests

heading "Summary"
printf '%s\n' "${summary[@]}"
((failed == 0)) || die "some tests failed"
