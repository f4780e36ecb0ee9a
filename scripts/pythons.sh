#!/usr/bin/env bash
# Builds the package for other Pythons, and runs there the Python tests that need no torch.
#
#   bash scripts/pythons.sh [PYTHON...]    by default all of these:
#
# 3.10 3.12 3.13   those of pyenv
# 3.13t 3.14t      free-threaded ones, built from Debian's source packages
# tsan             the free-threaded 3.13 and the package, both built with ThreadSanitizer: tests of threads
# sid              that of Debian's unstable, in a chroot: needs root
# aarch64          64-bit Arm's 3.11 in an emulator, with the wheel that `scripts/wheels.sh aarch64` has
#                  built: tests of reading, writing, slices, digests, patches, threads and weights
# musl             3.13 with musl instead of glibc, built from Debian's source package, with the wheel that
#                  `scripts/wheels.sh musl` has built for a 3.13: tests/consumer/wheel.py
#
# A path is an interpreter, too. A Python that cannot be had is skipped, in one line. Everything is kept
# in build/ci/pythons. The C++ library is compiled once; each further Python costs only the bindings.
set -euo pipefail
cd -- "$(dirname -- "${BASH_SOURCE[0]}")/.."
# shellcheck source=scripts/common.sh
source scripts/common.sh

work=$PWD/build/ci/pythons
mkdir -p "$work"

skip() {
  note "skipped: Python $target: $1"
  exit 0
}

# run_pytest ARGUMENT...: pytest writes nothing into the checkout.
run_pytest() { "$venv_python" -m pytest -p no:cacheprovider "$@"; }

# install_tests GROUP: the environment of base_python, with a dependency group and what builds.
install_tests() {
  make_venv "$work/venv-$name"
  pip_install --only-binary :all: --group build --group "$1"
  # One copy for all interpreters: a build folder is valid for one place of the build's tools.
  [[ -d $work/tools ]] || pip_install --target "$work/tools" --no-deps --group build
}

# install_package [SANITIZER]: the package, built quickly in the folder that all interpreters share; with a
# sanitizer, in a folder of its own.
install_package() {
  PYTHONPATH=$work/tools pip_install --no-build-isolation --no-deps --force-reinstall \
    -C build-dir="$work/build${1:+-$1}" -C cmake.build-type=Debug -C cmake.define.CMAKE_UNITY_BUILD=ON \
    -C cmake.define.SAFETENSORS_SANITIZE="${1:-}" -C "cmake.define.CMAKE_CXX_FLAGS_DEBUG=-O1 -DNDEBUG" .
  is_ours || die "the installed safetensors is not this project's"
}

# test_interpreter: everything for base_python.
test_interpreter() {
  install_tests test
  install_package
  run_pytest -n "$(nproc)" -m "not slow and not exhaustive and not timed" {,weights/}tests/python
}

from_pyenv() {
  local root
  root=$(pyenv root 2>/dev/null) || root=${PYENV_ROOT:-$HOME/.pyenv}
  base_python=$(compgen -G "$root/versions/$target.*[0-9]/bin/python3" | sort -V | tail -n 1) ||
    skip "not in $root/versions (pyenv install $target)"
  test_interpreter
}

# Prints the address of the Debian archive that apt-get uses.
find_mirror() {
  # shellcheck disable=SC2016  # apt-get expands it
  apt-get indextargets --format '$(REPO_URI)' 'Created-By: Packages' 'Origin: Debian' \
    'Label: Debian' 2>/dev/null | grep -m 1 .
}

# find_cpython_source VERSION SUITE: CPython's sources from Debian's package; sets source_folder.
find_cpython_source() {
  local folder=$work/source mirror apt
  if ! source_folder=$(compgen -G "$folder/Python-$1.*/"); then
    mirror=$(find_mirror) || skip "apt-get knows no Debian archive"
    rm -rf "$folder/lists"
    mkdir -p "$folder/lists/partial"
    printf 'deb-src [signed-by=%s] %s %s main\n' \
      /usr/share/keyrings/debian-archive-keyring.gpg "$mirror" "$2" >"$folder/sources.list"
    apt=(apt-get -qq -o "Dir::Etc::SourceList=$folder/sources.list" -o Dir::Etc::SourceParts=/dev/null
      -o Acquire::Check-Valid-Until=false -o "Dir::State::Lists=$folder/lists" -o "Dir::Cache=$folder")
    (cd "$folder" && "${apt[@]}" update && "${apt[@]}" source --download-only "python$1") 2>/dev/null ||
      skip "its source package could not be fetched"
    tar -xf "$folder"/python"$1"_*.orig.tar.xz -C "$folder"
    source_folder=$(compgen -G "$folder/Python-$1.*/")
  fi
}

