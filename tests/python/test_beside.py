"""The distribution `safetensors-cpp`, installed beside upstream in environments without network.

SAFETENSORS_BESIDE_WHEEL names its wheel.
"""

import base64
import csv
import hashlib
import os
import shutil
import sys
import zipfile
from pathlib import Path

import pytest

from support import pages, upstream_client
from support.beside import WHEEL, Environment, call

pytestmark = [
    pytest.mark.slow,
    pytest.mark.timeout(120),
    pytest.mark.skipif(not WHEEL, reason="bash .ci/run wheel beside: makes the wheel, runs this"),
    pytest.mark.skipif(os.name == "nt", reason="the folders of an environment are those of Unix"),
]
WHERE = "import safetensors; print(safetensors.__file__)"
SCRIPTS = Path(__file__).parents[2] / "scripts"


@pytest.fixture(scope="module")
def shared(tmp_path_factory):
    """An environment with the wheel, which no test changes for good."""
    made = Environment(tmp_path_factory.mktemp("beside") / "venv")
    made.install()
    return made


@pytest.fixture
def enabled(shared):
    """The same, while it is enabled."""
    assert call(shared.command, "enable").returncode == 0
    yield shared
    assert call(shared.command, "disable").returncode == 0


def test_wheel_lists_its_files():
    """RECORD has the hash of each file, and no file is upstream's."""
    with zipfile.ZipFile(WHEEL) as wheel:
        names = wheel.namelist()
        record = names[-1]
        rows = list(csv.reader(wheel.read(record).decode().splitlines()))
        for name, digest, size in rows[:-1]:
            data = wheel.read(name)
            found = base64.urlsafe_b64encode(hashlib.sha256(data).digest()).rstrip(b"=")
            assert (digest, size) == ("sha256=" + found.decode(), str(len(data)))
    assert rows[-1] == [record, "", ""]
    assert [row[0] for row in rows] == names
    tops = {"safetensors_cpp", "safetensors_cpp-1.0.0.dist-info", "safetensors_cpp_plugins.py"}
    assert {name.partition("/")[0] for name in names} == tops
    assert any(name.endswith("dist-info/licenses/LICENSE") for name in names)


@pytest.mark.parametrize(
    ("name", "text"),
    [("other-1.0-py3-none-any.whl", "not the name of a wheel of safetensors"),
     ("safetensors-0.8.0-cp311-cp311-any.whl", "No such file"),
     ("safetensors-0.8.1-cp311-cp311-any.whl", "not a zip file"),
     ("safetensors-0.8.2-cp311-cp311-any.whl", "METADATA")],
)  # fmt: skip
def test_bad_input_to_the_script(tmp_path, name, text):
    """It prints one line, and writes nothing."""
    (tmp_path / "safetensors-0.8.1-cp311-cp311-any.whl").write_bytes(b"?")
    with zipfile.ZipFile(tmp_path / "safetensors-0.8.2-cp311-cp311-any.whl", "w") as wheel:
        wheel.writestr("safetensors/__init__.py", "")
    done = call(sys.executable, SCRIPTS / "beside_wheel.py", tmp_path / name, tmp_path / "out")
    assert done.returncode != 0
    assert text in done.stderr
    assert name in done.stderr
    assert done.stderr.count("\n") == 1
    assert not (tmp_path / "out").exists()


def test_entries_of_folders(tmp_path):
    """A wheel may have them; auditwheel writes them."""
    source = tmp_path / "safetensors-0.8.0-cp311-cp311-any.whl"
    info = "safetensors-0.8.0.dist-info"
    with zipfile.ZipFile(source, "w") as wheel:
        wheel.writestr("safetensors/", "")
        wheel.writestr("safetensors/_core.so", "module")
        wheel.writestr(f"{info}/METADATA", "Name: safetensors\nVersion: 0.8.0\n\n")
    done = call(sys.executable, SCRIPTS / "beside_wheel.py", source, tmp_path)
    assert done.returncode == 0, done.stderr
    with zipfile.ZipFile(done.stdout.strip()) as wheel:
        assert wheel.read("safetensors_cpp/_package/safetensors/_core.so") == b"module"


def test_nothing_changes_before_it_is_asked_for(shared):
    """Upstream is imported, and the entry points of engines do nothing."""
    assert shared.output("-c", WHERE) == [shared.upstream]
    source = """
        import sys
        from importlib.metadata import entry_points
        for group in "vllm.general_plugins", "sglang.srt.plugins":
            for found in entry_points(group=group):
                print(found.name, found.load()())
        print("safetensors_cpp" in sys.modules, "safetensors._core" in sys.modules)
    """
    words = shared.output("-c", dedented(source))
    assert words == ["safetensors_direct", "None", "safetensors", "None", "False", "False"]


