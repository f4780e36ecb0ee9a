"""safetensors.jax.load_files on eight devices of the CPU."""

import inspect
import itertools
import re
import typing

import ml_dtypes
import numpy as np
import pytest

from support import file_builder, jax_devices
from support.dtype_table import SAVEABLE
from support.file_builder import raw
from support.framework_cases import F6, array_of, tensor_of
from support.jax_devices import COLUMNS, MESH, MESHES, ROWS, WHOLE, arranged, mesh_of, same, saved
from support.range_readers import FailingReader

jax = jax_devices.jax
import jax.numpy as jnp  # noqa: E402
from jax.sharding import Mesh, NamedSharding, PartitionSpec, SingleDeviceSharding  # noqa: E402

import safetensors.jax as module  # noqa: E402
from safetensors import SafetensorError  # noqa: E402
from safetensors.jax import load_files  # noqa: E402
from safetensors.plan import SKIP, Shard, resolve  # noqa: E402


def specs_of(names, rank):
    """Returns every PartitionSpec: each axis of the mesh divides one axis of an array or none."""
    found = {}
    for places in itertools.product(range(rank + 1), repeat=len(names)):
        for order in itertools.permutations(range(len(names))):
            axes = [tuple(names[i] for i in order if places[i] == axis) for axis in range(rank)]
            found[tuple(axes)] = PartitionSpec(*(axis or None for axis in axes))
    return list(found.values())


@pytest.mark.parametrize("mesh_shape", MESHES, ids=str)
@pytest.mark.parametrize("shape", [(), (16,), (8, 16), (8, 16, 8)], ids=str)
def test_every_spec(tmp_path, mesh_shape, shape):
    """Each device gets its region, whichever axes of the mesh divide which axis of the array."""
    array = np.arange(np.prod(shape, dtype=int), dtype=np.int32).reshape(shape)
    path = saved(tmp_path, {"a": array})
    mesh = mesh_of(mesh_shape)
    specs = specs_of(MESHES[mesh_shape], len(shape))
    assert len(specs) >= 1 + len(shape)
    for spec in specs:
        sharding = NamedSharding(mesh, spec)
        same(load_files(path, sharding)["a"], array, sharding)


@pytest.mark.parametrize("code", [code for code in SAVEABLE if code not in ("U64", "I64", "F64")])
def test_every_dtype(tmp_path, code):
    """As whole arrays, rows and columns. Elements of F4 share bytes in the file."""
    tensor = tensor_of(code)
    path = file_builder.write(tmp_path / "a.safetensors", {"a": tensor})
    mesh = Mesh(np.array(jax.devices()[:4]).reshape(2, 2), ("x", "y"))
    for spec in specs_of("xy", 2):
        sharding = NamedSharding(mesh, spec)
        if all(size % n == 0 for size, n in zip(tensor.shape, parts(sharding), strict=True)):
            same(load_files(path, sharding)["a"], array_of(tensor), sharding)


def parts(sharding):
    """Returns into how many parts a sharding divides each of two axes."""
    axes = [axis if isinstance(axis, tuple) else (axis,) for axis in (*sharding.spec, None, None)]
    return [int(np.prod([sharding.mesh.shape[a] for a in axis if a])) for axis in axes[:2]]


@pytest.mark.parametrize("shape", [(16,), (4, 8, 6)], ids=str)
def test_f4_of_other_ranks(tmp_path, shape):
    """One axis, which is read as a whole, and three."""
    tensor = raw("F4", shape)
    path = file_builder.write(tmp_path / "a.safetensors", {"a": tensor})
    halves = [half for byte in tensor.data for half in (byte & 15, byte >> 4)]
    wanted = np.array(halves, np.uint8).view(ml_dtypes.float4_e2m1fn).reshape(shape)
    mesh = Mesh(np.array(jax.devices()[:2]), ("x",))
    for spec in specs_of("x", len(shape)):
        sharding = NamedSharding(mesh, spec)
        same(load_files(path, sharding)["a"], wanted, sharding)


def test_empty_arrays(tmp_path):
    """Arrays without elements, of which nothing is read."""
    arrays = {"a": np.zeros((0, 4), np.float32), "b": np.zeros((8, 0), np.float32)}
    calls = []
    loaded = load_files(saved(tmp_path, arrays), ROWS, progress=lambda *args: calls.append(args))
    for name, array in arrays.items():
        same(loaded[name], array, ROWS)
    assert calls == [(0, 0)]


@pytest.mark.parametrize("code", F6)
def test_dtypes_that_jax_lacks(tmp_path, code):
    path = file_builder.write(tmp_path / "a.safetensors", {"layer.a": raw(code, (4, 4))})
    with pytest.raises(SafetensorError, match=rf"tensor layer\.a: .*{code}: JAX has no such"):
        load_files(path, WHOLE)