# build_cpython VERSION SUITE OPTION...: a CPython with these options of its configure; sets base_python.
build_cpython() {
  local prefix=$work/cpython-$target build=$work/cpython-build
  base_python=$prefix/bin/python3
  [[ ! -e $prefix/complete ]] || return 0
  find_cpython_source "$1" "$2"
  rm -rf "$build"
  mkdir -p "$build"
  note "building CPython in $build"
  (cd "$build" && "$source_folder/configure" -q --prefix="$prefix" --disable-test-modules CFLAGS=-O1 \
    "${@:3}" && make -s -j"$(nproc)" && make -s install) \
    >"$build.log" 2>&1 || die "CPython could not be built: $build.log"
  rm -rf "$build"
  touch "$prefix/complete"
}

# Fails if one of this project's modules, or NumPy, has switched the GIL on.
check_gil() {
  (cd / && "$venv_python" -W error - <<'PY')
import importlib, sys
import safetensors, safetensors.numpy

for name in ("_core", "_extra", "_weights", "delta", "plan", "signing", "weights"):
    importlib.import_module("safetensors." + name)
assert not sys._is_gil_enabled(), "the GIL is on"
print("   the GIL is off:", sys.version)
PY
}

# build_free_threaded VERSION SUITE [SANITIZER]: CPython and the package, with the GIL off.
build_free_threaded() {
  install_debian g++ make libssl-dev libffi-dev zlib1g-dev libbz2-dev liblzma-dev libsqlite3-dev ||
    skip "the Debian packages could not be installed"
  build_cpython "$1" "$2" --disable-gil ${3:+"--with-$3-sanitizer"}
  install_tests free-threaded
  install_package "${@:3}"
  check_gil
}

# free_threaded VERSION SUITE
free_threaded() {
  build_free_threaded "$@"
  run_pytest -k thread {,weights/}tests/python
  run_pytest -n "$(nproc)" -m "not slow and not exhaustive and not timed" {,weights/}tests/python
}

# CPython's list of its own races lacks one: daemon threads may look up their state while the interpreter ends.
thread_sanitizer() {
  find_cpython_source 3.13 trixie
  { cat "$source_folder/Tools/tsan/suppressions_free_threading.txt" && echo race:PyThread_tss_delete; } >"$work/races"
  export TSAN_OPTIONS=suppressions=$work/races:log_path=$work/tsan
  rm -f "$work"/tsan.*
  build_free_threaded 3.13 trixie thread
  if ! run_pytest -k thread {,weights/}tests/python || compgen -G "$work/tsan.*" >/dev/null; then
    die "tests failed, or ThreadSanitizer reported races: see $work/tsan.*"
  fi
}

# Runs this script in a chroot of Debian's unstable, on a copy of the sources.
unstable() {
  local root=$PWD/build/ci/chroot/sid
  make_chroot sid "$root" python3-dev python3-venv g++ cmake ninja-build rapidjson-dev \
    libxxhash-dev git || skip "no chroot of Debian's unstable: that needs root and debootstrap"
  mkdir -p "$root/tmp/safetensors"
  git ls-files -z | tar --null -T - -c | tar -x -C "$root/tmp/safetensors"
  in_chroot "$root" "cd /tmp/safetensors && bash scripts/pythons.sh /usr/bin/python3"
}