def dedented(source):
    """Returns the lines without the indentation of the test that holds them."""
    return "\n".join(line[8:] for line in source.splitlines())


def test_import(shared):
    """Modules, resources, pickles and reloads are the package's; the distribution is upstream's."""
    source = """
        import importlib, importlib.metadata, importlib.resources, importlib.util, pickle
        import safetensors_cpp
        import safetensors.weights
        from safetensors import SafetensorError, TensorSpec, _safetensors_rust, plan
        assert safetensors_cpp._PACKAGE in safetensors._core.__file__
        assert importlib.reload(safetensors) is safetensors
        importlib.reload(safetensors_cpp)
        assert (importlib.resources.files("safetensors") / "py.typed").is_file()
        assert pickle.loads(pickle.dumps(SafetensorError("x"))).args == ("x",)
        assert pickle.loads(pickle.dumps(TensorSpec)) is TensorSpec
        assert importlib.util.find_spec("safetensors").origin == safetensors.__file__
        release = safetensors.__version__.partition("+")[0]
        assert release == safetensors_cpp._UPSTREAM, release
        print(safetensors.__file__, importlib.metadata.version("safetensors"))
        print(importlib.metadata.version("safetensors-cpp"), safetensors_cpp.__version__)
    """
    words = shared.output("-c", dedented(source))
    assert words == [shared.ours, upstream_client.VERSION, "1.0.0", "1.0.0"]


def test_example(shared):
    """The program in docs/beside.md prints which package it has imported."""
    program = pages.Page("docs/beside.md").program()
    assert shared.output("-c", program)[1:] == ["from", shared.ours]


@pytest.mark.parametrize(
    "first", ["import safetensors", "from safetensors import safe_open", "import safetensors._x"]
)
def test_too_late(shared, first):
    """One error says so, and upstream stays in force."""
    source = f"""
        try:
            {first}
        except ImportError:
            pass
        try:
            import safetensors_cpp
        except ImportError as error:
            print(error)
        import safetensors, sys
        print(safetensors.__file__, [p for p in sys.path if "_package" in p])
    """
    words = " ".join(shared.output("-c", dedented(source)))
    assert words == (
        "safetensors_cpp must be imported before safetensors, which this process has already "
        f"imported from {shared.upstream} {shared.upstream} []"
    )


@pytest.mark.parametrize(
    ("version", "named"),
    [("0.8.0", False), ("0.8.0+cpp2", False), ("0.7.99", False), ("0.8.1", True), ("0.10.0", True),
     ("1.0rc1", True)],
)  # fmt: skip
def test_newer_upstream(shared, tmp_path, version, named):
    """A warning names an upstream whose interface may have more."""
    info = tmp_path / f"safetensors-{version}.dist-info"
    info.mkdir()
    metadata = f"Metadata-Version: 2.1\nName: safetensors\nVersion: {version}\n"
    (info / "METADATA").write_text(metadata, encoding="utf-8")
    for words in (["-c", "import safetensors_cpp"], ["-m", "safetensors_cpp", "-c", ""]):
        done = shared.run(*words, env={"PYTHONPATH": str(tmp_path)})
        assert done.returncode == 0
        expected = f"UserWarning: safetensors {version} is installed, and safetensors_cpp 1.0.0 has"
        assert done.stderr.count(expected) == named
        assert bool(done.stderr) == named
    done = call(shared.command, "ls", "none", env={"PYTHONPATH": str(tmp_path)})
    lines = done.stderr.splitlines()
    assert [
        line.startswith(expected.replace("UserWarning", "safetensors-cpp")) for line in lines
    ] == ([True, False] if named else [False])
    assert lines[-1] == "safetensors-cpp: none: No such file or directory"


PROGRAM = """
import sys, safetensors
print(safetensors.__file__, __name__, sys.argv, repr(sys.path[0]), sys.flags.dont_write_bytecode)
sys.exit(3)
"""


@pytest.mark.parametrize(
    "options", ["-B -m safetensors_cpp", "-Bm safetensors_cpp", "-B -msafetensors_cpp"]
)
@pytest.mark.parametrize("kind", ["script", "module", "code", "stdin"])
def test_programs(shared, tmp_path, options, kind):
    """A program runs as Python itself runs it, with the interpreter's options."""
    path = tmp_path / "my_program.py"
    path.write_text(PROGRAM, encoding="utf-8")
    words = {"script": [path], "module": ["-m", "my_program"], "code": ["-c", PROGRAM],
             "stdin": ["-"]}[kind]  # fmt: skip
    words += ["a", "-c"]
    stdin = PROGRAM if kind == "stdin" else ""
    plain = shared.run("-B", *words, stdin=stdin, cwd=tmp_path)
    done = shared.run(*options.split(), *words, stdin=stdin, cwd=tmp_path)
    assert (plain.returncode, done.returncode) == (3, 3), done.stderr
    assert shared.upstream in plain.stdout
    assert done.stdout == plain.stdout.replace(shared.upstream, shared.ours)


