"""load_into: parts of the files' tensors, and destinations that are views."""

import pytest
import torch

from safetensors import SafetensorError
from safetensors.plan import SKIP, Shard
from safetensors.torch import load_into, save_file
from support import sharded
from support.fake_device import FakeDevice
from support.plan_cases import PARTS, RULES, TENSORS


@pytest.fixture
def files(tmp_path):
    sharded.write(tmp_path, TENSORS)
    return tmp_path


def strided(tensor):
    """Returns views with the tensor's shape in larger memory, and that memory."""
    base = torch.zeros([size + 3 for size in tensor.shape], dtype=tensor.dtype)
    yield base[tuple(slice(1, 1 + size) for size in tensor.shape)], base
    base = torch.zeros([2 * size for size in tensor.shape], dtype=tensor.dtype)
    yield base[tuple(slice(0, None, 2) for _ in tensor.shape)], base
    base = torch.zeros(tensor.shape[::-1], dtype=tensor.dtype)
    yield base.permute([*reversed(range(tensor.ndim))]), base


@pytest.mark.parametrize("where", ["cpu", "cuda", "other"])
def test_views_of_larger_tensors(files, where, request, monkeypatch):
    """Each kind of view gets the part; the memory around it keeps its values."""
    if where == "cuda":
        request.getfixturevalue("cuda")
    elif where == "other":
        FakeDevice(monkeypatch)
    device = {"cpu": "cpu", "cuda": "cuda:1", "other": "xpu:0"}[where]
    monkeypatch.setattr("safetensors._torch.load_into._device", lambda tensor: device)
    for name, wanted in PARTS.items():
        for target, base in strided(wanted):
            mask = torch.zeros_like(base, dtype=torch.uint8)
            torch.as_strided(mask, target.shape, target.stride(), target.storage_offset()).fill_(1)
            rules = {name: RULES[name]}
            assert load_into({name: target}, files, strict=False, parts=rules)[0] == []
            assert torch.equal(target, wanted), name
            assert not base[mask == 0].any(), name


def test_views_take_whole_tensors(files):
    target = torch.zeros(6, 10).t()
    load_into({"rows": target}, files, strict=False)
    assert torch.equal(target, TENSORS["rows"])


def test_parts_and_names(files):
    """Without a part, a tensor is whole; SKIP leaves it as it is."""
    targets = {name: torch.full_like(tensor, 1) for name, tensor in TENSORS.items()}
    targets["rows"] = targets["rows"][:3].clone()
    assert load_into(targets, files, parts={"ro*": Shard(0, 2, 4), "cube": SKIP}) == ([], [])
    expected = TENSORS | {"rows": PARTS["rows"], "cube": torch.full_like(TENSORS["cube"], 1)}
    sharded.check(targets, expected)
    with pytest.raises(SafetensorError, match="do not contain tensor 'rosw'.*`rows`"):
        load_into(targets, files, parts={"rosw": None})
    # A key may fit a tensor of the files that is not loaded.
    some = {"rows": torch.zeros(3, 6)}
    load_into(some, files, parts={"rows": slice(0, 3), "c*": slice(1)}, strict=False)
    assert torch.equal(some["rows"], TENSORS["rows"][:3])
    with pytest.raises(SafetensorError, match=r"'rows'.*of shape \[3, 6\], the file's is \[5, 6\]"):
        load_into(some, files, parts={"rows": Shard(0, 0, 2)}, strict=False)


def test_blocks_of_one_parameter(tmp_path):
    """Q, K and V of a file become rows, and then columns, of one tensor."""
    tensors = {name: torch.randn(4, 6) for name in "qkv"}
    save_file(tensors, tmp_path / "a.safetensors")
    rows = torch.zeros(12, 6)
    load_into(dict(zip("qkv", rows.split(4), strict=True)), tmp_path)
    assert torch.equal(rows, torch.cat(list(tensors.values())))
    columns = torch.zeros(4, 18)
    load_into(dict(zip("qkv", columns.split(6, dim=1), strict=True)), tmp_path)
    assert torch.equal(columns, torch.cat(list(tensors.values()), dim=1))
    stacked = torch.zeros(4, 6, 3)
    load_into(dict(zip("qkv", stacked.unbind(-1), strict=True)), tmp_path)
    assert torch.equal(stacked, torch.stack(list(tensors.values()), dim=-1))


def test_shared_memory_is_refused(tmp_path):
    tensors = {name: torch.randn(4, 6) for name in "ab"}
    save_file(tensors, tmp_path / "a.safetensors")

    def refuse(a, b, text):
        before = [a.clone(), b.clone()]
        with pytest.raises(SafetensorError, match=text):
            load_into({"a": a, "b": b}, tmp_path)
        assert torch.equal(a, before[0])
        assert torch.equal(b, before[1])

    base = torch.zeros(4, 12)
    refuse(base[:, :6], base[:, 5:11], "'a' and 'b' share memory")
    refuse(base[:, 4:10], base.view(-1)[24:48].view(4, 6), "'b' and 'a' share|'a' and 'b' share")
    refuse(torch.zeros(4, 6), torch.zeros(6).expand(4, 6), r"'b'.*may share memory.*\[0, 1\]")
    refuse(torch.zeros(4, 6), torch.zeros(9).as_strided((4, 6), (1, 1)), "may share memory")
    other = torch.zeros(8, 12)
    refuse(other[::2, ::2], other[::2, 4:10], "share memory")
    load_into({"a": other[::2, ::2], "b": other[::2, 1::2]}, tmp_path)
    assert torch.equal(other[::2, ::2], tensors["a"])
    assert torch.equal(other[::2, 1::2], tensors["b"])
