"""Each public class pickles and copies, or raises one TypeError that says why not."""

import contextlib
import copy
import importlib
import inspect
import pickle

import numpy as np
import pytest

import safetensors
from safetensors import safe_create, safe_open
from safetensors.numpy import save_file, save_file_async
from support import children

MODULES = (
    *("safetensors", "safetensors.numpy", "safetensors.torch", "safetensors.plan"),
    *("safetensors.sums", "safetensors.delta", "safetensors.dcp", "safetensors.weights"),
    *("safetensors.signing", "safetensors.jax", "safetensors.flax", "safetensors.mlx"),
    *("safetensors.paddle", "safetensors.tensorflow"),
)


def public_objects():
    """Returns all objects of this package that its public modules name, as name and object."""
    for name in MODULES:
        with contextlib.suppress(ImportError):  # a framework that is not installed
            module = importlib.import_module(name)
            for each in module.__all__:
                found = getattr(module, each)
                if getattr(found, "__module__", "").partition(".")[0] == "safetensors":
                    yield f"{name}.{each}", found


def public_classes():
    return {each for _, each in public_objects() if inspect.isclass(each)}


@pytest.fixture
def objects(tmp_path):
    """Objects of all public classes, those that are pickled, and those that are not."""
    pytest.importorskip("torch")
    import torch

    from safetensors import dcp, delta, plan, signing, sums, weights

    path, other = tmp_path / "a.safetensors", tmp_path / "b.safetensors"
    save_file({"a": np.ones((4, 4), "f4")}, path, {"k": "v"}, sums=True)
    save_file({"a": np.zeros((4, 4), "f4")}, other)
    delta.diff(path, other, tmp_path / "a.patch")
    made = sums.read(tmp_path / "a.sums.json")
    resolved = plan.resolve(path, {"*": None})
    with (
        safe_open(path, "pt") as file,
        open(path, "rb") as opened,
        weights.open_weights(path) as model,
        delta.open_patch(tmp_path / "a.patch") as patch,
        file.prefetch() as loader,
    ):
        writer = safe_create(tmp_path / "c.safetensors")
        save = save_file_async({"a": np.ones(3)}, tmp_path / "d.safetensors")
        pickled = [
            file.get_tensor_meta("a"),
            safetensors.summary(path),
            resolved,
            *resolved.explain(),
            plan.Shard(0, 1, 2),
            made,
            *made.files.values(),
            *made.tensors.values(),
            patch["a"] if hasattr(patch, "__getitem__") else patch.entry("a"),
            model.config,
            dcp.StorageReader(tmp_path),
            dcp.StorageWriter(tmp_path),
            signing.Signed(key=tmp_path / "key.pem"),
            delta.Tracker({"a": torch.ones(3)}),
        ]
        refused = [
            file,
            safetensors._safe_open_handle(opened, "pt"),
            file.get_slice("a"),
            loader,
            iter(loader),
            safetensors.TensorSpec(dtype="float32", shape=[1], data_ptr=1, data_len=4),
            writer,
            save,
            patch,
            model,
            model["a"],
            model.metadata,
        ]
        yield pickled, refused
        writer.abort()
        save.result(60)


# Made by readers only, or by the user of the package.
_NO_OBJECT = {"QuantParams", "SchemeParams", "RopeScaling", "RangeReader"}


def test_every_public_class_is_here(objects):
    known = {type(each) for group in objects for each in group}
    left = {each for each in public_classes() - known if not issubclass(each, Exception)}
    assert {each.__name__ for each in left} == _NO_OBJECT


def test_functions_and_classes_pickle_by_their_names():
    """As multiprocessing sends them."""
    found = dict(public_objects())
    assert {"safetensors.serialize", "safetensors.numpy.save_file"} <= found.keys()
    for name, each in found.items():
        assert pickle.loads(pickle.dumps(each)) is each, name


def test_objects_that_are_pickled(objects):
    for each in objects[0]:
        copies = [pickle.loads(pickle.dumps(each)), copy.copy(each), copy.deepcopy(each)]
        for made in copies:
            assert type(made) is type(each)
            if type(each).__repr__ is not object.__repr__:
                assert repr(made) == repr(each)


def test_objects_that_are_not_pickled(objects):
    for each in objects[1]:
        for call in (pickle.dumps, copy.copy, copy.deepcopy):
            with pytest.raises(
                TypeError, match=r"^cannot pickle or copy 'safetensors.*' object: .*\. \w"
            ):
                call(each)


def test_classes_are_found_by_their_names():
    """Without an import: cloudpickle ships a copy of a class whose module is not in sys.modules."""
    script = """
        import safetensors, safetensors.numpy
        from safetensors import SafetensorError, safe_open
        try:
            safe_open("/absent", "np")
        except OSError as error:
            found = [SafetensorError, type(error)]
        try:
            safetensors.numpy.load(b"")
        except SafetensorError as error:
            found.append(type(error))
        for each in [*found, safetensors.TensorMeta, safetensors.safe_open]:
            module = sys.modules[each.__module__]
            assert getattr(module, each.__qualname__) is each, each
    """
    children.run(script)


def test_a_function_that_cloudpickle_ships_catches(tmp_path):
    pytest.importorskip("cloudpickle")
    (tmp_path / "bad.safetensors").write_bytes(b"abc")
    script = """
        import subprocess, cloudpickle
        from safetensors import SafetensorError
        from safetensors.numpy import load_file
        path = sys.argv[1]
        def work():
            try:
                load_file(path)
            except SafetensorError:
                return "caught"
        work.__module__ = "__main__"
        load = "import pickle, sys; print(pickle.load(sys.stdin.buffer)())"
        data = cloudpickle.dumps(work)
        done = subprocess.run([sys.executable, "-c", load], input=data, capture_output=True)
        print(done.stdout.decode(), done.stderr.decode())
    """
    assert children.run(script, tmp_path / "bad.safetensors").split() == ["caught"]
