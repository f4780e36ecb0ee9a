# Functions that quickstart.sh and run-tests.sh share. Source this file, do not run it.
# shellcheck shell=bash

# Another package on this path would be imported before the one in the environment.
unset PYTHONPATH PYTHONHOME

heading() { printf '\n== %s ==\n' "$*"; }

note() { printf '   %s\n' "$*"; }

die() {
  printf 'error: %s\n' "$*" >&2
  exit 1
}

# Run a command as root: directly, or through sudo.
as_root() {
  if [[ $(id -u) == 0 ]]; then
    "$@"
  elif command -v sudo >/dev/null; then
    sudo "$@"
  else
    return 1
  fi
}

# install_debian NAME...: install Debian packages. False if that is not possible here.
install_debian() {
  command -v apt-get >/dev/null || return 1
  note "installing Debian packages: $*"
  local log status=0
  log=$(mktemp)
  # What apt and debconf say matters only if they fail.
  {
    { [[ -n ${apt_lists_fresh:-} ]] || as_root apt-get -qq update; } &&
      apt_lists_fresh=1 &&
      as_root env DEBIAN_FRONTEND=noninteractive \
        apt-get -qq -y --no-install-recommends install "$@"
  } >"$log" 2>&1 || status=$?
  [[ $status == 0 ]] || cat "$log" >&2
  rm -f "$log"
  return "$status"
}

# require_debian WHAT NAME...: the same, but the script ends if it is not possible.
require_debian() {
  local what=$1
  shift
  install_debian "$@" || die "no $what, and the Debian packages $* could not be installed"
}

# The interpreter for the virtual environment: $PYTHON, else python3.
find_python() {
  command -v "${PYTHON:-python3}" >/dev/null || require_debian "Python" python3
  base_python=$(command -v "${PYTHON:-python3}") || die "${PYTHON:-python3} not found"
  "$base_python" -c 'import sys; sys.exit(sys.version_info < (3, 10))' ||
    die "$base_python is older than Python 3.10"
}

# What a build of the package needs: a C++ compiler, Python's headers, RapidJSON, xxHash.
require_build_tools() {
  [[ -n ${CXX:-} ]] || command -v c++ >/dev/null || command -v g++ >/dev/null ||
    require_debian "C++ compiler" g++
  # The header of python3 itself; an interpreter from elsewhere brings its own.
  "$base_python" - <<'PY' || require_debian "Python header" python3-dev
import os, sys, sysconfig
sys.exit(not os.path.exists(os.path.join(sysconfig.get_path("include"), "Python.h")))
PY
  local header package
  for header in rapidjson/reader.h:rapidjson-dev xxhash.h:libxxhash-dev; do
    package=${header#*:} header=${header%:*}
    [[ -e /usr/include/$header || -e /usr/local/include/$header ]] && continue
    install_debian "$package" || {
      note "$package could not be installed: CMake will fetch its headers"
      command -v git >/dev/null || require_debian "git" git
    }
  done
}

# make_venv FOLDER [share]: create the environment unless it exists; sets venv, venv_python.
# With "share" it sees the interpreter's own packages if torch is among them.
make_venv() {
  venv=$1
  venv_python=$venv/bin/python
  if [[ -x $venv_python ]]; then
    note "using the environment $venv"
    pip_install 'pip>=25.1'  # the first that reads dependency groups
    return
  fi
  "$base_python" -c 'import ensurepip, venv' 2>/dev/null ||
    require_debian "Python module venv" python3-venv
  local options=()
  if [[ ${2:-} == share ]] && "$base_python" -c 'import torch' 2>/dev/null; then
    note "$base_python has torch: the environment will see its packages"
    options+=(--system-site-packages)
  fi
  "$base_python" -m venv "${options[@]}" "$venv"
  pip_install 'pip>=25.1'
  note "created $venv with $("$venv_python" --version)"
}

pip_install() {
  "$venv_python" -m pip install -qq --disable-pip-version-check "$@"
}

# version_of NAME: the installed version of a distribution, or nothing.
version_of() {
  "$venv_python" - "$1" <<'PY'
import importlib.metadata, sys
try:
    print(importlib.metadata.version(sys.argv[1]))
except importlib.metadata.PackageNotFoundError:
    pass
PY
}

# install_torch: use an installed torch, else install $TORCH_SPEC (default: the group "torch" of
# pyproject.toml). TORCH_PIP_OPTIONS holds more options for that one pip call.
install_torch() {
  if "$venv_python" -c 'import torch' 2>/dev/null; then
    note "using the installed torch $(version_of torch)"
    return
  fi
  local spec=(--group torch) options=()
  if [[ -n ${TORCH_SPEC:-} ]]; then spec=("$TORCH_SPEC"); fi
  read -r -a options <<<"${TORCH_PIP_OPTIONS:-}"
  note "installing torch${options[*]:+ with ${options[*]}}"
  note "(On Linux, pip's torch may bring gigabytes of CUDA libraries. For the CPU build set"
  note " TORCH_SPEC, and TORCH_PIP_OPTIONS=\"--index-url URL\" with the URL for CPU builds that"
  note " PyTorch's installation page gives.)"
  pip_install "${options[@]}" "${spec[@]}"
  note "installed torch $(version_of torch)"
}

# hash_sources: one hash over everything that the package is built from.
hash_sources() {
  find CMakeLists.txt pyproject.toml cmake include python src -type f \
    ! -path '*/__pycache__/*' ! -name '*.so' -print0 |
    sort -z | xargs -0 sha256sum | sha256sum | cut -d' ' -f1
}

# install_project: build and install this checkout, unless its present sources are installed. With
# SAFETENSORS_WHEEL, a wheel of these sources, only install.
install_project() {
  local stamp=$venv/.safetensors-sources sources
  sources=$(hash_sources)
  if [[ -e $stamp && $(<"$stamp") == "$sources" ]] && is_ours; then
    note "safetensors $(version_of safetensors) is installed from these sources"
    return
  fi
  rm -f "$stamp"
  note "building and installing ${SAFETENSORS_WHEEL:-this project}"
  pip_install --force-reinstall --no-deps "${SAFETENSORS_WHEEL:-.}"
  is_ours || die "the installed safetensors is not this project's"
  printf '%s\n' "$sources" >"$stamp"
  note "installed safetensors $(version_of safetensors)"
}

# Whether the environment's safetensors is this project's package.
is_ours() {
  (cd / && "$venv_python" -c 'import safetensors; safetensors._core.__build__') 2>/dev/null
}

# install_beside NAME...: install packages and their dependencies, but keep torch and safetensors.
install_beside() {
  local pins status=0
  pins=$(mktemp)
  printf 'torch==%s\nsafetensors==%s\n' \
    "$(version_of torch)" "$(version_of safetensors)" >"$pins"
  pip_install --constraint "$pins" "$@" || status=$?
  rm -f "$pins"
  [[ $status == 0 ]] || return "$status"
  is_ours || die "another safetensors was installed over this project's"
}
