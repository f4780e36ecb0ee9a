"""The package's modules import each other in one direction only, and no framework by default."""

import ast
import graphlib
import importlib.util
import pathlib

import pytest

import safetensors
from support import children

ROOT = pathlib.Path(safetensors.__file__).parent
REPOSITORY = pathlib.Path(__file__).resolve().parents[2]
FILES = {
    ".".join(["safetensors", *path.relative_to(ROOT).with_suffix("").parts]): path
    for path in sorted(ROOT.rglob("*.py"))
}
FILES = {name.removesuffix(".__init__"): path for name, path in FILES.items()}
MODULES = {
    name: path
    for name, path in FILES.items()
    if "_cli" not in path.parts  # `completion` describes the parser that `main` builds from it
}
COMPILED = {"safetensors._core", "safetensors._extra", "safetensors._weights"}
TORCH = [name for name in MODULES if name.startswith(("safetensors._torch", "safetensors.torch"))]


def imports_of(name, path):
    """Returns the modules of this package that a module imports, anywhere in its text."""
    package = name if path.name == "__init__.py" else name.rpartition(".")[0]
    found = set()
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            dots = "." * node.level
            base = importlib.util.resolve_name(dots + (node.module or ""), package)
            # "from . import x" imports the module x if there is one, else a name of the package.
            names = {f"{base}.{alias.name}" for alias in node.names}
            found |= {each if each in FILES.keys() | COMPILED else base for each in names}
        elif isinstance(node, ast.Call) and ast.unparse(node.func).endswith("import_module"):
            # Other names are chosen at run time.
            literal = [each.value for each in node.args[:1] if isinstance(each, ast.Constant)]
            found |= {importlib.util.resolve_name(each, package) for each in literal}
    return {each for each in found if each in FILES and each != name}


def test_no_module_imports_itself_through_others():
    """Imports inside functions and for type checkers are edges of the graph, too."""
    graph = {name: imports_of(name, path) & MODULES.keys() for name, path in MODULES.items()}
    assert graph["safetensors.torch"] >= {"safetensors._torch.dtypes", "safetensors._typing"}
    assert graph["safetensors._torch.pieces"] == {"safetensors._regions"}
    try:
        order = list(graphlib.TopologicalSorter(graph).static_order())
    except graphlib.CycleError as error:
        pytest.fail(" <- ".join(error.args[1]))
    assert len(order) == len(MODULES)


AGAINST_THE_ORDER = {
    ("_saving.prepare", "_torch"): "torch's tensors: their room knows what a file can hold",
    ("_saving.specs", "_torch"): "likewise",
    ("_torch.load_files", "_group"): "hands a call with a group over to the loads of groups",
    ("_torch.load_into", "_group"): "likewise",
    ("_typing", "_checking"): "names the class Sums, for type checkers only",
}
"""Modules that import a room which imports theirs, each with the reason."""


def room_of(module):
    """Returns the folder that a module of the package is in; a module in none is its own room."""
    return module.removeprefix("safetensors.").partition(".")[0]


def imports_of_rooms():
    """Returns pairs: a module, and a room beside its own that it imports."""
    found = set()
    for name, path in FILES.items():
        rooms = {room_of(each) for each in imports_of(name, path)}
        found |= {(name.removeprefix("safetensors."), room) for room in rooms - {room_of(name)}}
    return found


def circle_of_rooms(imports):
    """Returns rooms each of which the next one imports, the last one also the first; or none."""
    graph = {}
    for module, room in imports:
        graph.setdefault(room_of(module), set()).add(room)
    try:
        graphlib.TopologicalSorter(graph).prepare()
    except graphlib.CycleError as error:
        return error.args[1]
    return []


def test_rooms_import_each_other_in_one_direction():
    """The modules of two rooms may import each other without a circle: the rooms may not."""
    found = imports_of_rooms()
    against = {*AGAINST_THE_ORDER}
    assert {("_torch.save_file", "_saving"), ("_group.load", "_torch")} <= found
    assert against <= found
    assert not (circle := circle_of_rooms(found - against)), " <- ".join(circle)
    for each in against:
        assert circle_of_rooms((found - against) | {each}), f"{each} makes no circle"