@pytest.mark.parametrize("code", ["I64", "U64", "F64"])
def test_dtypes_of_64_bits(tmp_path, code):
    """They are loaded if JAX has them, and never cast."""
    tensor = tensor_of(code)
    path = file_builder.write(tmp_path / "a.safetensors", {"layer.a": tensor})
    assert not jax.config.jax_enable_x64
    with pytest.raises(SafetensorError, match=r"tensor layer\.a: .*64 only with jax_enable_x64"):
        load_files(path, WHOLE)
    jax.config.update("jax_enable_x64", True)
    try:
        same(load_files(path, WHOLE)["layer.a"], array_of(tensor), WHOLE)
    finally:
        jax.config.update("jax_enable_x64", False)


# The dict of shardings, keys and plans

ARRAYS = {
    "a.kernel": arranged((16, 8)),
    "a.bias": arranged((8,)),
    "b.kernel": arranged((16, 16)).astype(jnp.bfloat16),
    "b.bias": arranged((16,), np.int32),
}


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    """A folder with two files."""
    folder = tmp_path_factory.mktemp("model")
    names = list(ARRAYS)
    saved(folder, {name: ARRAYS[name] for name in names[:2]}, "model-00001-of-00002.safetensors")
    saved(folder, {name: ARRAYS[name] for name in names[2:]}, "model-00002-of-00002.safetensors")
    return folder


def test_names_and_patterns(model):
    """A name takes precedence, then the first pattern; others are not loaded."""
    loaded = load_files(model, {"*.kernel": COLUMNS, "b*": ROWS, "b.kernel": WHOLE})
    assert set(loaded) == {"a.kernel", "b.kernel", "b.bias"}
    same(loaded["a.kernel"], ARRAYS["a.kernel"], COLUMNS)
    same(loaded["b.kernel"], ARRAYS["b.kernel"], WHOLE)
    same(loaded["b.bias"], ARRAYS["b.bias"], ROWS)


def test_abstract_arrays(model):
    """A dict of ShapeDtypeStructs, as of a flattened tree; arrays have the same attributes."""
    abstract = {
        name: jax.ShapeDtypeStruct(array.shape, array.dtype, sharding=ROWS)
        for name, array in ARRAYS.items()
        if name != "a.bias"
    }
    loaded = load_files(model, abstract)
    assert loaded.keys() == abstract.keys()
    for name, array in loaded.items():
        same(array, ARRAYS[name], ROWS)
    again = load_files(model, loaded)
    assert all(np.array_equal(again[name], loaded[name]) for name in abstract)


def test_one_device(model):
    sharding = SingleDeviceSharding(jax.devices()[5])
    for name, array in load_files(model, sharding).items():
        same(array, ARRAYS[name], sharding)


def test_keys(model):
    assert list(load_files(model, WHOLE, keys=["b.bias", "a.bias"])) == ["a.bias", "b.bias"]
    found = load_files(model, {"b.*": WHOLE}, keys=lambda name: name.endswith("kernel"))
    assert list(found) == ["b.kernel"]


def test_plans(model):
    """The sharding applies to the part. Shares of fused axes, and lists, have columns as well."""
    rules = {"a.kernel": (slice(None), [slice(4, 8), 0, 2]), "b.*": Shard(0, 1, 2), "*": SKIP}
    rows, columns = NamedSharding(MESH, PartitionSpec("y")), COLUMNS
    wanted = {
        "a.kernel": ARRAYS["a.kernel"][:, [4, 5, 6, 7, 0, 2]],
        "b.kernel": ARRAYS["b.kernel"][8:],
        "b.bias": ARRAYS["b.bias"][8:],
    }
    for plan in (rules, resolve(model, rules)):
        loaded = load_files(model, {"a.*": ROWS, "*": rows}, plan=plan)
        assert loaded.keys() == wanted.keys()
        for name, array in wanted.items():
            same(loaded[name], array, ROWS if name == "a.kernel" else rows)
    loaded = load_files(model, columns, plan=rules, keys=lambda name: name == "b.kernel")
    same(loaded.pop("b.kernel"), wanted["b.kernel"], columns)
    assert not loaded


