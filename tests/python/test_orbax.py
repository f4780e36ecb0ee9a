"""safetensors.plugins.orbax: a handler for Orbax, with Orbax itself."""

import asyncio
import inspect
import warnings

import numpy as np
import pytest

from support import children, jax_devices

jax = jax_devices.jax
with warnings.catch_warnings():
    warnings.simplefilter("ignore")  # its own, while it is imported
    import orbax.checkpoint.experimental.v1 as ocp
from jax.sharding import NamedSharding, PartitionSpec  # noqa: E402

from safetensors import SafetensorError  # noqa: E402
from safetensors.flax import save_file  # noqa: E402
from safetensors.plugins.orbax import SafetensorsHandler  # noqa: E402

pytestmark = pytest.mark.filterwarnings("ignore")  # Orbax's own

ARRAYS = {
    "a.kernel": np.arange(128, dtype=np.float32).reshape(16, 8),
    "b.kernel": np.arange(64, dtype=np.float32).reshape(8, 8).astype(jax.numpy.bfloat16),
    "b.bias": np.arange(8, dtype=np.int32),
}
METHODS = ["is_abstract_handleable", "is_handleable", "load", "metadata", "save"]


@pytest.fixture
def checkpoint(tmp_path):
    """A checkpoint of Orbax with one item, to which a model of two files is added."""
    path = tmp_path / "checkpoint"
    ocp.save_checkpointables(path, {"step": {"count": 7}})
    (path / "model").mkdir()
    arrays = {name: jax.numpy.asarray(array) for name, array in ARRAYS.items()}
    save_file(
        {"a.kernel": arrays.pop("a.kernel")}, path / "model" / "model-00001-of-00002.safetensors"
    )
    save_file(arrays, path / "model" / "model-00002-of-00002.safetensors")
    return path


@pytest.fixture
def context():
    """A context of Orbax in which the handler loads the item `model`."""
    made = ocp.Context()
    registry = ocp.handlers.local_registry()
    made.checkpointables.registry = registry.add(SafetensorsHandler, checkpointable_name="model")
    return made


def sharding():
    return NamedSharding(jax.make_mesh((8,), ("x",)), PartitionSpec("x"))


def test_it_has_the_methods_of_the_protocol():
    """With the parameters that Orbax passes, and no others that it has to."""
    names = [name for name in vars(ocp.handlers.CheckpointableHandler) if not name.startswith("_")]
    assert sorted(names) == METHODS
    for name in METHODS:
        theirs = getattr(ocp.handlers.CheckpointableHandler, name)
        ours = getattr(SafetensorsHandler, name)
        assert inspect.iscoroutinefunction(ours) == inspect.iscoroutinefunction(theirs)
        wanted = inspect.signature(theirs).parameters
        found = inspect.signature(ours).parameters
        assert [*found][: len(wanted)] == [*wanted]
        extra = [found[name] for name in found if name not in wanted]
        assert all(parameter.default is not parameter.empty for parameter in extra)


def test_a_model_beside_items_of_orbax(checkpoint, context):
    """Orbax loads the model by the handler, to shardings, and its own item by its own."""
    by_rows = sharding()
    abstract = {
        name: jax.ShapeDtypeStruct(array.shape, array.dtype, sharding=by_rows)
        for name, array in ARRAYS.items()
        if name != "b.kernel"
    }
    with context:
        loaded = ocp.load_checkpointables(checkpoint, {"model": abstract, "step": None})
    assert loaded["step"] == {"count": 7}
    assert loaded["model"].keys() == abstract.keys()
    for name, array in loaded["model"].items():
        assert array.sharding == by_rows
        assert array.dtype == ARRAYS[name].dtype
        assert np.array_equal(array, ARRAYS[name])


def test_without_abstract_arrays(checkpoint, context):
    """All arrays are loaded to the first device."""
    with context:
        loaded = ocp.load_checkpointables(checkpoint, {"model": None})["model"]
    assert loaded.keys() == ARRAYS.keys()
    for name, array in loaded.items():
        assert array.devices() == {jax.devices()[0]}
        assert array.tobytes() == ARRAYS[name].tobytes()


def test_a_folder_that_orbax_did_not_make(checkpoint, context, tmp_path):
    """The model's folder is an item of its parent."""
    alone = tmp_path / "alone"
    alone.mkdir()
    (checkpoint / "model").rename(alone / "model")
    abstract = {"b.bias": jax.ShapeDtypeStruct((8,), np.int32, sharding=sharding())}
    with context:
        loaded = ocp.load_checkpointables(alone, {"model": abstract})["model"]
    assert np.array_equal(loaded["b.bias"], ARRAYS["b.bias"])


def test_metadata(checkpoint, context):
    """Shapes and dtypes, of which abstract arrays are made."""
    with context:
        found = ocp.checkpointables_metadata(checkpoint).metadata["model"]
    assert {name: (each.shape, each.dtype) for name, each in found.items()} == {
        name: (array.shape, array.dtype) for name, array in ARRAYS.items()
    }


def test_saving_raises_with_advice(tmp_path, context):
    """And leaves no checkpoint."""
    with context, pytest.raises(NotImplementedError, match=r"safetensors\.flax"):
        ocp.save_checkpointables(tmp_path / "new", {"model": dict(ARRAYS)})
    assert not (tmp_path / "new").exists()


def test_errors(checkpoint, context):
    """Those of load_files."""
    wrong = {"b.bias": jax.ShapeDtypeStruct((9,), np.int32, sharding=sharding())}
    with context, pytest.raises(SafetensorError, match=r"b\.bias.*\[8\], not int32\[9\]"):
        ocp.load_checkpointables(checkpoint, {"model": wrong})


def test_what_it_handles():
    """Dicts of abstract arrays by name, for loading only."""
    handler = SafetensorsHandler()
    abstract = jax.ShapeDtypeStruct((8,), np.int32, sharding=sharding())
    assert handler.is_abstract_handleable({"a": abstract})
    assert not handler.is_abstract_handleable({"a": {"b": abstract}})
    assert not handler.is_abstract_handleable({"a": 1})
    assert not handler.is_abstract_handleable(abstract)
    assert not handler.is_handleable(dict(ARRAYS))
    with pytest.raises(NotImplementedError):
        asyncio.run(handler.save(None, {}))


def test_importing_the_handler_imports_neither_orbax_nor_jax():
    """It is a class of its own, which Orbax takes for its methods."""
    code = """
        import safetensors.plugins.orbax
        print({"orbax", "jax", "numpy"} & set(sys.modules))
    """
    assert children.run(code).strip() == "set()"
