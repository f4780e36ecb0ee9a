#!/usr/bin/env bash
# Tries the package recipes in packaging/, each as far as that is possible without its registry. The
# source archive is the one that git makes of HEAD; the recipes are those of the working tree.
#
#   bash scripts/packages.sh [RECIPE...]    debian, conan, vcpkg, conda; all by default
#
# debian needs root: it builds, checks, installs and tests the packages in chroots of Debian's sid.
set -euo pipefail
cd -- "$(dirname -- "${BASH_SOURCE[0]}")/.."
# shellcheck source=scripts/common.sh
source scripts/common.sh
root=$PWD
work=${SAFETENSORS_PACKAGES:-$root/build/packages}
mkdir -p "$work"
work=$(cd "$work" && pwd)

# version_in FILE PATTERN: the version that stands between the quotes.
version_in() { sed -n "s/^$2\"\(.*\)\"/\1/p" "$1"; }
library_version=$(version_in include/safetensors/version.h '#define SAFETENSORS_VERSION ')
python_version=$(version_in python/safetensors_cpp/__init__.py '__version__ = ')

# make_archive VERSION FILE: the source as one archive, with one folder.
make_archive() { git archive --prefix="safetensors-cpp-$1/" -o "$2" HEAD; }

# fill FILE ARCHIVE: writes the archive's address and digests where the publisher will.
fill() {
  sed -i "s|@URL@|file://$2|; s|@SHA256@|$(sha256sum "$2" | cut -d' ' -f1)|
    s|@SHA512@|$(sha512sum "$2" | cut -d' ' -f1)|" "$1"
}

# in_layer NAME COMMAND...: runs a command in the chroot and what the layer NAME has changed in it; the
# folder "share" is /build there. All mounts end with the command.
in_layer() {
  local layer=$work/debian/$1
  shift
  mkdir -p "$layer"/{upper,work,root}
  # shellcheck disable=SC2016  # the inner shell's arguments
  unshare --mount sh -euc '
    work=$1 layer=$2
    shift 2
    mount -t overlay overlay -o "lowerdir=$work/base,upperdir=$layer/upper,workdir=$layer/work" "$layer/root"
    mount -t proc proc "$layer/root/proc"
    mount --bind "$work/share" "$layer/root/build"
    exec chroot "$layer/root" env -i -C /build HOME=/root PATH=/usr/sbin:/usr/bin:/sbin:/bin \
      LANG=C.UTF-8 DEBIAN_FRONTEND=noninteractive "$@"' sh "$work/debian" "$layer" "$@"
}

# A minimal system, which the layers do not change.
make_base() {
  local base=$work/debian/base
  [[ ! -e $base ]] || return 0
  rm -rf "$base.part"
  debootstrap --variant=minbase sid "$base.part" >"$work/debootstrap.log" 2>&1 || return 1
  # A mirror may serve a list of packages that is weeks old.
  printf '%s "false";\n' APT::Install-Recommends Acquire::Check-Valid-Until \
    >"$base.part/etc/apt/apt.conf.d/90packages"
  echo force-unsafe-io >"$base.part/etc/dpkg/dpkg.cfg.d/packages"
  cp /etc/resolv.conf "$base.part/etc/"
  mkdir "$base.part/build"
  mv "$base.part" "$base"
}

# Tags of lintian that only the publisher's addresses remove, and that of a first upload.
not_ours=no-homepage-field,upstream-metadata-file-is-missing,initial-upload-closes-no-bugs