def test_progress(model):
    """Counts each distinct byte once, and ends with all."""
    calls = []
    load_files(model, WHOLE, progress=lambda done, total: calls.append((done, total)))
    total = sum(array.nbytes for array in ARRAYS.values())
    assert calls[-1] == (total, total)
    assert {each for _, each in calls} == {total}
    with pytest.raises(ZeroDivisionError):
        load_files(model, WHOLE, progress=lambda done, total: 1 // 0)


# Errors


def abstract(shape, dtype=np.float32, sharding=WHOLE):
    return jax.ShapeDtypeStruct(shape, dtype, sharding=sharding)


def test_structs_without_a_sharding_go_to_the_first_device(model):
    """As the tree of jax.eval_shape has them."""
    tree = jax.eval_shape(lambda: {"a.kernel": jnp.zeros((16, 8), jnp.float32)})
    loaded = load_files(model, tree)
    assert list(loaded) == ["a.kernel"]
    assert loaded["a.kernel"].devices() == {jax.local_devices()[0]}
    assert np.array_equal(loaded["a.kernel"], load_files(model, WHOLE)["a.kernel"])


@pytest.mark.parametrize(
    ("shardings", "kind", "text"),
    [
        ({"a.kernel": abstract((16, 9))}, SafetensorError, r"a\.kernel: .*\[16, 8\], not .*9\]"),
        ({"a.kernel": abstract((16, 8), jnp.bfloat16)}, SafetensorError, "float32.* not bfloat16"),
        ({"b.*": PartitionSpec("x")}, TypeError, r"tensor b\.\w+: .*found P"),
        (None, TypeError, r"tensor a\.\w+: .*found NoneType"),
        ({"a.kernle": WHOLE}, SafetensorError, "a.kernle.*did you mean `a.kernel`"),
        ({"c.*": WHOLE}, SafetensorError, "No tensor fits the pattern 'c"),
        (
            NamedSharding(MESH, PartitionSpec(None, None, "x")),
            ValueError,
            r"tensor a\.\w+: .*(axes|rank)",
        ),
    ],
    ids=lambda value: "" if isinstance(value, type) else str(value)[:40],
)
def test_wrong_shardings(model, shardings, kind, text):
    """The error names the tensor, or what fits nothing."""
    with pytest.raises(kind, match=text):
        load_files(model, shardings)


def test_uneven_shardings(tmp_path):
    """JAX's error, and the tensor's name. The others are not loaded."""
    path = saved(tmp_path, {"even": arranged((8, 8)), "odd": arranged((7, 8))})
    with pytest.raises(ValueError, match=r"^Error while loading tensor odd: .*divi") as caught:
        load_files(path, ROWS)
    assert type(caught.value.__cause__) is type(caught.value)


def test_the_surface():
    """One function; type hints can be evaluated."""
    assert module.__all__ == ["load_files"]
    parameters = inspect.signature(load_files).parameters
    assert [*parameters] == [
        "filenames", "shardings", "keys", "plan", "progress", "storage_options", "verify",
        "expected_hashes", "name", "variant",
    ]  # fmt: skip
    assert all(p.kind == p.KEYWORD_ONLY for p in [*parameters.values()][2:])
    assert typing.get_type_hints(load_files).keys() >= parameters.keys()


def test_other_arguments(model):
    with pytest.raises(ValueError, match="keys and plan cannot be given together"):
        load_files(model, WHOLE, keys=["a.bias"], plan={"*": None})
    with pytest.raises(IndexError, match=r"tensor a\.bias: index 8 is out of bounds"):
        load_files(model, WHOLE, plan={"a.bias": 8})
    with pytest.raises(SafetensorError, match="'c'"):
        load_files(model, WHOLE, keys=["c"])
    with pytest.raises(FileNotFoundError):
        load_files(model / "absent.safetensors", WHOLE)


def test_parts_of_f4(tmp_path):
    path = file_builder.write(tmp_path / "a.safetensors", {"a": raw("F4", (4, 8))})
    sharding = SingleDeviceSharding(jax.devices()[0])
    found = load_files(path, sharding, plan={"a": slice(1, 3)})["a"]
    assert np.array_equal(found, load_files(path, sharding)["a"][1:3])
    with pytest.raises(SafetensorError, match="`a`: a part of an F4 tensor must include"):
        load_files(path, sharding, plan={"a": (slice(None), slice(0, 4))})


def test_failed_reads(tmp_path):
    """The first error ends the load."""
    content = saved(tmp_path, {"a": arranged((1024, 1024))}).read_bytes()
    reader = FailingReader(content, OSError("the disk is gone"))
    with pytest.raises(SafetensorError, match=re.escape("memory://model")) as caught:
        load_files(reader, COLUMNS)
    assert "the disk is gone" in str(caught.value) + str(caught.value.__cause__)


def test_a_file_that_is_cut(tmp_path):
    path = saved(tmp_path, {"a": arranged((1024, 64))})

    with pytest.raises(SafetensorError):
        load_files([path, path], WHOLE)  # a name in two files
    content = path.read_bytes()
    path.write_bytes(content[:-100])
    with pytest.raises(SafetensorError):
        load_files(path, WHOLE)
