"""Names, kinds and signatures are those of upstream 0.8.0; keyword-only additions are allowed."""

import ast
import importlib
import importlib.resources
import importlib.util
import inspect
import sys
import typing

import pytest

import safetensors
from support import children, operations

# "name", "name=default", and "*" before what is keyword-only.
HANDLE = {
    "metadata": [],
    "keys": [],
    "offset_keys": [],
    "get_tensor": ["name"],
    "get_tensors": [],
    "get_slice": ["name"],
    "__enter__": [],
    "__exit__": ["_exc_type", "_exc_value", "_traceback"],
}
METADATA = "metadata=None"
SIGNATURES = {
    "safetensors": {
        "safe_open": ["filename", "framework", "device='cpu'", "*", "backend='mmap'"],
        "_safe_open_handle": ["f", "framework", "device='cpu'", "*", "backend='mmap'"],
        "TensorSpec": ["*", "dtype", "shape", "data_ptr", "data_len"],
        "serialize": ["tensor_dict", METADATA],
        "serialize_file": ["tensor_dict", "filename", METADATA],
        "deserialize": ["bytes"],
    },
    "safetensors.numpy": {
        "save": ["tensor_dict", METADATA],
        "save_file": ["tensor_dict", "filename", METADATA],
        "load": ["data"],
        "load_file": ["filename", "*", "backend='mmap'"],
        "_flatten": ["tensor_dict", "keep_alive_buffer"],
        "_getdtype": ["dtype_str"],
        "_is_little_endian": ["tensor"],
        "_view2np": ["safeview"],
    },
    "safetensors.torch": {
        "save": ["tensors", METADATA],
        "save_file": ["tensors", "filename", METADATA],
        "load": ["data"],
        "load_file": ["filename", "device='cpu'", "*", "backend='mmap'"],
        "save_model": ["model", "filename", METADATA, "force_contiguous=True"],
        "load_model": ["model", "filename", "strict=True", "device='cpu'", "*", "backend='mmap'"],
        "storage_ptr": ["tensor"],
        "storage_size": ["tensor"],
        "_end_ptr": ["tensor"],
        "_evaluate_tensors_for_save": ["tensors"],
        "_filter_shared_not_shared": ["tensors", "state_dict"],
        "_find_shared_tensors": ["state_dict"],
        "_flatten_as_ptr": ["tensors", "keep_alive_buffer"],
        "_getdtype": ["dtype_str"],
        "_is_complete": ["tensor"],
        "_remove_duplicate_names": [
            "state_dict", "*", "preferred_names=None", "discard_names=None",
        ],
        "_to_ndarray": ["tensor"],
        "_view2torch": ["safeview"],
    },
    "safetensors.flax": {
        "save": ["tensors", METADATA],
        "save_file": ["tensors", "filename", METADATA],
        "load": ["data"],
        "load_file": ["filename", "*", "backend='mmap'"],
        "_np2jnp": ["numpy_dict"],
        "_jnp2np": ["jnp_dict"],
    },
    "safetensors.tensorflow": {
        "save": ["tensors", METADATA],
        "save_file": ["tensors", "filename", METADATA],
        "load": ["data"],
        "load_file": ["filename", "*", "backend='mmap'"],
        "_np2tf": ["numpy_dict"],
        "_tf2np": ["tf_dict"],
    },
    "safetensors.paddle": {
        "save": ["tensors", METADATA],
        "save_file": ["tensors", "filename", METADATA],
        "load": ["data", "device='cpu'"],
        "load_file": ["filename", "device='cpu'", "*", "backend='mmap'"],
        "_np2paddle": ["numpy_dict", "device='cpu'"],
        "_paddle2np": ["paddle_dict"],
        "_getdtype": ["dtype_str"],
        "_view2paddle": ["safeview", "device"],
        "_to_ndarray": ["tensor", "name"],
        "_flatten": ["tensors", "keep_alive_buffer"],
    },
    "safetensors.mlx": {
        "save": ["tensors", METADATA],
        "save_file": ["tensors", "filename", METADATA],
        "load": ["data"],
        "load_file": ["filename", "*", "backend='mmap'"],
        "_np2mx": ["numpy_dict"],
        "_mx2np": ["mx_dict"],
    },
}  # fmt: skip
NEEDS = {
    "safetensors.numpy": "numpy",
    "safetensors.torch": "torch",
    "safetensors.flax": "jax",
    "safetensors.tensorflow": "tensorflow",
    "safetensors.paddle": "paddle",
    "safetensors.mlx": "mlx.core",
}
EXTENSION = [
    "SafetensorError", "TensorSpec", "__version__", "_safe_open_handle", "deserialize",
    "safe_open", "serialize", "serialize_file",
]  # fmt: skip
SAVE_FILES = [
    "folder", METADATA, "*", "max_shard_size='5GB'", "name='model'", "fsync=False", "progress=None",
]  # fmt: skip
SAVE_ASYNC = ["filename", METADATA, "*", "fsync=False", "budget_bytes=None"]
ADDITIONS = {
    "safetensors.numpy": {
        "save_files": ["tensor_dict", *SAVE_FILES],
        "save_file_async": ["tensor_dict", *SAVE_ASYNC],
    },
    "safetensors.torch": {
        "save_file_async": ["tensors", *SAVE_ASYNC],
        "save_files": ["tensors", *SAVE_FILES],
        "load_files": [
            "filenames", "device='cpu'", "*", "backend='auto'", "keys=None", "plan=None",
            "progress=None", "budget_bytes=None", "storage_options=None", "verify=None",
            "expected_hashes=None",
        ],
        "load_into": [
            "tensors", "filenames", "*", "strict=True", "parts=None", "progress=None",
            "storage_options=None", "verify=None", "expected_hashes=None",
        ],
        "plan_placements": ["device_mesh", "placements"],
        "plan_tp": ["tp_plan", "rank", "world_size", "*", "blocks=None"],
        "stream_files": [
            "filenames", "device='cpu'", "*", "backend='auto'", "keys=None", "plan=None",
            "budget_bytes=None", "storage_options=None", "verify=None", "expected_hashes=None",
            "progress=None",
        ],
    },
}  # fmt: skip
NEW_IN_090 = ["PySafeSlice", "TensorMeta", "PrefetchLoader"]
HANDLE_ADDITIONS = [
    "close",
    "get_tensor_meta",
    "prefetch",
    "__contains__",
    "__len__",
    "__iter__",
    "__bool__",
    "__getitem__",
    "items",
    "values",
]
CALLABLES = [(module, name) for module, names in SIGNATURES.items() for name in names]