@pytest.mark.parametrize("words", [[], ["-x"], ["-I", "program.py"], ["--", "program.py"]])
def test_usage(shared, words):
    """What it would pass on in vain is refused."""
    done = shared.run("-m", "safetensors_cpp", *words)
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.startswith("usage: python [OPTION ...] -m safetensors_cpp PROGRAM")


@pytest.mark.parametrize("option", ["-E", "-I"])
def test_ignored_environment(shared, option):
    """Options that would hide the package from the program are refused."""
    done = shared.run(option, "-m", "safetensors_cpp", "-c", WHERE)
    assert (done.returncode, done.stdout) == (2, "")
    assert "`safetensors-cpp enable` works with -E and -I" in done.stderr
    assert done.stderr.count("\n") == 1


SPAWNS = """
import concurrent.futures, multiprocessing, subprocess, sys

def where(_=None):
    import safetensors
    return safetensors.__file__

if __name__ == "__main__":
    for method in "spawn", "forkserver", "fork":
        context = multiprocessing.get_context(method)
        with concurrent.futures.ProcessPoolExecutor(1, mp_context=context) as pool:
            print(pool.submit(where).result(60))
"""
STARTS = f"""
import subprocess, sys
grandchild = [sys.executable, "-c", {WHERE!r}]
subprocess.run(grandchild, check=True)
child = f"import subprocess; subprocess.run({{grandchild}}, check=True)"
subprocess.run([sys.executable, "-c", child], check=True)
"""


@pytest.mark.parametrize("how", ["run", "imported"])
def test_spawned_children(shared, tmp_path, how):
    """Processes of multiprocessing import the package, however the parent came to it."""
    path = tmp_path / "program.py"
    # Only the parent's main block imports it, which children do not run.
    extra = "    import safetensors_cpp\n    for method" if how == "imported" else "    for method"
    path.write_text(SPAWNS.replace("    for method", extra, 1), encoding="utf-8")
    words = ["-m", "safetensors_cpp", path] if how == "run" else [path]
    assert shared.output(*words) == [shared.ours] * 3


def test_started_children(shared):
    """Children and theirs import the package, unless Python is told to ignore the environment."""
    assert shared.output("-m", "safetensors_cpp", "-c", STARTS) == [shared.ours] * 2
    isolated = f"import subprocess, sys; subprocess.run([sys.executable, '-I', '-c', {WHERE!r}])"
    assert shared.output("-m", "safetensors_cpp", "-c", isolated) == [shared.upstream]


def test_other_start_hooks_run(shared, tmp_path):
    """PYTHONPATH and the environment's own sitecustomize keep their effect, and its errors."""
    hook = tmp_path / "sitecustomize.py"
    hook.write_text("import sys; sys.hook = __file__\n", encoding="utf-8")
    source = "import safetensors, sitecustomize, sys; print(sys.hook, safetensors.__file__)"
    words = ["-m", "safetensors_cpp", "-c", source]
    where = {"PYTHONPATH": str(tmp_path)}
    assert shared.output(*words, env=where) == [str(hook), shared.ours]
    hook.write_text("import no_such_module\n", encoding="utf-8")
    done = shared.run("-m", "safetensors_cpp", "-c", WHERE, env=where)
    assert "No module named 'no_such_module'" in done.stderr
    assert done.stdout.split() == [shared.ours]


def test_interpreters_of_other_versions(shared, tmp_path):
    """A Python that cannot load the compiled module imports its own package."""
    here = shared.site / "safetensors_cpp"
    shutil.copytree(here / "_children", tmp_path / "_children")
    package = tmp_path / "_package" / "safetensors"
    package.mkdir(parents=True)
    (package / "__init__.py").write_text("", encoding="utf-8")
    (package / "_core.cpython-27-other.so").write_bytes(b"")
    environment = {"PYTHONPATH": str(tmp_path / "_children")}
    assert shared.output("-c", WHERE, env=environment) == [shared.upstream]
    (package / "_core.abi3.so").write_bytes(b"")
    assert shared.output("-c", WHERE, env=environment) == [str(package / "__init__.py")]