# unpack_debian SUITE ARCHITECTURE FILE PACKAGE...: unpacks packages and what they need, unless the file
# exists; sets root.
unpack_debian() {
  root=$work/$target
  [[ ! -e $root/$3 ]] || return 0
  local lists=$work/$target-apt mirror apt package
  mirror=$(find_mirror) || skip "apt-get knows no Debian archive"
  mkdir -p "$lists/lists/partial" "$lists/archives/partial" "$root"
  : >"$lists/status"
  printf 'deb [signed-by=%s] %s %s main\n' \
    /usr/share/keyrings/debian-archive-keyring.gpg "$mirror" "$1" >"$lists/sources.list"
  apt=(apt-get -qq -o "APT::Architecture=$2" -o "APT::Architectures=$2" -o "Dir::State=$lists"
    -o "Dir::State::status=$lists/status" -o "Dir::Cache=$lists" -o Acquire::Check-Valid-Until=false
    -o "Dir::Etc::SourceList=$lists/sources.list" -o Dir::Etc::SourceParts=/dev/null)
  { "${apt[@]}" update &&
    "${apt[@]}" install -y --no-install-recommends --download-only "${@:4}"; } \
    >"$lists/log" 2>&1 || skip "its packages could not be fetched: $lists/log"
  for package in "$lists"/archives/*.deb; do dpkg-deb -x "$package" "$root"; done
}

# install_wheel PATTERN TARGET VERSION PLATFORM PACKAGE...: a wheel that `scripts/wheels.sh TARGET` has built
# for a Python that is not this platform's, with packages, in a folder; sets site.
install_wheel() {
  local wheel platforms=(--platform "$4")
  wheel=$(compgen -G "build/wheels/dist/safetensors-*-$1.whl" | head -n 1) ||
    skip "no wheel (bash scripts/wheels.sh $2)"
  [[ $4 != manylinux* ]] || platforms+=(--platform "${4/2_28/2_17}" --platform "${4/_2_28/2014}")
  local options=(--only-binary :all: --python-version "$3" --implementation cp
    --abi "cp${3/./}" --abi abi3 --abi none "${platforms[@]}")
  site=$work/site-$target
  find_python
  make_venv "$work/venv-tools"
  [[ -d $site/numpy ]] || pip_install --target "$site" "${options[@]}" "${@:5}"
  # The tests compare with upstream.
  [[ -d $site/upstream ]] || pip_install --target "$site/upstream" --no-deps "${options[@]}" safetensors==0.8.0
  rm -rf "$site"/safetensors*
  "$venv_python" -m zipfile -e "$wheel" "$site"
}

# Python finds its own path in argv[0], by which it starts children: that of a script, which runs the emulator.
emulated_arm() {
  local root site python
  install_debian qemu-user || skip "no qemu-user"
  unpack_debian bookworm arm64 usr/bin/python3.11 python3.11 libstdc++6
  install_wheel 'cp311-cp311-manylinux*_aarch64' aarch64 3.11 manylinux_2_28_aarch64 --group free-threaded
  python=$root/usr/bin/emulated-python
  # shellcheck disable=SC2016  # the script expands them
  printf '#!/bin/sh\nexec qemu-aarch64 -0 "$0" -L %q %q "$@"\n' "$root" "$root/usr/bin/python3.11" >"$python"
  chmod +x "$python"
  mkdir -p "$root/usr/lib/python3/dist-packages"
  echo "$site" >"$root/usr/lib/python3/dist-packages/site.pth"
  # The emulator ignores MADV_POPULATE_READ, by which a read of a truncated file is refused.
  SAFETENSORS_UPSTREAM_DIR=$site/upstream "$python" -m pytest -p no:cacheprovider -p no:xdist \
    -m "not slow and not exhaustive and not timed" -k "not truncated" \
    tests/python/test_{copy,delta_hostile,digests,dtypes,hostile_table,patch_codec}.py \
    tests/python/test_{shard_writer,slice_lists,slicing,sums_make,threads}.py \
    weights/tests/python/test_weights_{awq_gptq,compressed_tensors,gguf,json,mlx,modelopt,names,rows}.py
}

# This Python lacks zlib, OpenSSL and ctypes, which the test runner needs. NumPy needs musl 1.2.4, so both
# run by the loader of Debian 13's musl.
with_musl() {
  local site root
  install_debian musl-tools make || skip "no musl-gcc"
  install_wheel 'cp313-cp313-musllinux*_x86_64' "musl, with a 3.13 in PYTHONS" 3.13 musllinux_1_2_x86_64 numpy==2.4.6
  # CPython's configure would take the host's name of its platform, and the host's libraries.
  # shellcheck disable=SC2016  # the script expands it
  printf '#!/bin/sh\n[ "$1" = --print-multiarch ] || exec musl-gcc "$@"\n' >"$work/musl-gcc"
  chmod +x "$work/musl-gcc"
  build_cpython 3.13 trixie CC="$work/musl-gcc" PKG_CONFIG=false --without-ensurepip
  unpack_debian trixie amd64 usr/lib/ld-musl-x86_64.so.1 musl
  PYTHONPATH=$site "$root/usr/lib/ld-musl-x86_64.so.1" "$base_python" tests/consumer/wheel.py
}

(($#)) || set -- 3.10 3.12 3.13 3.13t 3.14t tsan sid aarch64 musl
for target in "$@"; do
  name=${target##*/}
  case $target in
    3.10 | 3.12 | 3.13) run=from_pyenv ;;
    3.13t) run="free_threaded 3.13 trixie" ;;
    3.14t) run="free_threaded 3.14 sid" ;;
    tsan) run=thread_sanitizer ;;
    sid) run=unstable ;;
    aarch64) run=emulated_arm ;;
    musl) run=with_musl ;;
    /*) run=test_interpreter base_python=$target ;;
    *) die "unknown Python: $target" ;;
  esac
  heading "Python $target"
  # In a process of its own, so that set -e ends it at its first failure.
  # shellcheck disable=SC2086  # a function and its arguments
  (set -e; $run)
done