def load(module):
    """Imports a module of the package, or skips the test if its framework is not installed."""
    if module in NEEDS:
        pytest.importorskip(NEEDS[module], reason=f"{NEEDS[module]} is not installed")
    return importlib.import_module(module)


def described(expected):
    """Returns (name, kind, default's repr) for a list in the notation of SIGNATURES."""
    kind, found = "POSITIONAL_OR_KEYWORD", []
    for parameter in expected:
        if parameter == "*":
            kind = "KEYWORD_ONLY"
        else:
            name, _, default = parameter.partition("=")
            found.append((name, kind, default or repr(inspect.Parameter.empty)))
    return found


def parameters(member):
    """Returns the same for a callable, without `self`."""
    listed = inspect.signature(member).parameters.values()
    return [(p.name, p.kind.name, repr(p.default)) for p in listed if p.name != "self"]


def check_signature(member, expected):
    """Checks the parameters of `member`; more may be keyword-only with a default."""
    wanted, found = described(expected), parameters(member)
    assert found[: len(wanted)] == wanted
    for name, kind, default in found[len(wanted) :]:
        assert kind == "KEYWORD_ONLY", f"{name} could be passed by position"
        assert default != repr(inspect.Parameter.empty), f"{name} would have to be passed"


@pytest.mark.parametrize(("module", "name"), CALLABLES, ids=lambda value: value)
def test_signature(module, name):
    """Every function and class has the expected parameters and defaults."""
    member = getattr(load(module), name)
    # Before Python 3.11.4, inspect does not look at a compiled class's __init__.
    if sys.version_info < (3, 11, 4) and isinstance(member, type) and "__new__" in vars(member):
        member = member.__init__
    check_signature(member, SIGNATURES[module][name])


@pytest.mark.parametrize("name", HANDLE)
@pytest.mark.parametrize("kind", ["safe_open", "_safe_open_handle"])
def test_handle_signature(kind, name):
    """Methods of both handles have the expected parameters."""
    check_signature(getattr(getattr(safetensors, kind), name), HANDLE[name])


def test_the_table_equals_upstreams_signatures(upstream):
    """Every entry that upstream has equals its signature."""
    modules = ["safetensors"]
    for module, framework in NEEDS.items():
        if importlib.util.find_spec(framework.partition(".")[0]):
            modules.append(module)
    theirs = upstream.run("surface", modules).unwrap()
    for module in modules:
        for name, expected in SIGNATURES[module].items():
            # Upstream's classes show `Ellipsis` for a default they do not tell.
            told = [(n, k, "..." if "Ellipsis" in d else d) for n, k, d in theirs[module][name][1]]
            wanted = described(expected)
            if any(default == "..." for _, _, default in told):
                wanted = [(n, k, "..." if d[0] == "'" else d) for n, k, d in wanted]
            told = [(n, k, d.replace("Ellipsis", "...")) for n, k, d in told]
            assert told == wanted, f"{module}.{name}"