def test_enable_and_disable(shared):
    """All processes of the environment import the package, also isolated ones, until disabled."""
    status = call(shared.command, "status")
    assert (status.returncode, status.stderr) == (1, "")
    assert "safetensors-cpp 1.0.0: not enabled\n" in status.stdout
    assert f"imports: 0.8.0 from {shared.upstream}\n" in status.stdout
    before = sorted(shared.site.iterdir())
    record = (shared.site / "safetensors_cpp-1.0.0.dist-info" / "RECORD").read_text()
    for _ in range(2):
        done = call(shared.command, "enable")
        assert (done.returncode, done.stdout) == (0, f"enabled by {shared.pth}\n")
    try:
        for options in ([], ["-I"], ["-E"]):
            assert shared.output(*options, "-c", WHERE) == [shared.ours]
        assert shared.output("-c", WHERE.replace(";", ", safetensors_cpp;")) == [shared.ours]
        assert shared.output("-c", STARTS) == [shared.ours] * 2
        status = call(shared.command, "status")
        assert (status.returncode, status.stderr) == (0, "")
        assert "safetensors-cpp 1.0.0: enabled\n" in status.stdout
        assert "importlib.metadata finds: 0.8.0\n" in status.stdout
        assert f"from {shared.ours}\n" in status.stdout
    finally:
        done = call(shared.command, "disable")
    assert (done.returncode, done.stdout) == (0, f"removed {shared.pth}\n")
    assert call(shared.command, "disable").stdout == "not enabled\n"
    assert sorted(shared.site.iterdir()) == before
    record_path = shared.site / "safetensors_cpp-1.0.0.dist-info" / "RECORD"
    assert record_path.read_text() == record
    assert shared.output("-c", WHERE) == [shared.upstream]


def test_plug_ins_of_engines(enabled):
    """Where the package is in force, they are those of its modules."""
    source = "import safetensors_cpp_plugins as p; p.vllm(); p.sglang()"
    done = enabled.run("-c", source, env={"SAFETENSORS_SGLANG": "1"})
    assert done.returncode == 0
    first, second = done.stderr.splitlines()
    assert first.startswith("safetensors_direct is not registered: ModuleNotFoundError: No module")
    assert second.startswith("SAFETENSORS_SGLANG has no effect: ModuleNotFoundError: No module")


def test_other_commands(shared):
    """They are those of the package's command line."""
    done = call(shared.command, "check", "/no-such-file")
    assert done.returncode == 2
    assert done.stdout.startswith("/no-such-file: unreadable")
    done = call(shared.command, "enable", "now")
    assert (done.returncode, done.stderr) == (2, "safetensors-cpp: enable takes no arguments\n")
    assert call(shared.command, "--help").stdout.startswith("usage: safetensors-cpp COMMAND")


def test_a_broken_package_is_reported(shared, tmp_path):
    """`status` says with which error the import fails."""
    (tmp_path / "safetensors.py").write_text("raise OSError('torn')\n", encoding="utf-8")
    done = call(shared.command, "status", env={"PYTHONPATH": str(tmp_path)})
    assert done.returncode == 2
    assert done.stderr == "safetensors-cpp: `import safetensors` fails: OSError: torn\n"


def test_enable_needs_a_site_folder(shared, tmp_path):
    """Where Python reads no .pth files, `enable` writes none."""
    shared.pip("install", "--quiet", "--no-index", "--no-deps", "--target", str(tmp_path), WHEEL)
    source = (
        "import sys; from safetensors_cpp._command import main; sys.argv[1:] = ['enable']; main()"
    )
    done = shared.run("-c", source, env={"PYTHONPATH": str(tmp_path)})
    assert done.returncode == 2
    assert done.stderr == (
        f"safetensors-cpp: Python reads no .pth files in {tmp_path}, where safetensors_cpp is\n"
    )
    assert not list(tmp_path.glob("*.pth"))


def test_nothing_stays_after_pip_uninstall(tmp_path):
    """Not the .pth file either. Upstream's files are never changed."""
    environment = Environment(tmp_path / "venv")
    environment.output("-c", WHERE)

    def files():
        found = (path for path in (tmp_path / "venv").rglob("*") if path.is_file())
        return {path: path.read_bytes() for path in found}

    before = files()
    environment.install()
    assert call(environment.command, "enable").returncode == 0
    assert environment.output("-c", "import safetensors, safetensors.weights") == []
    assert environment.output("-m", "safetensors_cpp", "-c", WHERE) == [environment.ours]
    environment.pip("uninstall", "--quiet", "--yes", "safetensors-cpp")
    assert files() == before
    assert environment.output("-c", WHERE) == [environment.upstream]