def test_rooms_borrow_nothing_of_the_front_doors():
    """What they need of `safetensors.torch` and `safetensors.numpy` is in the rooms below these.
    Plug-ins call them, as programs do."""
    found = {(module, room) for module, room in imports_of_rooms() if room in ("torch", "numpy")}
    assert {("plugins.vllm", "torch"), ("tensorflow", "numpy")} <= found
    assert not {pair for pair in found if pair[0].startswith("_")}


def test_importing_imports_no_framework():
    """`import safetensors` in a fresh interpreter imports no framework."""
    script = """
        before = set(sys.modules)
        import safetensors
        print(*set(sys.modules) - before)
    """
    loaded = children.run(script).split()
    assert "safetensors" in loaded
    frameworks = {"numpy", "torch", "jax", "tensorflow", "paddle", "mlx", "ml_dtypes"}
    frameworks |= {"model_signing", "cryptography"}
    assert frameworks.isdisjoint(name.partition(".")[0] for name in loaded)


def test_one_module_imports_what_signs():
    """The package that signs takes a second to import: loads that verify nothing never do."""
    signing = "safetensors._checking.model_signing"
    named = {name for name, path in MODULES.items() if "model_signing" in path.read_text()}
    assert named == {signing, "safetensors.signing"}
    assert {name for name in MODULES if signing in imports_of(name, MODULES[name])} == {
        "safetensors.signing"
    }


@pytest.mark.slow
def test_each_module_of_torch_imports_first():
    """Any of them may be the first that a program imports."""
    pytest.importorskip("torch")
    children.run(
        """
        import importlib, torch
        for name in sys.argv[1:]:
            for loaded in [key for key in sys.modules if key.startswith("safetensors")]:
                # Compiled modules cannot be initialised twice.
                if loaded not in ("safetensors._core", "safetensors._extra"):
                    del sys.modules[loaded]
            importlib.import_module(name)
        """,
        *TORCH,
    )


def test_types_are_one_table():
    """A program that adds a type to safetensors.torch._TYPES adds it for all loaders."""
    pytest.importorskip("torch")
    import safetensors.torch
    from safetensors._torch import dtypes, wanted

    assert safetensors.torch._TYPES is dtypes._TYPES is wanted._TYPES
    assert safetensors.torch._SIZE is dtypes._SIZE


def test_weights_import_no_framework():
    """Nor do programs that only read import what converts."""
    loaded = children.run("import safetensors.weights\nprint(*sys.modules)").split()
    assert {"numpy", "torch", "safetensors._saving.writer", "safetensors._shards"}.isdisjoint(
        loaded
    )
    found = imports_of("safetensors.weights._convert", MODULES["safetensors.weights._convert"])
    assert "safetensors.weights._convert_plan" in found


USERS_OF_WEIGHTS = {
    "_cli/ls_model.py",
    "_cli/source_weights.py",
    "_cli/weight_model.py",
    "_summary.py",
    "_weight_models.py",
}
"""What of the core imports the weight layer, to show, sum up and convert models."""

CORE_FOR_WEIGHTS = {
    "_checking.digests",
    "_compiled",
    "_dtypes",
    "_errors",
    "_outline.views",
    "_paths",
    "_pickling",
    "_progress",
    "_saving.companions",
    "_saving.model_files",
    "_saving.specs",
    "_saving.split",
    "_saving.recovery",
    "_saving.writer",
    "_shards",
    "_text",
    "_torch",
    "_typing",
}
"""What the weight layer imports of the core, beside the compiled module; `_weights` is its own."""


def test_the_core_and_the_weight_layer_import_little_of_each_other():
    """docs/design.md: two houses. A module that joins the lists says why in its commit."""
    own = {name for name in MODULES if name.startswith("safetensors.weights")}
    own.add("safetensors._weights")
    users, needed = set(), set()
    for name, path in FILES.items():
        found = imports_of(name, path)
        if name in own:
            needed |= found - own
        elif found & own:
            users.add(path.relative_to(ROOT).as_posix())
    assert len(own) > 10
    assert users == USERS_OF_WEIGHTS
    assert needed - {"safetensors"} == {f"safetensors.{each}" for each in CORE_FOR_WEIGHTS}