def test_nothing_of_upstreams_is_missing(upstream):
    """Upstream's names, except its imports, exist and have the same kind."""
    helpers = {"Any", "Dict", "List", "Optional", "Set", "Tuple", "Union", "defaultdict"}
    ordinary = {"function", "builtin_function_or_method", "builtin_function", "method"}
    modules = ["safetensors"]
    modules += [m for m in ("safetensors.numpy", "safetensors.torch") if load(m)]
    theirs = upstream.run("surface", modules).unwrap()
    ours = operations.run("surface", modules).unwrap()
    for module in modules:
        missing = theirs[module].keys() - ours[module].keys() - helpers
        assert not missing, module
        for name in theirs[module].keys() - helpers:
            kind, other = theirs[module][name][0], ours[module][name][0]
            assert kind == other or {kind, other} <= ordinary or "type" in (kind, other), name


def test_new_names():
    """Names of 0.9.0rc1 that this package has."""
    for name in NEW_IN_090:
        assert isinstance(getattr(safetensors, name), type)
    for kind in (safetensors.safe_open, safetensors._safe_open_handle):
        assert [name for name in HANDLE_ADDITIONS if not hasattr(kind, name)] == []


def test_recover_is_imported_late():
    """It is a function of the package, whose import few programs need."""
    code = """
        import safetensors
        assert "safetensors._saving.recovery" not in sys.modules and "recover" in dir(safetensors)
        from safetensors import *
        print(recover is safetensors.recover is sys.modules["safetensors._saving.recovery"].recover)
    """
    assert children.run(code).strip() == "True"
    check_signature(safetensors.recover, ["path"])
    assert "rolled forward" in safetensors.recover.__doc__


def test_signed():
    """The class of safetensors.signing."""
    from safetensors import signing

    assert signing.__all__ == ["Signed"]
    expected = ["signature=None", "*", "key=None", "identity=None", "issuer=None"]
    check_signature(signing.Signed, [*expected, "certificate_chain=()"])
    assert signing.__doc__
    assert "root certificates" in signing.Signed.__doc__


DELTA = {
    "diff": ["old", "new", "path=None", "*", "digest='xxh3-128'", "values='auto'",
             "labels=(None, None)", "fsync=False"],
    "open_patch": ["path"],
    "apply": ["tensors", "patches", "*", "verify='blocks'", "already='error'"],
    "apply_file": ["model", "patches", "output=None", "*", "in_place=False", "verify='full'",
                   "already='error'", "fsync=False", "shared=False", "sums=None"],
    "Tracker": ["state", "*", "label=None", "digest='xxh3-128'"],
    "checkpoint_weight_patches": ["patch", "base=None", "device=None"],
}  # fmt: skip


def test_patches_surface():
    """The functions of safetensors.delta; all that it lists has a docstring."""
    delta = importlib.import_module("safetensors.delta")
    for name, expected in DELTA.items():
        check_signature(getattr(delta, name), expected)
    check_signature(delta.Tracker.diff, ["state", "path=None", "*", "label=None", "values='auto'"])
    classes = {"AlreadyAppliedError", "Entry", "Patch", "PatchError", "WrongBaseError"}
    assert set(delta.__all__) == DELTA.keys() | classes
    assert [name for name in delta.__all__ if not getattr(delta, name).__doc__] == []


@pytest.mark.parametrize("module", ADDITIONS)
def test_additions(module):
    """Functions that upstream lacks: the module lists them, with these parameters."""
    loaded = load(module)
    listed = set(loaded.__all__) - SIGNATURES[module].keys() - set(EXTENSION)
    assert listed == ADDITIONS[module].keys()
    for name, expected in ADDITIONS[module].items():
        check_signature(getattr(loaded, name), expected)


def test_additions_are_imported_late():
    """They take longer to import than everything that most programs use."""
    load("safetensors.torch")
    loaded = "print('safetensors._torch.load_files' in sys.modules)"
    code = f"import safetensors.torch as t; {loaded}\n"
    code += "from safetensors.torch import *; print(load_files is t.load_files)\n"
    code += f"{loaded}; print(hasattr(t, 'nothing'))"
    assert children.run(code).split() == ["False", "True", "True", "False"]


LISTED = """
import inspect, pydoc, sys
import safetensors.torch as t
assert "safetensors._torch.load_files" not in sys.modules
names = set(sys.argv[1:])
print(names <= set(dir(t)), names <= {name for name, _ in inspect.getmembers(t)})
print(all(f"{name}(" in pydoc.plaintext.document(t) for name in names))
"""


