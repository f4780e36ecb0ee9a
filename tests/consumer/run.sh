#!/bin/sh
# Builds the consumer against an installed library, static and shared.
#
#   tests/consumer/run.sh BUILD_DIR    BUILD_DIR holds a built static library
set -eu
here=$(cd "$(dirname "$0")" && pwd)
build=$(cd "$1" && pwd)
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

use() { # use PREFIX: builds and runs the consumer; no folder of the source is in sight
  cp -r "$here" "$work/source"
  awk '/^```cpp/ {on = 1; next} /^```/ {on = 0} on' "$here/../../README.md" >"$work/source/readme.cpp"
  cmake -S "$work/source" -B "$1-consumer" -DCMAKE_PREFIX_PATH="$1" -DCMAKE_BUILD_TYPE=Release \
    -DCMAKE_CXX_FLAGS="-Wall -Wextra -Wpedantic -Wshadow -Wconversion -Werror" >"$work/log" ||
    { cat "$work/log"; exit 1; }
  cmake --build "$1-consumer"
  ctest --test-dir "$1-consumer" --output-on-failure
  rm -rf "$work/source"
}

cmake --install "$build" --prefix "$work/static" --component development >/dev/null
test -f "$work"/static/lib*/libsafetensors.a
use "$work/static"

cmake -S "$here/../.." -B "$work/build" -DBUILD_SHARED_LIBS=ON -DCMAKE_BUILD_TYPE=Release \
  -DCMAKE_INSTALL_PREFIX="$work/shared" >/dev/null
cmake --build "$work/build" --parallel 2
cmake --install "$work/build" --component development >/dev/null
use "$work/shared"
echo "consumer: static and shared work"
