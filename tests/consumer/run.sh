#!/bin/sh
# Builds programs in C++ and C against an installed library, in all ways there are: find_package and
# pkg-config, static and shared, and as a part of a project.
#
#   tests/consumer/run.sh BUILD_DIR    BUILD_DIR holds a built static library
set -eu
here=$(cd "$(dirname "$0")" && pwd)
root=$(cd "$here/../.." && pwd)
build=$(cd "$1" && pwd)
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
warnings="-Wall -Wextra -Wpedantic -Wshadow -Wconversion -Werror"

fail() {
  echo "consumer: $*" >&2
  exit 1
}

# quietly COMMAND...: shows what it says only if it fails.
quietly() {
  "$@" >"$work/log" 2>&1 || {
    cat "$work/log" >&2
    fail "failed: $*"
  }
}

# refused WHAT TEXT COMMAND...: it must fail, and say TEXT.
refused() {
  what=$1 text=$2
  shift 2
  if "$@" >"$work/log" 2>&1; then fail "not refused: $what"; fi
  grep -q "$text" "$work/log" || {
    cat "$work/log" >&2
    fail "refused for another reason: $what"
  }
}

# blocks LANGUAGE FILE: the programs in a Markdown file, one after the other.
blocks() {
  awk -v begin="^\`\`\`$1\$" '$0 ~ begin {on = 1; next} /^```/ {on = 0} on' "$2"
}