debian() {
  [[ $(id -u) == 0 ]] || { note "debian: skipped, because it needs root"; return 0; }
  unshare --mount true || { note "debian: skipped, because nothing can be mounted here"; return 0; }
  install_debian debootstrap xz-utils || { note "debian: skipped, without debootstrap"; return 0; }
  mkdir -p "$work/debian/share"
  make_base || { note "debian: skipped, because sid could not be installed: $work/debootstrap.log"; return 0; }
  local share=$work/debian/share name=safetensors-cpp-$python_version
  find "$share" -mindepth 1 -maxdepth 1 ! -name ccache -exec rm -rf {} +
  make_archive "$python_version" "$work/source.tar"
  xz -1 -T0 -c "$work/source.tar" >"$share/${name/-cpp-/-cpp_}.orig.tar.xz"
  tar -C "$share" -xf "$work/source.tar"
  cp -r packaging/debian "$share/$name/debian"

  in_layer build apt-get -qq update
  in_layer build apt-get -qq -y install ccache dpkg-dev lintian
  in_layer build apt-get -qq -y build-dep "./$name"
  # For one Python: each takes as long as all the rest.
  in_layer build env -C "/build/$name" CCACHE_DIR=/build/ccache CMAKE_CXX_COMPILER_LAUNCHER=ccache \
    CCACHE_BASEDIR=/build CCACHE_NOHASHDIR=1 \
    CCACHE_SLOPPINESS=pch_defines,time_macros,include_file_mtime,include_file_ctime \
    DEB_BUILD_OPTIONS="parallel=$(nproc) ${DEB_BUILD_OPTIONS:-}" \
    sh -euc "export pythons=\$(py3versions --default --version); exec dpkg-buildpackage -us -uc" \
    >"$work/debian/build.log" 2>&1 ||
    { tail -n 40 "$work/debian/build.log" >&2; die "debian: the build failed: $work/debian/build.log"; }
  grep -h 'test cases:' "$work/debian/build.log" || note "debian: built without the C++ tests"
  in_layer build sh -c "lintian --allow-root --info --display-info --pedantic --fail-on error,warning,info,pedantic \
    --suppress-tags $not_ours ./*.changes"

  rm -rf "$work/debian/test"
  in_layer test apt-get -qq update
  in_layer test sh -c 'apt-get -qq -y install ./*.deb cmake g++ ninja-build pkgconf python3-numpy python3-safetensors'
  in_layer test env -C "/build/$name" debian/tests/library
  in_layer test env -C "/build/$name" debian/tests/python
  in_layer test sh -euc 'safetensors-cpp enable
    apt-get -qq -y purge safetensors-cpp python3-safetensors-cpp
    ! ls /usr/lib/python3/dist-packages | grep safetensors_cpp'
  note "debian: built, checked, installed, tested and removed: $(cd "$share" && echo ./*.deb)"
}

# The two libraries of headers come from Debian's packages instead of ConanCenter.
conan() {
  install_debian cmake g++ ninja-build rapidjson-dev libxxhash-dev || die "conan: no headers"
  local here=$work/conan name shared
  rm -rf "$here/recipe" "$here/headers"
  mkdir -p "$here/headers"
  cp -r packaging/conan "$here/recipe"
  make_archive "$library_version" "$here/source.tar.gz"
  fill "$here/recipe/conandata.yml" "$here/source.tar.gz"
  cat >"$here/headers/conanfile.py" <<'PY'
from conan import ConanFile
from conan.tools.files import copy


class Headers(ConanFile):
    def package(self):
        pattern = {"rapidjson": "rapidjson/*", "xxhash": "xxhash.h"}[self.name]
        copy(self, pattern, "/usr/include", f"{self.package_folder}/include")

    def package_info(self):
        self.cpp_info.libdirs = []
PY
  export CONAN_HOME=$here/home
  "$venv/bin/conan" profile detect --force 2>/dev/null
  {
    sed 's/^compiler.cppstd=.*/compiler.cppstd=20/' "$CONAN_HOME/profiles/default"
    printf '[platform_tool_requires]\ncmake/%s\n' "$(cmake --version | sed -n 's/cmake version //p')"
  } >"$here/profile"
  for name in rapidjson:cci.20230929 xxhash:0.8.3; do
    "$venv/bin/conan" export-pkg "$here/headers" --name "${name%:*}" --version "${name#*:}" \
      -pr:a "$here/profile" >/dev/null 2>&1
  done
  for shared in False True; do
    "$venv/bin/conan" create "$here/recipe" --version "$library_version" -pr:a "$here/profile" \
      -o "safetensors-cpp/*:shared=$shared" --no-remote --build 'safetensors-cpp/*' >"$here/log" 2>&1 ||
      { tail -n 40 "$here/log" >&2; die "conan: conan create failed with shared=$shared: $here/log"; }
    grep -E '^(safetensors |C: |weights: )' "$here/log"
  done
  note "conan: created and tested safetensors-cpp/$library_version, static and shared"
}

