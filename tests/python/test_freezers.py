"""Programs that load arrays are frozen without torch, and with all that they need.

PyInstaller, Nuitka and cx_Freeze take in what import statements lead to, wherever these are, as the
standard library's modulefinder does.
"""

import ast
import modulefinder
import pathlib
import re

import pytest

import safetensors
from support import children

ROOT = pathlib.Path(safetensors.__file__).parent
TREE = pathlib.Path(__file__).parents[2]
SOURCES = [*TREE.glob("src/python/*.cpp"), *TREE.glob("weights/bindings/*.cpp")]
FRAMEWORKS = {"torch", "jax", "flax", "mlx", "paddle", "tensorflow", "transformers", "vllm"}

PROGRAMS = {
    "numpy": "from safetensors.numpy import load_file, save_file, save_file_async, save_files",
    "package": "from safetensors import recover, safe_create, safe_open, specs_of, update_file",
    "patches": "from safetensors import delta",
    "plans": "from safetensors import plan",
    "sums": "from safetensors import sums",
    "weights": "from safetensors.weights import open_weights",
}


@pytest.fixture
def modules(tmp_path):
    """Returns the modules of a program that are this package's, and the names of all others."""
    (tmp_path / "safetensors").symlink_to(ROOT)

    def find(program):
        script = tmp_path / "program.py"
        script.write_text(program)
        finder = modulefinder.ModuleFinder([str(tmp_path)])  # all other modules are missing ones
        finder.run_script(str(script))
        ours = {name for name in finder.modules if name.partition(".")[0] == "safetensors"}
        return ours, {name.partition(".")[0] for name in finder.badmodules}

    return find


@pytest.mark.parametrize("program", PROGRAMS)
def test_no_framework_is_taken(modules, program):
    ours, others = modules(PROGRAMS[program])
    assert "safetensors._torch.arrays" in ours, "tensors of torch may be written"
    assert "numpy" in others
    assert others.isdisjoint(FRAMEWORKS)


def test_frameworks_are_taken_by_their_modules(modules):
    ours, others = modules("import safetensors.torch")
    assert "torch" in others
    assert "safetensors._torch.load_files" in ours


def test_what_is_imported_by_name_is_taken(modules):
    """By the compiled module, and by importlib: no freezer sees that."""
    ours, _ = modules("import safetensors")
    text = "".join(path.read_text() for path in SOURCES)
    names = set(re.findall(r'module_::import\(\s*"(safetensors\.[\w.]+)"', text))
    assert {"safetensors._frameworks", "safetensors._torch.transfer"} <= names
    names |= {f"safetensors.{each}" for each in safetensors._LAZY.values()}
    names |= {"safetensors._remote.objects", "safetensors._remote.filesystems"}
    assert names <= ours


def test_torch_is_imported_by_one_module():
    """Else a freezer would follow the statement."""
    pytest.importorskip("torch")
    importing = {
        path.name
        for path in (ROOT / "_torch").glob("*.py")
        if re.search(r"^import torch\b", path.read_text(), re.MULTILINE)
    }
    assert not importing
    script = "from safetensors._torch import torch as ours\nimport torch\nprint(torch is ours)"
    assert children.run(script).split() == ["True"]


def test_nuitka_compiles_every_assignment():
    """Nuitka 4.3.3 fails where a tuple of calls of memoryview is assigned to several names."""
    found = []
    for path in ROOT.rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Assign) and isinstance(node.value, ast.Tuple):
                names = {getattr(getattr(each, "func", None), "id", "") for each in node.value.elts}
                if "memoryview" in names:
                    found.append(f"{path.name}:{node.lineno}")
    assert not found
