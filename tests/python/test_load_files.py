"""load_files: which tensors, and to which device. test_shards tests which files."""

import os
import re

import pytest
import torch

from safetensors import SafetensorError, _core
from safetensors.torch import load_file, load_files, load_into, stream_files
from support import sharded
from support.fake_device import FakeDevice
from support.threads import together

BACKENDS = sharded.BACKENDS


@pytest.fixture
def loads(monkeypatch):
    """A log of the engine's loads: names by device."""
    asked = []
    engine = _core._load_groups

    def record(groups, progress):
        asked.append({device: [name for _, name, _, _ in requests] for device, requests in groups})
        return engine(groups, progress)

    monkeypatch.setattr(_core, "_load_groups", record)
    return asked


def test_one_file_is_as_load_file(model):
    """Values and order are those of load_file."""
    for path in sharded.shards_of(model):
        found, wanted = load_files(path), load_file(path)
        sharded.check(found, wanted)
        assert list(found) == list(wanted)


@pytest.mark.parametrize("backend", BACKENDS)
def test_keys(model, tensors, backend):
    """keys may be any iterable of names; an empty one loads nothing."""
    some = list(tensors)[::3]
    wanted = {name: tensors[name] for name in some}
    sharded.check(load_files(model, keys=iter(some), backend=backend), wanted)
    assert load_files(model, keys=[], backend=backend) == {}


def test_bad_keys_and_plans(model, tensors):
    """Unknown names, a single name, and both keys and plan are errors."""
    for asked in ({"keys": ["layers.0.weight", "nowhere"]}, {"plan": {"nowhere": None}}):
        with pytest.raises(SafetensorError, match="do not contain tensor 'nowhere'"):
            load_files(model, **asked)
    with pytest.raises(TypeError, match="put it into a list"):
        load_files(model, keys="layers.0.weight")
    with pytest.raises(ValueError, match="keys and plan"):
        load_files(model, keys=[], plan={})


@pytest.mark.parametrize("backend", BACKENDS)
def test_plan(model, tensors, backend):
    """Parts equal slices of the tensors, and only planned tensors are loaded."""
    plan = {
        "layers.3.weight": slice(1, 3),
        "layers.4.weight": (1, slice(None), slice(0, 5, 2)),
        "layers.5.weight": slice(990, None),
        "layers.2.weight": -1,
        "layers.8.weight": None,
        "layers.9.weight": slice(2, 2),
    }
    wanted = {n: tensors[n] if part is None else tensors[n][part] for n, part in plan.items()}
    sharded.check(load_files(model, plan=plan, backend=backend), wanted)


@pytest.mark.parametrize(
    ("part", "error"),
    [(7, IndexError), (slice(None, None, -1), ValueError), ((0, 0, 0), IndexError)],
)
def test_bad_parts_name_their_tensor(model, part, error):
    """The error comes before anything is loaded."""
    with pytest.raises(error, match=r"layers\.3\.weight"):
        load_files(model, plan={"layers.3.weight": part}, backend="pread")


def mapped_at(address):
    """Returns the line of /proc/self/maps with an address."""
    with open("/proc/self/maps") as lines:
        for line in lines:
            begin, end = (int(part, 16) for part in line.split()[0].split("-"))
            if begin <= address < end:
                return line
    return ""


@pytest.mark.skipif(not os.path.exists("/proc/self/maps"), reason="needs /proc")
@pytest.mark.parametrize("asked", [{}, {"keys": [f"layers.{i}.weight" for i in (3, 5)]}])
def test_mapped_tensors_are_views(model, loads, asked):
    """mmap copies nothing; the other backends copy everything."""
    for backend, is_mapped in zip(BACKENDS, [True, True, False, False], strict=True):
        tensors = load_files(model, backend=backend, **asked)
        for name in ("layers.3.weight", "layers.5.weight"):
            place = mapped_at(tensors[name].data_ptr())
            assert (".safetensors" in place) == is_mapped
    assert [list(groups) for groups in loads if groups] == [["cpu"], ["cpu"]]


