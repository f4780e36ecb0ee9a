#!/usr/bin/env bash
# Compares this package with upstream, other peers and the limits of the machine, on generated files.
#
#   bash benchmarks/run.sh            everything: about 30 minutes, 20 GB of disk, 16 GB of memory
#   bash benchmarks/run.sh --quick    small files, about a minute
#   bash benchmarks/run.sh remote     loads from object stores and web servers: a few minutes
#   bash benchmarks/run.sh link       loads over a modelled link to devices: two minutes
#   bash benchmarks/run.sh group      loads by several ranks together: a few minutes
#   bash benchmarks/run.sh --help     what else can be chosen
#
# PYTHON, TORCH_SPEC and TORCH_PIP_OPTIONS are as in quickstart.sh. Everything it makes is under
# build/bench.
set -euo pipefail

called_from=$PWD
cd -- "$(dirname -- "${BASH_SOURCE[0]}")/.."
# shellcheck source=scripts/common.sh
source scripts/common.sh
find_python
suite=$PWD/benchmarks/python/suite.py
case ${1:-} in
  -h | --help) exec "$base_python" "$suite" --help ;;
  '' | -* | remote | link | group) ;;
  *) die "$1: not a set of benchmarks (see --help)" ;;
esac
require_build_tools
debian_packages=()
command -v cmake >/dev/null || debian_packages+=(cmake)
command -v ninja >/dev/null || debian_packages+=(ninja-build)
"$base_python" -c 'import ensurepip, venv' 2>/dev/null || debian_packages+=(python3-venv)
if ((${#debian_packages[@]})); then
  install_debian "${debian_packages[@]}" || note "not installed: ${debian_packages[*]}"
fi

if [[ ${1:-} == remote ]]; then
  shift
  install_debian nginx-light openssl || die "nginx, which serves the files, could not be installed"
  make_venv "$PWD/build/bench/remote"
  install_torch
  install_project
  install_beside --group test --group remote 'runai-model-streamer[s3]==0.17.0'
  exec "$venv_python" benchmarks/python/bench_remote.py "$@"
fi

if [[ ${1:-} == link ]]; then
  shift
  [[ -e /usr/include/doctest/doctest.h ]] || require_debian "doctest" doctest-dev
  build=$PWD/build/bench/link
  cmake -S . -B "$build" -G Ninja -DCMAKE_BUILD_TYPE=Release \
    -DSAFETENSORS_BUILD_TESTS=ON -DSAFETENSORS_BUILD_BENCHMARKS=ON >/dev/null
  cmake --build "$build" --target bench_link
  exec "$build/benchmarks/cpp/bench_link" "$build" "$@"
fi

if [[ ${1:-} == group ]]; then
  shift
  make_venv "$PWD/build/bench/group"
  install_torch
  install_project
  install_beside --group test --group remote
  exec "$venv_python" benchmarks/python/bench_group.py "$@"
fi

cd -- "$called_from"
exec "$base_python" "$suite" "$@"
