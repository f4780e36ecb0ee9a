#!/usr/bin/env bash
# Builds the C++ library and its tests for other machines, and runs the tests in emulators.
#
#   bash scripts/cross.sh TARGET...
#
# aarch64    64-bit Arm, run under qemu-user
# s390x      IBM Z, which is big-endian, run under qemu-user
# windows    by MinGW-w64, run under Wine
# musl       Linux with musl instead of glibc, by Zig: the library and tests/consumer, which runs
# macos      Apple's systems, by Zig: likewise, but not run
#
# (The tests themselves need a newer doctest and RapidJSON than Debian 12 has for a clang so new.)
#
# Tests that parse headers of tens of megabytes, or that measure time, are left out: an emulator
# makes them slow and says nothing new. EVERYTHING=1 runs them too. Tests of reading ahead are always
# left out, because qemu-user ignores madvise.
# The programs are taken from PATH; .ci/run installs them.
set -euo pipefail
cd -- "$(dirname -- "${BASH_SOURCE[0]}")/.."
# shellcheck source=scripts/common.sh
source scripts/common.sh

(($#)) || die "name a target: aarch64 s390x windows musl macos"

# Headers of the host's system must not come along with RapidJSON's, xxHash's and doctest's.
headers=$PWD/build/cross/include
link_headers "$headers" rapidjson doctest xxhash.h

no_madvise='a file is read ahead*,files are read ahead*,a forked process reads ahead*'
test_options="--test-case-exclude=$no_madvise,heavy rows*,time is linear*"
[[ -z ${EVERYTHING:-} ]] || test_options="--test-case-exclude=$no_madvise"

# build NAME TOOLCHAIN [OPTION...]: into build/cross/NAME, at the optimisation of the preset "dev".
build() {
  local options=("${@:3}")
  cmake -S . -B "build/cross/$1" -G Ninja \
    -DCMAKE_TOOLCHAIN_FILE="$PWD/cmake/toolchains/$2.cmake" \
    -DCMAKE_BUILD_TYPE=Debug -DCMAKE_CXX_FLAGS_DEBUG=-O1 \
    -DSAFETENSORS_WERROR=ON -DSAFETENSORS_BUILD_TESTS=ON \
    -DSAFETENSORS_RAPIDJSON_INCLUDE_DIR="$headers" \
    -DSAFETENSORS_XXHASH_INCLUDE_DIR="$headers" \
    -DSAFETENSORS_DOCTEST_INCLUDE_DIR="$headers" \
    -DSAFETENSORS_TEST_OPTIONS="$test_options" "${options[@]}"
  cmake --build "build/cross/$1"
}

# The temporaries that must not compile are the same for every target.
run_tests() {
  ctest --test-dir "build/cross/$1" --output-on-failure --parallel "$(nproc)" \
    --exclude-regex '^refused_'
}

aarch64() {
  build aarch64 aarch64-linux
  run_tests aarch64
}

s390x() {
  build s390x s390x-linux
  run_tests s390x
}

windows() {
  export WINEPREFIX=${WINEPREFIX:-$PWD/build/cross/wine}
  build windows mingw-w64
  run_tests windows
}

# by_zig NAME TARGET: the library, and the consumer of it.
by_zig() {
  ZIG=$("${PYTHON:-python3}" -c 'import ziglang; print(ziglang.__path__[0])')/zig
  export ZIG
  build "$1" "$1" -DSAFETENSORS_BUILD_TESTS=OFF
  "$ZIG" c++ -target "$2" -std=c++20 -O1 -DSAFETENSORS_STATIC -Iinclude tests/consumer/main.cpp \
    "build/cross/$1/libsafetensors.a" -o "build/cross/$1/consumer"
}

musl() {
  by_zig musl x86_64-linux-musl
  build/cross/musl/consumer build/cross/musl/model.safetensors
  note "musl: the consumer works"
}

macos() {
  by_zig macos aarch64-macos
  note "macos: compiled and linked, not run"
}

for target in "$@"; do
  case $target in
    aarch64 | s390x | windows | musl | macos) ;;
    *) die "unknown target: $target" ;;
  esac
  heading "$target"
  # In a process of its own, so that set -e ends it at its first failure.
  (set -e; "$target")
done
