"""The scripts that make and check the files of a release, with small repositories and wheels."""

import json
import subprocess
import sys
import tarfile
import zipfile
from pathlib import Path

import pytest

SCRIPTS = Path(__file__).parents[2] / "scripts"


@pytest.fixture
def scripts(monkeypatch):
    """The modules make_sdist, check_release and beside_wheel."""
    monkeypatch.syspath_prepend(SCRIPTS)
    import beside_wheel
    import check_release
    import make_sdist

    return make_sdist, check_release, beside_wheel


def repository(folder, files):
    """Makes a git repository of one commit, and returns the commit."""
    for name, text in files.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text)
    who = ["-c", "user.name=test", "-c", "user.email=test@localhost"]
    for command in (["init", "-q"], ["add", "-A"], [*who, "commit", "-q", "-m", "one"]):
        subprocess.run(["git", "-C", folder, *command], check=True)
    head = ["git", "-C", folder, "rev-parse", "HEAD"]
    return subprocess.run(head, check=True, capture_output=True, text=True).stdout.strip()


@pytest.fixture
def project(scripts, tmp_path, monkeypatch):
    """A project whose pins are commits of two local repositories, in which later commits follow."""
    texts = {}
    for name, files in {
        "rapidjson": {"include/rapidjson/reader.h": "R", "license.txt": "L", "big": "B"},
        "xxhash": {"xxhash.h": "X", "LICENSE": "L", "big": "B"},
    }.items():
        pin = repository(tmp_path / name, files)
        repository(tmp_path / name, {next(iter(files)): "later"})
        texts[f"cmake/{name}.cmake"] = (
            f"f({name}\n  GIT_REPOSITORY {tmp_path / name}\n  GIT_TAG {pin})\n"
        )
    texts |= {"pyproject.toml": "", "README.md": "[a](docs/a.md) [b](#b) [c](https://c/c)"}
    root = tmp_path / "project"
    commit = repository(root, texts)
    (root / "untracked").write_text("not in the archive")
    monkeypatch.setattr(scripts[0], "ROOT", root)
    return root, commit


def test_source_archive_has_pinned_headers(scripts, project, tmp_path):
    """The archive has the files of the commit, and of each library the headers and the licence."""
    tree = scripts[0].assemble(tmp_path, None)
    found = {p.relative_to(tree).as_posix(): p.read_text() for p in tree.rglob("*") if p.is_file()}
    assert {name: text for name, text in found.items() if name.startswith("third_party")} == {
        "third_party/rapidjson/include/rapidjson/reader.h": "R",
        "third_party/rapidjson/license.txt": "L",
        "third_party/xxhash/xxhash.h": "X",
        "third_party/xxhash/LICENSE": "L",
    }
    assert "README.md" in found
    assert "untracked" not in found


def test_project_url(scripts, project, tmp_path):
    """PROJECT_URL fills [project.urls], and makes README's relative links absolute."""
    url = "https://host.invalid/a/b"
    tree = scripts[0].assemble(tmp_path, url)
    assert f'Repository = "{url}"\n' in (tree / "pyproject.toml").read_text()
    readme = (tree / "README.md").read_text()
    assert readme == f"[a]({url}/blob/{project[1]}/docs/a.md) [b](#b) [c](https://c/c)"


@pytest.mark.parametrize("url", ["host", "http://host/a", 'https://host/a"\nx="', "https://host"])
def test_bad_project_url(scripts, project, tmp_path, url):
    """What is not the URL of a repository is refused."""
    with pytest.raises(ValueError, match="PROJECT_URL: .* is not an https URL"):
        scripts[0].assemble(tmp_path, url)


def test_unreachable_repository(scripts, project, tmp_path):
    """The error names the repository."""
    (tmp_path / "xxhash").rename(tmp_path / "elsewhere")
    with pytest.raises(ValueError, match=r"git clone .*/xxhash .*: fatal: .*does not exist"):
        scripts[0].assemble(tmp_path, None)


def test_pins_of_this_project(scripts):
    """Both pins are full commits."""
    for name in scripts[0].LIBRARIES:
        url, commit = scripts[0].pin(name)
        assert url.startswith("https://")
        assert len(commit) == 40


def make_wheel(scripts, folder, name, version, changes=()):
    """Writes the files of a wheel that check_release reads; `changes` replaces or removes some."""
    purls = {
        "RapidJSON": "pkg:github/tencent/rapidjson@" + scripts[0].pin("rapidjson")[1],
        "xxHash": "pkg:github/cyan4973/xxhash@" + scripts[0].pin("xxhash")[1],
        "pybind11": "pkg:pypi/pybind11@3.1.0",
    }
    sbom = {
        "metadata": {"component": {"name": name, "version": version}},
        "components": [{"name": library, "purl": purl} for library, purl in purls.items()],
    }
    files = {
        "METADATA": f"Metadata-Version: 2.4\nName: {name}\nVersion: {version}\n",
        "sboms/safetensors.cdx.json": json.dumps(sbom),
        **{f"licenses/LICENSES/{licence}.txt": "" for licence in scripts[1].LICENCES},
        **dict(changes),
    }
    stem = f"{name.replace('-', '_')}-{version}"
    with zipfile.ZipFile(folder / f"{stem}-cp311-cp311-any.whl", "w") as wheel:
        for file, text in files.items():
            if text is not None:
                wheel.writestr(f"{stem}.dist-info/{file}", text)


