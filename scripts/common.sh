# Functions that quickstart.sh and run-tests.sh share. Source this file, do not run it.
# shellcheck shell=bash

# Another package on this path would be imported before the one in the environment.
unset PYTHONPATH PYTHONHOME

heading() { printf '\n== %s ==\n' "$*"; }

note() { printf '   %s\n' "$*"; }

# busy TEXT COMMAND...: runs a command of many seconds. On a terminal, a line shows how long it has
# taken so far. What the command writes to stderr comes last.
busy() {
  local text=$1 begin=$SECONDS status=0 ticker='' log
  shift
  log=$(mktemp)
  if [[ -t 1 ]]; then
    printf '   %s ... ' "${text:0:60}"
    # The line ends with the script, also if the script is killed. It must not wrap.
    while sleep 1 && kill -0 $$ 2>/dev/null; do
      printf '\r   %s ... %d s ' "${text:0:60}" $((SECONDS - begin))
    done &
    ticker=$!
  else
    note "$text ..."
  fi
  "$@" 2>"$log" || status=$?
  if [[ -n $ticker ]]; then
    kill "$ticker" 2>/dev/null
    wait "$ticker" 2>/dev/null || true
    printf '\r\033[K'
  fi
  note "$text: $((SECONDS - begin)) s"
  cat "$log" >&2
  rm -f "$log"
  return "$status"
}

# absolute PATH: the path, from the working directory if it is relative. (macOS has no realpath -m.)
absolute() {
  case $1 in
    /*) printf '%s\n' "$1" ;;
    *) printf '%s/%s\n' "$PWD" "$1" ;;
  esac
}

die() {
  printf 'error: %s\n' "$*" >&2
  exit 1
}

# no_arguments "$@": fails if a script that takes no arguments was given one.
no_arguments() {
  (($# == 0)) || die "$1: ${0##*/} takes no arguments; its head says which variables it reads"
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

# make_chroot SUITE FOLDER PACKAGE...: a Debian system in a folder, with these packages, unless the folder
# has it. False if that is not possible here.
make_chroot() {
  local suite=$1 root=$2
  shift 2
  [[ $(id -u) == 0 ]] || return 1
  if [[ -e $root.packages && $(<"$root.packages") == "$*" ]]; then return; fi
  command -v debootstrap >/dev/null || install_debian debootstrap || return 1
  note "making a chroot of $suite: $*"
  rm -rf --one-file-system "$root" "$root.packages"
  mkdir -p "$root"
  {
    debootstrap --variant=minbase --include=ca-certificates "$suite" "$root" &&
      local file &&
      for file in /etc/resolv.conf /etc/pip.conf /etc/ssl/certs/ca-certificates.crt; do
        [[ ! -e $file ]] || cp --remove-destination -L "$file" "$root$file"
      done &&
      # A mirror may serve a list of packages that is weeks old.
      echo 'Acquire::Check-Valid-Until "false";' >"$root/etc/apt/apt.conf.d/90mirror" &&
      in_chroot "$root" "apt-get -q update &&
        DEBIAN_FRONTEND=noninteractive apt-get -q -y --no-install-recommends install $*"
  } >"$root.log" 2>&1 || {
    note "the log is $root.log"
    return 1
  }
  printf '%s' "$*" >"$root.packages"
}

# in_chroot FOLDER COMMAND: runs a command of bash there. Its mounts end with it.
in_chroot() {
  # shellcheck disable=SC2016  # the inner shell expands them
  unshare --mount bash -c 'mount --rbind /dev "$1/dev" && mount -t proc proc "$1/proc" &&
    exec env -i HOME=/root PATH=/usr/sbin:/usr/bin:/sbin:/bin LANG=C.UTF-8 chroot "$1" bash -c "$2"' \
    bash "$@"
}

# The interpreter for the virtual environment: $PYTHON, else python3.
find_python() {
  [[ -n ${PYTHON:-} ]] || command -v python3 >/dev/null || require_debian "Python" python3
  base_python=$(command -v "${PYTHON:-python3}") || die "${PYTHON:-python3} not found"
  "$base_python" -c 'import sys; sys.exit(sys.version_info < (3, 10))' ||
    die "$base_python is older than Python 3.10: set PYTHON to a newer one"
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
    [[ -e /usr/include/$header || -e /usr/local/include/$header || -d third_party ]] && continue
    install_debian "$package" || {
      note "$package could not be installed: CMake will fetch its headers"
      command -v git >/dev/null || require_debian "git" git
    }
  done
}

# link_headers FOLDER NAME...: a folder of these headers of the host and of no others, for compilers to
# other systems. HEADERS is a folder to look in first.
link_headers() {
  local headers=$1 name folder
  mkdir -p "$headers"
  for name in "${@:2}"; do
    for folder in "${HEADERS:-/usr/include}" /usr/local/include; do
      [[ -e $folder/$name ]] && ln -sfn "$folder/$name" "$headers/$name"
    done
    [[ -e $headers/$name ]] || die "no headers of $name: set HEADERS to the folder they are in"
  done
}

# make_venv FOLDER [share]: create the environment unless it exists; sets venv, venv_python.
# (Windows has the folder Scripts.) With "share" it sees the interpreter's own packages if torch is among them.
make_venv() {
  venv=$1
  venv_python=$venv/bin/python
  [[ ! -d $venv/Scripts ]] || venv_python=$venv/Scripts/python.exe
  if [[ -x $venv_python ]]; then
    note "using the environment $venv"
    pip_install 'pip>=25.1'  # the first that reads dependency groups
    return
  fi
  "$base_python" -c 'import ensurepip, venv' 2>/dev/null ||
    require_debian "Python module venv" python3-venv
  local options=(-m venv)  # never empty: macOS's bash 3.2 takes an empty array for an unset variable
  if [[ ${2:-} == share ]] && "$base_python" -c 'import torch' 2>/dev/null; then
    note "$base_python has torch: the environment will see its packages"
    options+=(--system-site-packages)
  fi
  "$base_python" "${options[@]}" "$venv"
  [[ ! -d $venv/Scripts ]] || venv_python=$venv/Scripts/python.exe
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
  local spec=(--group torch)
  if [[ -n ${TORCH_SPEC:-} ]]; then spec=("$TORCH_SPEC"); fi
  note "(On Linux, pip's torch may bring gigabytes of CUDA libraries. For the CPU build set"
  note " TORCH_SPEC, and TORCH_PIP_OPTIONS=\"--index-url URL\" with the URL for CPU builds that"
  note " PyTorch's installation page gives.)"
  # shellcheck disable=SC2086  # several options
  busy "installing torch${TORCH_PIP_OPTIONS:+ with $TORCH_PIP_OPTIONS}" \
    pip_install ${TORCH_PIP_OPTIONS:-} "${spec[@]}"
  note "installed torch $(version_of torch)"
}

# hash_sources: one hash over everything that the package is built from.
hash_sources() { "$base_python" scripts/hash_sources.py; }

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
  local text="building and installing this package"
  [[ -z ${SAFETENSORS_WHEEL:-} ]] || text="installing $SAFETENSORS_WHEEL"
  busy "$text" pip_install --force-reinstall --no-deps "${SAFETENSORS_WHEEL:-.}"
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
  local names=$*
  busy "installing the packages of: ${names//--group /}" pip_install --constraint "$pins" "$@" || status=$?
  rm -f "$pins"
  [[ $status == 0 ]] || return "$status"
  is_ours || die "another safetensors was installed over this project's"
}