def test_patches_import_no_framework():
    """Neither do programs that load models import what patches need."""
    script = "from safetensors import delta\nprint(*sys.modules)"
    loaded = children.run(script).split()
    assert {"numpy", "torch", "ctypes", "safetensors._remote"}.isdisjoint(loaded)


ADDITIONS = {
    "_cli": {"__main__", "_cli"},
    "_dcp": {"_dcp", "dcp"},
    "_delta": {"_delta", "delta"},
    "_group": {"_group", "plugins"},
    "_outline": {"_outline", "_summary"},
    "_remote": {"_remote"},
    "signing": {"signing"},
    "weights": {"_weight_models", "_weights", "weights"},
}
"""What the package has beside the drop-in: the rooms of each addition."""

DOORS = {
    ("safetensors", "_delta"): "freezers look here for what the compiled module imports",
    ("safetensors", "_outline"): "what a notebook shows of a handle",
    ("safetensors", "_remote"): "safe_open of a URL",
    ("_checking.verify", "_remote"): "verify of a URL",
    ("_paths", "_remote"): "tells URLs from paths",
    ("_shards", "_remote"): "models at a URL, and links of the hub's cache",
    ("_torch.load_files", "_group"): "a load with a group",
    ("_torch.load_into", "_group"): "likewise",
    ("plan", "_outline"): "what a notebook shows of a plan",
}
"""Modules of the drop-in that import an addition, each with what for."""

BETWEEN_ADDITIONS = {
    "_cli": {"_delta", "_outline", "signing", "weights"},
    "_delta": {"_outline"},
    "_group": {"_remote"},
    "_outline": {"weights"},
    "weights": {"_outline"},
}


def test_the_drop_in_imports_additions_at_named_doors():
    """docs/design.md: who maintains the drop-in can leave the additions unread."""
    addition_of = {room: name for name, rooms in ADDITIONS.items() for room in rooms}
    assert addition_of.keys() <= {room_of(name) for name in FILES | dict.fromkeys(COMPILED)}
    doors, between = set(), {}
    for name, path in FILES.items():
        own = addition_of.get(room_of(name))
        for each in imports_of(name, path):
            other = addition_of.get(room_of(each))
            if other in (own, None):
                continue
            if own is None:
                doors.add((name.removeprefix("safetensors."), other))
            else:
                between.setdefault(own, set()).add(other)
    assert doors == DOORS.keys()
    assert between == BETWEEN_ADDITIONS


def test_the_drop_in_stays_of_a_size_that_one_person_knows():
    """A change that would make it longer than this takes something out, or makes an addition."""
    sources = [*REPOSITORY.glob("include/**/*.hpp"), *REPOSITORY.glob("src/**/*.[ch]pp")]
    if not sources:
        pytest.skip("the sources are not beside the tests")
    aside = {REPOSITORY / "src" / room for room in ("c", "patch")}
    found = [path for path in sources if aside.isdisjoint(path.parents)]
    rooms = {room for rooms in ADDITIONS.values() for room in rooms}
    found += [path for name, path in FILES.items() if room_of(name) not in rooms]
    lines = sum(len(path.read_text(encoding="utf-8").splitlines()) for path in found)
    assert 40_000 < lines < 52_000


def test_schedules_of_groups_are_pure():
    """They import each other, indices of parts, and the standard library."""
    group = "safetensors._group"
    loaded = children.run(f"import {group}.schedule\nprint(*sys.modules)").split()
    assert {"numpy", "torch", "safetensors._remote"}.isdisjoint(loaded)
    for name in ("column", "parts", "frame", "schedule"):
        found = imports_of(f"{group}.{name}", MODULES[f"{group}.{name}"])
        own = {f"{group}.column", f"{group}.parts", f"{group}.frame"}
        assert found <= {*own, "safetensors._regions"}