BACKEND = """
import shutil

def build_wheel(folder, settings=None, metadata=None):
    name = "safetensors-0.8.0-cp311-cp311-any.whl"
    shutil.copy("built.whl", folder + "/" + name)
    return name
"""


def test_wheel_beside_upstream_from_sources(scripts, tmp_path):
    """pip builds the sources, and only the name of the new wheel goes to standard output."""
    sources = tmp_path / "sources"
    sources.mkdir()
    (sources / "backend.py").write_text(BACKEND)
    table = '[build-system]\nrequires = []\nbuild-backend = "backend"\nbackend-path = ["."]\n'
    (sources / "pyproject.toml").write_text(table)
    make_wheel(scripts, sources, "safetensors", "0.8.0", {"WHEEL": "Wheel-Version: 1.0\n"})
    (built,) = sources.glob("*.whl")
    with zipfile.ZipFile(built, "a") as wheel:
        wheel.writestr("safetensors/_core.so", "module")
    built.rename(sources / "built.whl")
    command = [sys.executable, SCRIPTS / "beside_wheel.py", sources, tmp_path / "out"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    made = tmp_path / "out" / f"safetensors_cpp-{scripts[2].version()}-cp311-cp311-any.whl"
    assert done.stdout == f"{made}\n"
    with zipfile.ZipFile(made) as wheel:
        assert wheel.read("safetensors_cpp/_package/safetensors/_core.so") == b"module"


@pytest.fixture
def release(scripts, tmp_path):
    """A folder with a complete release."""
    folder = tmp_path / "dist"
    folder.mkdir()
    headers = ("rapidjson/include/rapidjson/reader.h", "rapidjson/license.txt")
    with tarfile.open(folder / "safetensors-0.8.0.tar.gz", "w:gz") as archive:
        for name in (*headers, "xxhash/xxhash.h", "xxhash/LICENSE"):
            archive.addfile(tarfile.TarInfo(f"safetensors-0.8.0/third_party/{name}"))
    make_wheel(scripts, folder, "safetensors", "0.8.0")
    make_wheel(scripts, folder, "safetensors-cpp", scripts[2].version())
    return folder


def check(*arguments):
    """Runs check_release.py; returns the exit status and what it wrote."""
    command = [sys.executable, SCRIPTS / "check_release.py", *map(str, arguments)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60)
    return done.returncode, done.stdout + done.stderr


def test_complete_release(scripts, release):
    """A complete release passes, also with the tag of its version."""
    assert check(release, f"v{scripts[2].version()}") == (
        0,
        "check_release.py: the source archive and 1 wheels of each distribution are complete\n",
    )


@pytest.mark.parametrize(
    ("changes", "error"),
    [
        ({"sboms/safetensors.cdx.json": None}, "no list of what is compiled in"),
        ({"sboms/safetensors.cdx.json": "{"}, "Expecting property name"),
        ({"licenses/LICENSES/xxHash.txt": None}, "LICENSES/xxHash.txt"),
        ({"METADATA": "Name: safetensors\nVersion: 1\n"}, "the list is not of safetensors 1"),
    ],
)
def test_bad_wheel(scripts, release, changes, error):
    """What a wheel lacks is named in one line, with the wheel."""
    make_wheel(scripts, release, "safetensors", "0.8.0", changes)
    status, text = check(release)
    assert status == 1
    assert text.count("\n") == 1
    assert "safetensors-0.8.0-cp311-cp311-any.whl: " in text
    assert error in text


def test_headers_of_the_system(scripts, release):
    """A wheel that was built with other headers than the pinned ones is refused."""
    wheel = next(release.glob("safetensors-*.whl"))
    sbom = "safetensors-0.8.0.dist-info/sboms/safetensors.cdx.json"
    with zipfile.ZipFile(wheel) as file:
        text = file.read(sbom).decode().replace(scripts[0].pin("xxhash")[1], "0.8.1")
    make_wheel(scripts, release, "safetensors", "0.8.0", {"sboms/safetensors.cdx.json": text})
    status, text = check(release)
    assert status == 1
    assert "xxHash: pkg:github/cyan4973/xxhash@0.8.1 instead of the commit" in text


def test_incomplete_release(release):
    """A missing wheel, a missing archive and a wrong tag are refused."""
    assert "the tag is v9 instead of v" in check(release, "v9")[1]
    next(release.glob("safetensors_cpp-*.whl")).unlink()
    assert "only one distribution has a wheel for cp311-cp311-any.whl" in check(release)[1]
    next(release.glob("*.tar.gz")).unlink()
    assert "0 source archives instead of one" in check(release)[1]