# Reads vcpkg.json, and runs the portfile with functions that do nothing in the place of vcpkg's.
vcpkg() {
  local here=$work/vcpkg
  rm -rf "$here"
  mkdir -p "$here"
  cp packaging/vcpkg/* "$here"
  make_archive "$library_version" "$work/source.tar.gz"
  fill "$here/portfile.cmake" "$work/source.tar.gz"
  "$venv_python" - "$here/vcpkg.json" "$library_version" <<'PY'
import json, sys
port = json.load(open(sys.argv[1]))
assert port["version"] == sys.argv[2] and set(port["default-features"]) <= set(port["features"])
names = [entry if isinstance(entry, str) else entry["name"] for entry in port["dependencies"]]
assert names == sorted(names), "vcpkg sorts the dependencies"
PY
  cat >"$here/stub.cmake" <<'CMAKE'
foreach(name vcpkg_download_distfile vcpkg_check_features vcpkg_cmake_configure vcpkg_cmake_install
        vcpkg_cmake_config_fixup vcpkg_fixup_pkgconfig vcpkg_copy_pdbs)
  function(${name})
  endfunction()
endforeach()
function(vcpkg_extract_source_archive path)
  set(${path} ${SOURCE} PARENT_SCOPE)
endfunction()
function(vcpkg_install_copyright ignored)
  file(INSTALL ${ARGN} DESTINATION ${CURRENT_PACKAGES_DIR})
endfunction()
include(portfile.cmake)
CMAKE
  (cd "$here" && cmake -DSOURCE="$root" -DPORT=safetensors-cpp -DVERSION="$library_version" \
    -DCURRENT_PACKAGES_DIR="$here/packages" -P stub.cmake >/dev/null)
  note "vcpkg: read vcpkg.json and portfile.cmake; vcpkg itself did not run"
}

# Renders the recipe for the systems that it names. Nothing is built: that needs conda-forge's compilers.
conda() {
  local here=$work/conda
  mkdir -p "$here"
  cp packaging/conda/recipe.yaml "$here"
  make_archive "$library_version" "$here/source.tar.gz"
  fill "$here/recipe.yaml" "$here/source.tar.gz"
  "$venv_python" - "$here/recipe.yaml" <<'PY'
import sys
from rattler_build import PlatformConfig, RenderConfig, Stage0Recipe, VariantConfig

recipe = Stage0Recipe.from_file(sys.argv[1])
variants = VariantConfig.from_yaml(
    '{c_stdlib: [sysroot], c_stdlib_version: ["2.17"], c_compiler: [gcc], cxx_compiler: [gxx],'
    ' python: ["3.14.* *_cp314"]}'
)
for name in ("linux-64", "linux-aarch64", "osx-arm64"):
    platform = PlatformConfig(target_platform=name, build_platform=name, host_platform=name)
    outputs = [variant.recipe.package.name for variant in recipe.render(variants, RenderConfig(platform))]
    assert outputs == ["libsafetensors", "safetensors-cpp"], outputs
    print(f"conda: {name}:", *outputs)
PY
  note "conda: rendered the recipe; nothing was built"
}

recipes=("${@:-debian conan vcpkg conda}")
read -r -a recipes <<<"${recipes[*]}"
for recipe in "${recipes[@]}"; do
  case $recipe in
    debian | conan | vcpkg | conda) ;;
    *) die "no recipe $recipe: there are debian, conan, vcpkg and conda" ;;
  esac
done
[[ -n $library_version && -n $python_version ]] || die "the versions could not be read"
git rev-parse -q --verify HEAD >/dev/null || die "the source archive needs a git repository"
if [[ ${recipes[*]} != debian ]]; then
  find_python
  make_venv "$work/venv"
  pip_install --group packages
fi
for recipe in "${recipes[@]}"; do
  heading "$recipe"
  "$recipe"
done
