#!/usr/bin/env bash
# Completes and checks a release: makes the wheels of safetensors-cpp from those of safetensors.
#
#   bash scripts/release.sh FOLDER
#
# FOLDER has the source archive and the wheels of safetensors; the others are added to it.
# TAG     the tag of the release (default: none); it must be "v" and the version of safetensors-cpp
# PYTHON  an interpreter with the dependency group "release" (default python3)
set -euo pipefail
(($# == 1)) || { echo "usage: release.sh FOLDER" >&2; exit 2; }
scripts=$(dirname -- "${BASH_SOURCE[0]}")
python=${PYTHON:-python3}

for wheel in "$1"/safetensors-*.whl; do
  [[ -e $wheel ]] || { echo "release.sh: $1: no wheels of safetensors" >&2; exit 1; }
  "$python" "$scripts/beside_wheel.py" "$wheel" "$1"
done
"$python" "$scripts/check_release.py" "$1" ${TAG:+"$TAG"}
"$python" -m twine check --strict "$1"/*