def test_meta(model, tensors):
    """Tensors on the meta device have types and shapes without memory."""
    for name, tensor in load_files(model, "meta", plan={"layers.5.weight": slice(3)}).items():
        assert tensor.is_meta
        assert tensor.shape == (3, 7)
        assert tensor.dtype == tensors[name].dtype


def test_devices_by_name_and_pattern(model, tensors, loads):
    """Names take precedence, then patterns in order; all devices load at once."""
    places = {"layers.1?.weight": "cpu", "layers.1*": "meta", "layers.12.weight": "meta", "*": 0}
    places["*"] = torch.device("cpu")
    found = load_files(model, places, backend="pread")
    for name, tensor in found.items():
        number = int(name.split(".")[1])
        is_meta = number in (1, 12)
        assert tensor.is_meta == is_meta, name
        assert is_meta or sharded.same(tensor, tensors[name])
    assert [sorted(groups) for groups in loads] == [["cpu", "meta"]]
    assert list(found) == list(load_files(model))


def test_a_tensor_without_a_device(model):
    """A tensor that matches nothing, or an invalid device, is an error."""
    with pytest.raises(SafetensorError, match=r"nowhere to put tensor 'layers\.0\.weight'"):
        load_files(model, {"layers.1*": "cpu", "": "cpu"}, keys=["layers.0.weight"])
    for bad in ("", "nonsense", "cpu:1", True, 1.5):
        with pytest.raises(SafetensorError, match="is invalid"):
            load_files(model, bad)
        with pytest.raises(SafetensorError, match="is invalid"):
            load_files(model, {"*": bad})


def test_no_device_is_the_cpu(model, tensors):
    """None means the CPU, as in load_file."""
    sharded.check(load_files(model, None), tensors)
    sharded.check(load_files(model, {"*": None}), tensors)
    sharded.check(dict(stream_files(model, None)), tensors)


def test_unknown_backend(model):
    """The error is safe_open's."""
    with pytest.raises(SafetensorError, match='backend "x" is invalid'):
        load_files(model, backend="x")


def test_budget(model, loads):
    """The budget holds for each device, and is checked before anything is loaded."""
    total = sum(tensor.nbytes for tensor in load_file(sharded.shards_of(model)[0]).values())
    first = sharded.shards_of(model)[0]
    load_files(first, budget_bytes=total, backend="pread")
    del loads[:]
    with pytest.raises(SafetensorError, match=f"need {total} bytes on cpu.*allows {total - 1}"):
        load_files(first, budget_bytes=total - 1, backend="pread")
    assert loads == []
    name = max(load_file(first).items(), key=lambda item: item[1].nbytes)[0]
    load_files(first, {name: "meta", "*": "cpu"}, budget_bytes=total - 1, backend="pread")
    plan = {name: slice(0, 1)}
    load_files(first, plan=plan, budget_bytes=7 * 8, backend="pread")


def check_progress(told, tensors):
    """Checks that it grew, and reported the total once, at the end."""
    total = sum(tensor.nbytes for tensor in tensors.values())
    assert told[-1] == (total, total)
    assert told == sorted(set(told))


@pytest.mark.parametrize("backend", ["auto", "mmap", "pread"])
@pytest.mark.parametrize("keys", [None, ["layers.5.weight"], []])
def test_progress_of_what_is_not_read(model, backend, keys):
    """Tensors on the meta device read nothing, so no bytes are reported."""
    told = []
    load_files(model, "meta", backend=backend, keys=keys, progress=lambda *args: told.append(args))
    assert told == [(0, 0)]