@pytest.mark.slow
def test_additions_are_listed_before_they_are_used():
    """dir(), inspect and help() list them."""
    load("safetensors.torch")
    printed = children.run(LISTED, *ADDITIONS["safetensors.torch"])
    assert printed.split() == ["True", "True", "True"]


@pytest.mark.parametrize("module", [name for name in SIGNATURES if name != "safetensors"])
def test_type_hints(module):
    """Programs that generate parsers from functions read their annotations."""
    loaded = load(module)
    for name in loaded.__all__ if hasattr(loaded, "__all__") else SIGNATURES[module]:
        member = getattr(loaded, name)
        if inspect.isfunction(member):
            assert (
                typing.get_type_hints(member).keys() >= inspect.signature(member).parameters.keys()
            )


@pytest.mark.parametrize("module", SIGNATURES)
def test_docstrings(module):
    """Every public name and the module have a docstring."""
    loaded = load(module)
    names = [name for name in SIGNATURES[module] if not name.startswith("_")]
    names += ADDITIONS.get(module, {})
    assert [name for name in names if not (getattr(loaded, name).__doc__ or "").strip()] == []
    assert loaded.__doc__


def test_docstrings_of_methods():
    """Methods of handles and slices have a docstring."""
    for name in [*HANDLE, *HANDLE_ADDITIONS]:
        if not name.startswith("__"):
            assert inspect.getdoc(getattr(safetensors.safe_open, name)), name
    for name in ("get_shape", "get_dtype"):
        assert inspect.getdoc(getattr(safetensors.PySafeSlice, name)), name


def test_the_rust_modules_name_can_be_imported():
    """Programs import from safetensors._safetensors_rust."""
    extension = importlib.import_module("safetensors._safetensors_rust")
    for name in EXTENSION:
        assert getattr(extension, name) is getattr(safetensors, name), name
    assert safetensors._safetensors_rust is extension
    assert set(EXTENSION) <= set(extension.__all__)
    # No file is looked for and read, which would be a twentieth of the import.
    spec = importlib.util.find_spec("safetensors._safetensors_rust")
    assert spec is not None
    assert spec.loader is None


def test_safetensor_error(upstream):
    """Its module and base are upstream's, and it can be raised and pickled."""
    source = "(lambda e: (e.__module__, e.__qualname__, [b.__name__ for b in e.__mro__]))"
    source += "(safetensors.SafetensorError)"
    ours = operations.run("evaluate", source).unwrap()
    assert ours == upstream.evaluate(source).unwrap()
    assert ours[0] == "safetensors._safetensors_rust"
    pickled = "(lambda p: p.loads(p.dumps(safetensors.SafetensorError('a', 1))).args)"
    pickled += "(__import__('pickle'))"
    assert operations.run("evaluate", pickled).unwrap() == ("a", 1)
    assert upstream.evaluate(pickled).unwrap() == ("a", 1)


def test_reexports():
    """Other projects import these names from the frameworks' modules."""
    for module in ("safetensors.numpy", "safetensors.torch"):
        loaded = load(module)
        for name in ("safe_open", "deserialize", "serialize", "serialize_file", "TensorSpec"):
            assert getattr(loaded, name) is getattr(safetensors, name)
        assert isinstance(loaded._TYPES, dict)
    assert isinstance(load("safetensors.torch")._SIZE, dict)


@pytest.mark.parametrize("module", ["safetensors.numpy", "safetensors.torch"])
def test_tables_hold_what_upstreams_hold(upstream, module):
    """_TYPES and _SIZE have upstream's entries and the dtypes that it lacks."""
    load(module)
    for table in ("_TYPES", "_SIZE"):
        source = (
            f"{{str(k): str(v) for k, v in __import__('sys').modules[{module!r}].{table}.items()}}"
        )
        theirs = upstream.evaluate(source)
        if theirs.ok:
            ours = operations.run("evaluate", source).unwrap()
            assert {key: ours.get(key) for key in theirs.value} == theirs.value


def test_typing_files():
    """The package has py.typed and a stub with every name of the extension."""
    folder = importlib.resources.files("safetensors")
    assert (folder / "py.typed").is_file()
    tree = ast.parse((folder / "_core.pyi").read_text())
    named = {getattr(node, "name", None) for node in ast.walk(tree)}
    named |= {node.target.id for node in ast.walk(tree) if isinstance(node, ast.AnnAssign)}
    wanted = {
        *SIGNATURES["safetensors"],
        *NEW_IN_090,
        *HANDLE,
        *HANDLE_ADDITIONS,
        "SafetensorError",
    }
    assert wanted - named == set()