# A copy of the programs, with no folder of the source in sight. It must be one that is not in use.
sources() {
  mkdir "$1"
  cp "$here"/*.c "$here"/*.cpp "$here"/*.cmake "$1"
  cp "${2:-$here}/CMakeLists.txt" "$1"
  blocks cpp "$root/README.md" >"$1/readme.cpp"
  blocks cpp "$root/docs/cpp.md" >"$1/docs.cpp"
  blocks c "$root/docs/cpp.md" >"$1/docs.c"
  blocks cpp "$root/docs/weights.md" >"$1/weights_docs.cpp"
  blocks c "$root/docs/weights.md" >"$1/docs_weights.c"
}

# project NAME OPTION...: configures, builds and runs the programs in $work/NAME.
project() {
  name=$1
  shift
  quietly cmake -S "$work/$name" -B "$work/build-$name" -G Ninja -DCMAKE_BUILD_TYPE=Release "$@"
  quietly cmake --build "$work/build-$name" --parallel 2
  (cd "$work/build-$name" && quietly ctest --output-on-failure)
  grep '^100% tests passed' "$work/log" | sed "s/^/consumer: $name: /"
}

# The program of docs/howto.md, with the page's own CMakeLists.txt: it prints what the page shows. The
# file is the one that the page's Python program saves.
howto() {
  mkdir "$work/howto"
  sed -n '/^## Use it from an engine/,$p' "$root/docs/howto.md" >"$work/howto.md"
  blocks cpp "$work/howto.md" >"$work/howto/engine.cpp"
  blocks cmake "$work/howto.md" >"$work/howto/CMakeLists.txt"
  blocks text "$work/howto.md" >"$work/shown"
  quietly cmake -S "$work/howto" -B "$work/build-howto" -G Ninja -DCMAKE_PREFIX_PATH="$work/static" \
    -DCMAKE_CXX_FLAGS="$warnings"
  quietly cmake --build "$work/build-howto"
  printf '\100\0\0\0\0\0\0\0%-64s\0\0\0\077\0\0\200\077\0\0\0\100' \
    '{"weight":{"dtype":"F32","shape":[3],"data_offsets":[0,12]}}' >"$work/howto/upload.safetensors"
  (cd "$work/howto" && quietly "$work/build-howto/engine")
  diff "$work/shown" "$work/log" >&2 || fail "the program of docs/howto.md does not print what the page shows"
  echo "consumer: the program of docs/howto.md works"
}

# linked_with PROGRAM KIND: whether the program uses the shared library.
linked_with() {
  if ldd "$1" | grep -q libsafetensors; then found=shared; else found=static; fi
  [ "$found" = "$2" ] || fail "$1 is linked to the $found library"
}

# by_pkg_config KIND: compiles with the flags that pkg-config gives, and runs.
by_pkg_config() {
  libdir=$(dirname "$(dirname "$(find "$work/$1" -name safetensors.pc)")")
  export PKG_CONFIG_PATH="$libdir/pkgconfig"
  [ "$(pkg-config --modversion safetensors)" = "$version" ] || fail "pkg-config: the version"
  option=
  [ "$1" = shared ] || option=--static
  prefix=$(pkg-config --variable=prefix safetensors)
  [ "$(cd "$prefix" && pwd -P)" = "$(cd "$work/$1" && pwd -P)" ] || fail "pkg-config: prefix=$prefix"
  for name in safetensors safetensors-weights; do
    moved=$(pkg-config --define-variable=prefix=/elsewhere --cflags --libs $name)
    case $moved in
      *-I/elsewhere/include*-L/elsewhere/lib*) ;;
      *) fail "pkg-config: another prefix gives $moved" ;;
    esac
  done
  cflags=$(pkg-config $option --cflags safetensors)
  libs=$(pkg-config $option --libs safetensors)
  # shellcheck disable=SC2086  # lists of flags
  {
    quietly ${CC:-cc} -std=c99 $warnings $cflags "$here/main.c" $libs -o "$work/pc-c-$1"
    quietly ${CXX:-c++} -std=c++20 $warnings $cflags "$here/main.cpp" $libs -o "$work/pc-cxx-$1"
  }
  for program in "$work/pc-c-$1" "$work/pc-cxx-$1"; do
    quietly env LD_LIBRARY_PATH="$libdir" "$program" "$work/pc.safetensors"
    LD_LIBRARY_PATH=$libdir linked_with "$program" "$1"
  done
  echo "consumer: pkg-config, $1: C and C++ work"
}

# conformance: runs the conformance kit with the library that by_pkg_config has used.
conformance() {
  # shellcheck disable=SC2086  # lists of flags
  quietly ${CC:-cc} -std=c99 $warnings $cflags "$root/conformance/subjects/c_library.c" $libs \
    -o "$work/subject"
  quietly env LD_LIBRARY_PATH="$libdir" python3 -B "$root/conformance/run.py" "$work/subject"
  for request in read write slice; do # no faults, and all requests are supported
    grep -qE "^$request +[0-9]+( +0){6}$" "$work/log" || fail "the conformance kit: $request"
  done
  echo "consumer: the C interface passes the conformance kit"
}

# rust: a program whose strings are a pointer and a size, with the library that by_pkg_config has used.
rust() {
  command -v rustc >/dev/null || {
    echo "consumer: skipped: strings of Rust (there is no rustc)"
    return 0
  }
  quietly rustc --edition 2021 "$here/strings.rs" -L "$libdir" -l safetensors -o "$work/strings"
  quietly env LD_LIBRARY_PATH="$libdir" "$work/strings"
  cat "$work/log"
}

# newest_clang: prints the newest clang++ that is installed and builds the library: from 16 on.
newest_clang() {
  { command -v clang++ || :; find /usr/bin -name 'clang++-[0-9]*'; } | while read -r each; do
    echo "$("$each" -dumpversion | cut -d. -f1) $each"
  done | sort -n | awk '$1 >= 16 {found = $2} END {print found}'
}

# own_rapidjson: a program that configures RapidJSON for itself, with static libraries that are
# optimised and not. Which functions the linker could mix up depends on what a compiler inlines.
own_rapidjson() {
  headers=$(sed -n 's/^SAFETENSORS_RAPIDJSON_INCLUDE_DIR:PATH=//p' "$build/CMakeCache.txt")
  [ -d "$headers" ] || headers=$build/_deps/rapidjson-src/include
  compiler=$1
  for level in 0 2; do
    quietly cmake -S "$root" -B "$work/own$level" -G Ninja -DCMAKE_CXX_COMPILER="$compiler" \
      -DCMAKE_CXX_FLAGS=-DRAPIDJSON_NAMESPACE=of_the_project -DCMAKE_BUILD_TYPE=Debug \
      -DCMAKE_CXX_FLAGS_DEBUG=-O$level -DCMAKE_UNITY_BUILD=ON -DSAFETENSORS_BUILD_WEIGHTS=OFF
    quietly cmake --build "$work/own$level" --parallel 2 --target safetensors
  done
  for level in 0 2; do
    quietly "$compiler" -std=c++20 -O$level -DSAFETENSORS_STATIC -I"$root/include" -idirafter "$headers" \
      -c "$here/own_rapidjson.cpp" -o "$work/own.o"
    for library in 0 2; do
      quietly "$compiler" "$work/own.o" "$work/own$library/libsafetensors.a" -pthread -ldl -o "$work/program_with_own"
      quietly "$work/program_with_own" "$work/program_with_own"
    done
  done
  [ -d "$work/mixed" ] ||
    quietly cmake --install "$work/own2" --prefix "$work/mixed" --component development
  rm -rf "$work/own0" "$work/own2"
  echo "consumer: a program with RapidJSON of its own works ($compiler, -O0 and -O2)"
}

# Functions of the C interface that the header declares.
declared() {
  grep -oE '\bsafetensors_[a-z0-9_]+\(' "$root/include/safetensors/safetensors.h" | tr -d '(' |
    sort -u
}

# exports LIBRARY [declared]: nothing is exported but the interfaces, and the C one is whole. What is
# written at load is then read-only.
exports() {
  readelf -dW "$1" | grep BIND_NOW >/dev/null || fail "$1 is not linked with -z now"
  nm -D --defined-only "$1" | awk '{print $3}' >"$work/symbols"
  grep '^safetensors_' "$work/symbols" | sort >"$work/c"
  ${2:-true} >"$work/declared"
  diff "$work/declared" "$work/c" >&2 || fail "the C functions and those that are exported differ"
  grep -v '^safetensors_' "$work/symbols" | c++filt |
    grep -vE '^((typeinfo|typeinfo name|vtable) for )?safetensors::[A-Za-z_]+' >"$work/foreign" || :
  [ ! -s "$work/foreign" ] || { cat "$work/foreign" >&2; fail "these symbols should be hidden"; }
  inside='safetensors::(format|io|c)::|parse_json|parse_gguf|dequantize_(pack|blocks)|kernels|HeaderBuilder|SafeOpen::File|FileSource|copy_runs'
  if c++filt <"$work/symbols" | grep -E "^[^(]*($inside)" >&2; then fail "these should be hidden"; fi
  echo "consumer: $(wc -l <"$work/symbols") symbols, $(wc -l <"$work/c") of them C functions"
}

[ "$(sed -n 's/^SAFETENSORS_BUILD_PYTHON:BOOL=//p' "$build/CMakeCache.txt")" = OFF ] ||
  fail "$build builds the Python extension"
if grep -q '^Python[3_]' "$build/CMakeCache.txt"; then fail "the build looked for Python"; fi
version=$(sed -n 's/^#define SAFETENSORS_VERSION "\(.*\)"/\1/p' "$root/include/safetensors/version.h")

# Static, into a prefix and then moved: nothing may remember where it was.
quietly cmake --install "$build" --prefix "$work/first" --component development
mv "$work/first" "$work/static"
find "$work/static" -name libsafetensors.a | grep -q . || fail "no static library is installed"
sources "$work/static-cxx"
project static-cxx -DCMAKE_PREFIX_PATH="$work/static"
sources "$work/static-c" "$here/c_only"
project static-c -DCMAKE_PREFIX_PATH="$work/static"
howto
by_pkg_config static

own_rapidjson "${CXX:-c++}"
clang=$(newest_clang)
if [ -n "$clang" ]; then
  own_rapidjson "$clang"
else
  echo "consumer: skipped: a program with RapidJSON of its own, by clang++ (there is none from 16 on)"
fi

# Shared.
quietly cmake -S "$root" -B "$work/build" -G Ninja -DBUILD_SHARED_LIBS=ON -DCMAKE_BUILD_TYPE=Release
quietly cmake --build "$work/build" --parallel 2
quietly cmake --install "$work/build" --prefix "$work/shared"
sources "$work/shared-cxx"
project shared-cxx -DCMAKE_PREFIX_PATH="$work/shared"
sources "$work/shared-c" "$here/c_only"
project shared-c -DCMAKE_PREFIX_PATH="$work/shared"
cp -r "$root/examples" "$work/examples"
project examples -DCMAKE_PREFIX_PATH="$work/shared"
by_pkg_config shared
rust
# The library of the C interface: a project in C alone, and pkg-config.
sources "$work/c-library" "$here/c_library"
project c-library -DCMAKE_PREFIX_PATH="$work/shared"
linked_with "$work/build-c-library/consumer_c_weights" shared
if ldd "$work/build-c-library/consumer_c" | grep -q 'libsafetensors\.so'; then fail "consumer_c needs the C++ library"; fi
# shellcheck disable=SC2046,SC2086  # lists of flags
quietly ${CC:-cc} -std=c99 $warnings "$here/main.c" $(pkg-config --cflags --libs safetensors-c) -o "$work/pc-c-library"
quietly env LD_LIBRARY_PATH="$libdir" "$work/pc-c-library" "$work/pc.safetensors"
echo "consumer: pkg-config, the library of the C interface: C works"
conformance
exports "$(find "$work/shared" -name "libsafetensors.so.$version")" declared
exports "$(find "$work/shared" -name "libsafetensors_weights.so.$version")"
# The runtime component is what a program needs to run, and no more.
quietly cmake --install "$work/build" --prefix "$work/runtime" --component runtime
[ "$(find "$work/runtime" -type f | wc -l)" = 3 ] || fail "the runtime component: three libraries"

# Both in one prefix: the component asked for, else BUILD_SHARED_LIBS, decides.
quietly cmake --install "$build" --prefix "$work/both"
quietly cmake --install "$work/build" --prefix "$work/both"
choose() { # choose KIND OPTION...
  rm -rf "$work/choose" "$work/build-choose"
  sources "$work/choose" "$here/c_only"
  kind=$1
  shift
  project choose -DCMAKE_PREFIX_PATH="$work/both" "$@"
  linked_with "$work/build-choose/consumer_c" "$kind"
}
choose static -DCONSUMER_COMPONENTS=static -DBUILD_SHARED_LIBS=ON
choose shared -DCONSUMER_COMPONENTS=shared
choose shared -DBUILD_SHARED_LIBS=ON

# Versions and components that are not there.
ask() {
  rm -rf "$work/build-ask"
  cmake -S "$work/static-cxx" -B "$work/build-ask" -G Ninja -DCMAKE_PREFIX_PATH="$work/static" "$@"
}
quietly ask -DCONSUMER_VERSION="$version"
for wrong in 0.1.0 0.2.99 0.3 1.0; do
  refused "version $wrong" "version: $version" ask -DCONSUMER_VERSION=$wrong
done
refused "component shared" "no component shared" ask -DCONSUMER_COMPONENTS=shared
refused "component c" "no component c" ask -DCONSUMER_COMPONENTS=c
refused "component nonsense" "no component nonsense" ask -DCONSUMER_COMPONENTS=nonsense
quietly ask -DCONSUMER_COMPONENTS="static;weights"

# A static library without the weight layer, which own_rapidjson has built, beside a shared one with it.
quietly cmake --install "$work/build" --prefix "$work/mixed"
quietly ask -DCMAKE_PREFIX_PATH="$work/mixed" -DCONSUMER_COMPONENTS=weights
refused "static and weights" "the static library is installed without it" \
  ask -DCMAKE_PREFIX_PATH="$work/mixed" -DCONSUMER_COMPONENTS="static;weights"
# The folders of an installation may be absolute paths.
quietly cmake "$work/build" -DCMAKE_INSTALL_INCLUDEDIR="$work/absolute/include"
quietly cmake --install "$work/build" --prefix "$work/absolute"
quietly ask -DCMAKE_PREFIX_PATH="$work/absolute" -DCONSUMER_COMPONENTS=weights

# A generator for several configurations: releases have the same flags as alone, and debugging none.
quietly cmake -S "$root" -B "$work/several" -G "Ninja Multi-Config" -DBUILD_SHARED_LIBS=ON
for flag in FORTIFY_SOURCE=3 stack-protector-strong z,now unity_; do
  grep -q -- "$flag" "$work/several/CMakeFiles/impl-Release.ninja" || fail "$flag in no Release of several"
done
if grep -q FORTIFY_SOURCE=3 "$work/several/CMakeFiles/impl-Debug.ninja"; then fail "a Debug is hardened"; fi

# As a part of a project: fetched from the repository if there is one, else by add_subdirectory, which
# is what fetching comes to. Unity builds without debug information, to save time.
how=add_subdirectory fetch=OFF
if git -C "$root" rev-parse HEAD >/dev/null 2>&1; then how=FetchContent fetch=ON; fi
sources "$work/part" "$here/subproject"
project part -DCONSUMER_FETCH=$fetch -DSAFETENSORS_SOURCE="$root" \
  -DCMAKE_BUILD_TYPE=Debug -DCMAKE_CXX_FLAGS_DEBUG=-O0 -DCMAKE_UNITY_BUILD=ON
quietly cmake --install "$work/build-part" --prefix "$work/own"
[ "$(find "$work/own" -type f | wc -l)" = 1 ] || fail "a project installs what is not its own"
echo "consumer: static and shared, C++ and C, find_package, pkg-config and $how work"
