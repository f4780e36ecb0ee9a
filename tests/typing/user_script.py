"""A user's script, which strict type checkers must accept: every public call, with every kind of
argument that the documentation allows. `.ci/run types` checks it; nothing runs it."""

import concurrent.futures
import datetime
import io
import mmap
import os
import pathlib

import numpy as np
import torch
import torch.distributed as dist
from typing_extensions import assert_type

import safetensors
import safetensors.dcp
import safetensors.numpy
import safetensors.torch
from safetensors import (
    IntegrityError,
    SafetensorError,
    TensorSpec,
    delta,
    deserialize,
    safe_open,
    serialize,
)
from safetensors.plan import SKIP, FileReads, Plan, Shard, experts, resolve
from safetensors.signing import Signed
from safetensors.torch import load_files, load_into, save_files, stream_files
from safetensors.weights import WeightsError, detect_format, open_weights

TEXT = "model.safetensors"
PATHS: list[pathlib.Path] = [pathlib.Path(TEXT)]


class Folder:
    """Some object with a path."""

    def __fspath__(self) -> bytes:
        return b"folder"


class Member:
    """A file in memory, as a RangeReader."""

    def __init__(self, name: str, data: bytes) -> None:
        self.name, self.data = name, data

    def open(self, nbytes: int) -> tuple[int, bytes]:
        return len(self.data), self.data[:nbytes]

    def read(self, offset: int, nbytes: int) -> memoryview:
        return memoryview(self.data)[offset : offset + nbytes]


def from_elsewhere(data: bytes) -> None:
    reader: safetensors.RangeReader = Member("model", data)
    safe_open(reader, framework="np").close()
    safe_open("s3://bucket/model", "pt", storage_options={"anonymous": True}).close()
    load_files([Member("a", data), "https://host/b.safetensors"], storage_options={"tries": 2})
    safetensors.torch.load_file("hf://org/repo/model.safetensors", storage_options={"token": "t"})
    safetensors.numpy.load_file(Member("a", data))


def verified() -> None:
    try:
        with safe_open(TEXT, "pt", verify=True) as f:
            f.get_tensor("a")
        load_files(PATHS, verify="sha256")
        load_into({}, TEXT, verify=pathlib.Path("model.sums.json"))
        for _ in stream_files(TEXT, verify={"a": "sha256:00"}):
            pass
        safe_open(TEXT, "pt", expected_hashes={"model.safetensors": "00"})
        load_into({}, TEXT, expected_hashes={TEXT: "00"})
        safetensors.torch.load_file(TEXT, verify=True)
        safetensors.numpy.load_file(TEXT, verify=b"model.sums.json")
    except IntegrityError as error:
        tensor, file, begin, end, _, _ = error.damaged[0]
        assert_type((tensor, file, begin, end), tuple[str, str, int, int])
        assert_type(error.count, int)


