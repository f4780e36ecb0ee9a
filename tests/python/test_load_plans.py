"""Plans in load_files, stream_files and load_into."""

import sys

import pytest
import torch

from safetensors import SafetensorError, _core
from safetensors._regions import SelectedPart
from safetensors._torch.dtypes import form_of
from safetensors._torch.pieces import pieces_of
from safetensors.plan import SKIP, Shard, experts, resolve
from safetensors.torch import load_files, save_file, stream_files
from support import memory, plan_cases, sharded
from support.fake_device import FakeDevice

TENSORS = plan_cases.TENSORS | {
    "none": torch.empty(0, 4),
    "whole": torch.arange(8, dtype=torch.bfloat16).reshape(2, 4),
    "other": torch.ones(3),
}
# One of them by a pattern.
RULES = {("q*" if name == "qkv" else name): rule for name, rule in plan_cases.RULES.items()} | {
    "none": Shard(1, 0, 2),
    "wh*": lambda name, meta: Shard(-1, 1, meta.shape[1]),
    "other": SKIP,
}
PARTS = plan_cases.PARTS | {
    "none": TENSORS["none"][:, :2],
    "whole": TENSORS["whole"][:, 1:2],
}

F4 = getattr(torch, "float4_e2m1fn_x2", None)


@pytest.fixture
def files(tmp_path):
    sharded.write(tmp_path, TENSORS)
    return tmp_path


@pytest.mark.parametrize("backend", sharded.BACKENDS)
def test_rules(files, backend):
    found = load_files(files, plan=RULES, backend=backend)
    sharded.check(found, PARTS)
    plan = resolve(files, RULES)
    sharded.check(load_files(files, plan=plan, backend=backend), PARTS)
    assert list(found) == list(plan)
    sharded.check(dict(stream_files(files, plan=plan, backend=backend)), PARTS)
    sharded.check(dict(stream_files(files, plan=RULES, backend=backend, budget_bytes=1)), PARTS)


def test_other_devices(files, monkeypatch):
    """Devices that torch copies to get the same parts."""
    FakeDevice(monkeypatch)
    sharded.check(load_files(files, "xpu:0", plan=RULES), PARTS)
    sharded.check(dict(stream_files(files, "xpu:0", plan=RULES, budget_bytes=40)), PARTS)


@pytest.mark.parametrize("limit", [4, 20, 24, 100, 480])
@pytest.mark.parametrize(
    "part", [None, (..., slice(1, 4)), (2, ...), (slice(0, 4, 2), 5), (None, slice(1, 3))], ids=repr
)
def test_pieces_for_a_staging_slot(part, limit):
    """They have the elements of the part in their order, and fit; also with an ellipsis."""
    values = torch.arange(120, dtype=torch.int32).reshape(4, 6, 5)
    wanted = (values if part is None else values[part]).flatten()
    meta = _core._make_meta("I32", values.shape, (0, values.nbytes))
    pieces = list(pieces_of(meta, part, wanted.nbytes, limit))
    found = [(values if index is None else values[index]).flatten() for index, _ in pieces]
    assert [each.nbytes for each in found] == [nbytes for _, nbytes in pieces]
    assert max(nbytes for _, nbytes in pieces) <= limit
    assert torch.equal(torch.cat(found), wanted)


def test_cuda_devices(cuda, files):
    sharded.check(load_files(files, "cuda:0", plan=RULES), PARTS)
    sharded.check(dict(stream_files(files, "cuda:0", plan=RULES)), PARTS)


def test_functions_as_keys(files):
    def is_short(name):
        return len(name) == 5

    names = {"other", "whole"}
    assert set(load_files(files, keys=is_short)) == names
    assert set(dict(stream_files(files, keys=is_short))) == names
    found = load_files(files, plan={"*": slice(0, 1)}, keys=is_short)
    assert {name: len(tensor) for name, tensor in found.items()} == dict.fromkeys(names, 1)
    assert set(dict(stream_files(files, plan=RULES, keys=is_short))) == {"whole"}
    for load in (load_files, stream_files):
        with pytest.raises(ValueError, match="keys and plan"):
            dict(load(files, plan=RULES, keys=["rows"]))
        with pytest.raises(TypeError, match="keys is a str"):
            dict(load(files, keys="rows"))


