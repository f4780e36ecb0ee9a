#!/usr/bin/env bash
# Builds the library and the package with the system's compiler, and runs the C++ tests and the Python
# tests that need no torch. For systems that .ci/run does not know, such as macOS and Windows.
#
#   bash scripts/native.sh [OPTION...]
#
# Options are for CMake, which fetches the headers that the system lacks. PYTHON is the interpreter
# (default python3).
set -euo pipefail
cd -- "$(dirname -- "${BASH_SOURCE[0]}")/.."
# shellcheck source=scripts/common.sh
source scripts/common.sh

work=$PWD/build/native
find_python
make_venv "$work/venv"
pip_install cmake
PATH=$(dirname -- "$venv_python"):$PATH

heading "C++ tests"
cmake -S . -B "$work/cpp" -DCMAKE_BUILD_TYPE=Debug -DSAFETENSORS_BUILD_TESTS=ON "$@"
cmake --build "$work/cpp" --config Debug --parallel "$(getconf _NPROCESSORS_ONLN)"
ctest --test-dir "$work/cpp" --build-config Debug --output-on-failure

heading "Python tests"
install_project
pip_install --group test
is_ours || die "another safetensors was installed over this project's"
"$venv_python" -m pytest tests/python weights/tests/python -m "not slow and not exhaustive and not timed"