def planning(module: torch.nn.Module) -> None:
    rules = {
        "*.qkv": Shard(0, 1, 8, blocks=(4096, 1024, 1024)),
        "*.gate_up": Shard(-2, 1, 8, blocks=2),
        "a": [slice(0, 2), 5],
        "b": lambda name, meta: slice(0, meta.shape[0] // 2),
        "*.inv_freq": SKIP,
        "*": None,
    }
    plan = resolve(PATHS, rules, keys=experts(64, 1, 8, placement="round_robin", scales="drop"))
    assert_type(plan, Plan)
    assert_type(plan.explain(gap_bytes=1 << 20), list[FileReads])
    load_files(PATHS, plan=plan)
    load_files(PATHS, plan=rules, keys=lambda name: not name.startswith("vision."))
    load_into(module, PATHS, parts=rules)
    for name, tensor in stream_files(PATHS, plan=plan):
        print(name, tensor.shape)
    load_files(PATHS, plan=rules, group=dist.group.WORLD, timeout=datetime.timedelta(minutes=1))
    load_into(module, PATHS, group=dist.distributed_c10d._get_default_group())
    load_files(PATHS, plan=safetensors.torch.plan_tp({"layers.*.q_proj": "colwise"}, 1, 8))
    with safe_open(TEXT, "np") as file:
        print(file.get_slice("a")[[slice(0, 2), 5], 3], file.get_slice("a")[Shard(0, 0, 2)])


def signed() -> None:
    Signed(key=TEXT)
    Signed(b"model.sums.sig", key=pathlib.Path("public.pem"))
    Signed(PATHS[0], identity="a@b", issuer="https://host")
    Signed(certificate_chain=TEXT)
    assert_type(Signed(certificate_chain=PATHS), Signed)
    load_files(PATHS, verify=Signed(key=TEXT))


def opening(data: bytearray) -> None:
    for path in (TEXT, b"model.safetensors", pathlib.Path(TEXT), Folder()):
        with safe_open(path, framework="pt") as file:
            assert_type(file.keys(), list[str])
    file = safe_open(TEXT, "np", backend="pread")
    for device in ("cpu", 0, torch.device("cpu"), None):
        safe_open(filename=TEXT, framework="pt", device=device)
    assert_type(file.metadata(), dict[str, str] | None)
    assert_type(file.offset_keys(), list[str])
    assert_type(len(file), int)
    assert_type("a" in file, bool)
    assert_type(list(file), list[str])
    part = file.get_slice("a")
    assert_type(part.get_shape(), list[int])
    assert_type(part.get_dtype(), str)
    print(part[0], part[1:2, ..., None], part[[0, 1]], part[np.int64(1)])
    meta = file.get_tensor_meta("a")
    assert_type(meta.data_offsets, tuple[int, int])
    with file.prefetch({"a": slice(0, 1), "b": None}, device=torch.device("cpu")) as loader:
        print(loader.take("a"), list(loader), loader.names(), len(loader))
    print(file.get_tensor("a"), file.get_tensors())
    file.close()
    for buffer in (b"", data, memoryview(data), mmap.mmap(-1, 10), np.zeros(9, np.uint8).data):
        deserialize(buffer)
        safetensors.torch.load(buffer)
        safetensors.numpy.load(buffer)
    assert_type(safetensors.io_config(threads=2)["threads"], int)
    assert_type(safetensors.release_staging(), int)
    assert_type(safetensors.__version__, str)


def of_torch(model: torch.nn.Module) -> None:
    tensors = {"a": torch.zeros(3)}
    assert_type(safetensors.torch.save(tensors, {"k": "v"}), bytes)
    for path in (TEXT, b"model.safetensors", pathlib.Path(TEXT)):
        safetensors.torch.save_file(tensors, path, metadata={"k": "v"}, fsync=True)
        safetensors.torch.save_model(model, path, fsync=True, progress=progress)
        safetensors.torch.load_model(model, path, strict=False)
        for device in ("cpu", 0, torch.device("cpu"), None):
            loaded = safetensors.torch.load_file(path, device=device, backend="auto")
            assert_type(loaded, dict[str, torch.Tensor])
    safetensors.torch.save_file(model.state_dict(), TEXT)
    safetensors.torch.load_model(model, TEXT, device=torch.device("cpu"))


def progress(done: int, total: int) -> None:
    print(done, total)


def of_many_files(model: torch.nn.Module) -> None:
    for files in (TEXT, b"folder", PATHS, [TEXT], (TEXT, b"other"), pathlib.Path(TEXT)):
        assert_type(load_files(files), dict[str, torch.Tensor])
    for device in ("cuda:0", 0, torch.device("cpu"), None):
        load_files(TEXT, device)
        for name, tensor in stream_files(TEXT, device, budget_bytes=1 << 30):
            print(name, tensor.shape)
    load_files(TEXT, {"a": "cpu", "layers.*": 0, "*": torch.device("cpu")}, progress=progress)
    load_files(TEXT, keys=["a"], backend="pread", budget_bytes=1 << 30)
    load_files(TEXT, plan={"a": slice(0, 2), "b": (slice(None), 3), "c": None})
    missing, unexpected = load_into(model.state_dict(), TEXT, strict=False, progress=print)
    assert_type(missing, list[str])
    assert_type(unexpected, list[str])
    load_into(dict(model.named_parameters()), TEXT)
    load_into(model, TEXT)


def of_models(model: torch.nn.Module) -> None:
    for folder in (TEXT, b"folder", pathlib.Path(TEXT), Folder()):
        assert_type(save_files(model.state_dict(), folder, {"k": "v"}), list[str])
        assert_type(safetensors.recover(folder), str)
    save_files({}, TEXT, max_shard_size=1 << 30, name="x", fsync=True, progress=progress)
    arrays = {"a": np.zeros(3)}
    assert_type(safetensors.numpy.save_files(arrays, TEXT, max_shard_size="2GiB"), list[str])
    mapping = {"a": 1}
    writer = safetensors.dcp.StorageWriter(Folder(), name="x", fqn_to_index_mapping=mapping)
    safetensors.dcp.StorageReader(Folder()).reset("s3://bucket/model/")
    safetensors.dcp.StorageReader(["a.safetensors", b"b"], storage_options={"tries": 1})
    assert_type(writer.validate_checkpoint_id(TEXT), bool)
    assert_type(safetensors.dcp.consolidate(b"folder", TEXT, max_shard_size=1 << 30), list[str])


def writing(tensor: torch.Tensor, array: np.ndarray, model: torch.nn.Module) -> None:
    specs = safetensors.specs_of(model)
    assert_type(specs["a"].dtype, str)
    assert_type(specs["a"].shape, tuple[int, ...])
    for target in (TEXT, b"file", pathlib.Path(TEXT), Folder(), 3, io.BytesIO()):
        with safetensors.safe_create(target, specs, metadata={"k": "v"}, fsync=True) as writer:
            assert_type(writer, safetensors.SafeWriter)
    safetensors.safe_create(lambda offset, view: None, {"a": ("F32", (2, 3))})
    writer = safetensors.safe_create(TEXT, {"a": tensor}, max_shard_size="5GB", progress=progress)
    writer.write("a", tensor)
    writer["b"] = array
    writer.write_slice("a", (slice(0, 2), ...), array)
    with writer.open("a") as stream:
        stream.write(b"123")
    with safe_open(TEXT, "pt") as file:
        writer.copy(file)
        writer.copy(file, "a", to="b")
    assert_type(writer.missing, list[str])
    assert_type(writer.nbytes_written, int)
    writer.close()
    writer.abort()


def in_the_background(tensor: torch.Tensor, array: np.ndarray) -> None:
    for path in (TEXT, b"model.safetensors", pathlib.Path(TEXT), Folder()):
        future = safetensors.torch.save_file_async({"a": tensor}, path, {"k": "v"}, fsync=True)
        other = safetensors.numpy.save_file_async({"a": array}, path, budget_bytes=1 << 30)
        both: list[concurrent.futures.Future[None]] = [future, other]
        concurrent.futures.wait(both)
        future.result(timeout=1.5)
        assert_type(future.nbytes_done, int)
        assert_type(future.cancel(), bool)


def updating(tensor: torch.Tensor, array: np.ndarray) -> None:
    for path in (TEXT, b"model.safetensors", pathlib.Path(TEXT), Folder()):
        safetensors.update_file(path, {"a": tensor, "b": array, "c": b"123"})
    safetensors.update_file(TEXT, {"a": tensor}, add=True, remove=["b"], fsync=True)
    safetensors.update_file(TEXT, {}, remove={"b"}, metadata={"k": "v"})
    safetensors.update_file(TEXT, {}, metadata=None)
    safetensors.update_file(TEXT, {"a": tensor}, in_place=True, shared=True)


def of_patches(model: torch.nn.Module, array: np.ndarray) -> None:
    patch = delta.diff(TEXT, {"a": array}, pathlib.Path("a.safetensors-patch"), digest="sha256")
    assert_type(patch, delta.Patch)
    delta.diff(PATHS, b"folder", values="set", labels=("0", None)).close()
    tracker = delta.Tracker(model.state_dict(), label="0")
    with tracker.diff(model.state_dict(), "1.safetensors-patch", label="1") as step:
        assert_type(step.names, list[str])
        assert_type(step.entry("a").shape, tuple[int, ...] | None)
        indices, values = step.changed("a")
        print(indices.dtype, values is not None and values.dtype, step.base_label, step.metadata)
    try:
        delta.apply(model.state_dict(), [patch, "2.safetensors-patch"], verify="full")
        delta.apply({"a": array}, delta.open_patch(TEXT), already="skip")
        delta.apply_file(TEXT, "a", Folder(), verify="whole", fsync=True, variant="fp16")
        delta.apply_file(PATHS, [pathlib.Path("a"), patch], b"out", already="skip")
        delta.apply_file(TEXT, patch, in_place=True, shared=True)
    except (delta.WrongBaseError, delta.AlreadyAppliedError) as error:
        print(error.code, error.path, error.subject)
    except delta.PatchError as error:
        print(error)


def of_numpy() -> None:
    arrays = {"a": np.zeros(3), "b": np.arange(3)}
    assert_type(safetensors.numpy.save(arrays), bytes)
    safetensors.numpy.save_file({"scalar": np.float32(1), "array": np.zeros(2)}, b"path")
    safetensors.numpy.save_file(arrays, TEXT, {"k": "v"}, fsync=True)
    safetensors.numpy.save_file(arrays, TEXT, sums=True)
    safetensors.numpy.save_files(arrays, TEXT, sums="sha256")
    safetensors.numpy.save_file(arrays, TEXT, sums=["xxh3-128", "sha256"])
    loaded = safetensors.numpy.load_file(os.fsencode(TEXT), backend="pread")
    print(loaded["a"].dtype)


def of_specs(array: np.ndarray) -> None:
    spec = TensorSpec(
        dtype="float32", shape=array.shape, data_ptr=array.ctypes.data, data_len=array.nbytes
    )
    assert_type(serialize({"a": spec}, {"k": "v"}), bytes)
    safetensors.serialize_file({"a": spec}, pathlib.Path(TEXT), fsync=True)
    for name, entry in deserialize(io.BytesIO().getbuffer()):
        assert_type(entry["data"], bytearray)
        print(name, entry["shape"], entry["dtype"])


def of_weights() -> None:
    try:
        print(detect_format(pathlib.Path(TEXT)))
        with open_weights("model") as weights:
            print(weights.config.dim, weights.format, list(weights))
            assert_type(weights.parameters + weights.nbytes, int)
            assert_type(safetensors.summary(weights).dtypes, dict[str, int])
            tensor = weights["output.weight"]
            print(tensor.shape, tensor.numpy(rows=slice(0, 8)), tensor.packed())
    except (WeightsError, SafetensorError) as error:
        print(error)