def test_bad_plans_load_nothing(files):
    for load in (load_files, stream_files):
        with pytest.raises(SafetensorError, match=r"fits the pattern 'row\?s'; .*`rows`"):
            load(files, plan=RULES | {"row?s": None})
        with pytest.raises(ValueError, match=r"loading tensor rows: .*add up to 4.*has 10"):
            load(files, plan={"rows": Shard(0, 0, 2, blocks=(2, 2))})
        with pytest.raises(IndexError, match="loading tensor vector: index 7 is out of bounds"):
            load(files, plan={"vector": [7]})


@pytest.mark.parametrize("backend", sharded.BACKENDS)
@pytest.mark.parametrize("part", [torch.tensor([0, 1]), torch.ones(7) > 0, torch.tensor(True), "a"])
def test_arrays_and_masks_are_no_parts(files, backend, part):
    """Of any backend: with pages of a file, torch could index the whole tensor."""
    with pytest.raises(TypeError, match="loading tensor vector: the index of a part consists of"):
        load_files(files, plan={"vector": part}, backend=backend)


@pytest.mark.skipif(F4 is None, reason="this torch has no F4")
@pytest.mark.parametrize("backend", sharded.BACKENDS)
def test_packed_elements(tmp_path, backend):
    """Of F4, parts are counted in the file's elements, of which torch's hold two."""
    bits = torch.arange(16, dtype=torch.uint8).reshape(4, 4)
    save_file({"a": bits.view(F4)}, tmp_path / "a.safetensors")
    for part in (slice(1, 3), (slice(1, 3), slice(0, 8)), ([1, 2], ...)):
        found = load_files(tmp_path, plan={"a": part}, backend=backend)["a"]
        assert torch.equal(found.view(torch.uint8), bits[1:3])
    for part in ((..., slice(0, 4)), (0, slice(4, None))):
        with pytest.raises(SafetensorError, match="a part of an F4 tensor must include the whole"):
            load_files(tmp_path, plan={"a": part}, backend=backend)


@pytest.mark.skipif(F4 is None, reason="this torch has no F4")
@pytest.mark.parametrize(
    ("shape", "part"), [((4, 1), (slice(None), 0)), ((4, 3), 1), ((4, 2), (..., None)), ((), None)]
)
def test_packed_elements_that_torch_has_not(shape, part):
    """Whose last axis is odd, also where the part has no such axis."""
    meta = _core._make_meta("F4", shape, (0, 8))
    selected = part if part is None else SelectedPart(part, shape)
    with pytest.raises(SafetensorError, match="the last dim be divisible by 2"):
        form_of(meta, selected)


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc/self/io")
@pytest.mark.parametrize("kind", ["rows", "fused", "experts"])
def test_little_more_than_the_share_is_read(tmp_path, kind):
    """All ranks of 8 together read each byte once."""
    shape = (8 * 3 * 8, 16384)
    tensors = {"a": torch.zeros(shape, dtype=torch.int32)}
    if kind == "experts":
        tensors = {f"m.experts.{i}.a.weight": torch.zeros(24, 16384) for i in range(8)}
    path = tmp_path / "a.safetensors"
    save_file(tensors, path)
    for rank in range(8):
        options = {
            "rows": {"plan": {"*": Shard(0, rank, 8)}},
            "fused": {"plan": {"*": Shard(0, rank, 8, blocks=3)}},
            "experts": {"keys": experts(8, rank, 8)},
        }[kind]
        before = memory.bytes_read()
        found = load_files(path, backend="pread", **options)
        count = memory.bytes_read() - before
        nbytes = sum(tensor.nbytes for tensor in found.values())
        assert nbytes == path.stat().st_size // (1 << 20) * (1 << 20) // 8
        assert nbytes <= count <= 1.05 * nbytes