def test_tensors_of_types_that_torch_lacks(tmp_path):
    """The error names the tensor if tensors are converted one by one."""
    header = b'{"odd":{"dtype":"F6_E2M3","shape":[4],"data_offsets":[0,3]}}'
    path = tmp_path / "a.safetensors"
    path.write_bytes(len(header).to_bytes(8, "little") + header + bytes(3))
    errors = []
    for call in (
        lambda: load_files(path),
        lambda: load_files(path, backend="pread"),
        lambda: load_files(path, backend="pread", plan={"odd": slice(0, 2)}),
        lambda: load_files(path, device="meta"),
        lambda: list(stream_files(path, backend="pread")),
        lambda: load_into({"odd": torch.zeros(3, dtype=torch.uint8)}, path),
    ):
        with pytest.raises(SafetensorError, match="Dtype not understood: F6_E2M3") as caught:
            call()
        errors.append(caught.value)
    for error in errors:
        assert str(error).endswith(f" (in {path})")
        assert re.search(r"tensor (odd:|`odd`)", str(error))
        assert (error.code, error.path, error.subject) == ("unsupported_dtype", str(path), "odd")


def test_threads(model, tensors):
    """Several threads load at once."""

    def load(backend):
        for _ in range(5):
            sharded.check(load_files(model, backend=backend), tensors)

    together(load, BACKENDS)


def test_cuda(cuda, model, tensors):
    """The engine loads with any backend, also parts and patterns."""
    for backend in BACKENDS:
        sharded.check(load_files(model, "cuda:1", backend=backend), tensors)
        sharded.check(dict(stream_files(model, "cuda:1", backend=backend)), tensors)
    assert {device for _, _, device in cuda.made} == {"cuda:1"}
    del cuda.made[:]
    plan = {"layers.5.weight": slice(10, 30), "layers.3.weight": None}
    places = {"layers.5.*": "cuda:1", "*": torch.device("cuda")}
    found = load_files(model, places, plan=plan)
    wanted = {name: tensors[name][part or slice(None)] for name, part in plan.items()}
    sharded.check(found, wanted)
    assert sorted(device for _, _, device in cuda.made) == ["cuda:0", "cuda:1"]


def test_cuda_of_some_on_the_cpu(cuda, model, tensors):
    """Progress includes the bytes of both."""
    told = []
    places = {"layers.5.weight": "cpu", "*": "cuda"}
    found = load_files(model, places, progress=lambda *args: told.append(args))
    sharded.check(found, tensors)
    assert len(cuda.made) == len(tensors) - 1
    check_progress(told, tensors)


def test_devices_that_load_side_by_side(cuda, model, tensors):
    """Two CUDA devices and the CPU load together and share one progress count."""
    places = {"layers.1*": "cuda:1", "layers.2.*": "cpu", "*": "cuda"}
    told = []
    found = load_files(model, places, backend="pread", progress=lambda *args: told.append(args))
    sharded.check(found, tensors)
    check_progress(told, tensors)


def test_a_device_that_fails_beside_others(cuda, model, tensors):
    """One error is raised, and the next load works."""
    places = {"layers.1*": "cuda:1", "layers.2.*": "cpu", "*": "cuda"}
    cuda.fault("cuMemcpyHtoDAsync_v2", 1, 2)
    with pytest.raises(SafetensorError, match=r"\(2\) in cuMemcpyHtoDAsync"):
        load_files(model, places, backend="pread")
    cuda.clear()
    sharded.check(load_files(model, places, backend="pread"), tensors)


def test_devices_with_and_without_an_engine(model, tensors, monkeypatch):
    """Devices without an engine follow one after the other; progress continues."""
    fake = FakeDevice(monkeypatch)
    places = {"layers.1*": "xpu:0", "layers.2.*": "xpu:1", "*": "cpu"}
    told = []
    found = load_files(model, places, backend="pread", progress=lambda *args: told.append(args))
    sharded.check(found, tensors)
    assert set(fake.made) == {"xpu:0", "xpu:1"}
    check_progress(told, tensors)
    assert len(told) > 2


@pytest.mark.parametrize("device", ["xpu:0", "cuda:0"])
def test_devices_without_an_engine(model, tensors, device, monkeypatch):
    """torch copies, also to CUDA without a driver."""
    if device == "cuda:0" and _core._has_cuda_driver():
        pytest.skip("CUDA has an engine here")
    fake = FakeDevice(monkeypatch)
    told = []
    found = load_files(model, device, progress=lambda *args: told.append(args))
    sharded.check(found, tensors)
    assert set(fake.made) == {device}
    check_progress(told, tensors)
