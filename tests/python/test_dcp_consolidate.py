"""safetensors.dcp.consolidate: one model of the files of single ranks."""

import json
import math
import os
import random

import numpy as np
import pytest
import torch

import safetensors
from safetensors import _core
from safetensors._dcp import consolidate as module
from safetensors.dcp import consolidate
from safetensors.torch import load_files, save_file, save_files
from support import children, forked, memory
from support.file_builder import with_length

pytestmark = pytest.mark.slow

DTYPES = [torch.float32, torch.bfloat16, torch.bool, torch.float8_e4m3fn, torch.int64]


def write(folder, ranks):
    """Writes the files of ranks: a list of {name: (offsets, tensor)}."""
    folder.mkdir(exist_ok=True)
    for number, parts in enumerate(ranks, 1):
        info = {name: {"saved_offsets": list(offsets)} for name, (offsets, _) in parts.items()}
        save_file(
            {name: tensor for name, (_, tensor) in parts.items()},
            folder / f"shard-{number:05}-model-00001-of-00001.safetensors",
            {"DCP_SHARDING_INFO": json.dumps(info), "format": "pt"},
        )


def cut(rng, tensor, offsets, pieces):
    """Divides a tensor into parts, (offsets, tensor), by a number of cuts at random places."""
    if pieces <= 1 or not tensor.dim():
        return [(offsets, tensor)]
    dim = rng.randrange(tensor.dim())
    at = rng.randrange(tensor.shape[dim] + 1)
    moved = (*offsets[:dim], offsets[dim] + at, *offsets[dim + 1 :])
    left, right = tensor.split([at, tensor.shape[dim] - at], dim)
    return cut(rng, left, offsets, pieces // 2) + cut(rng, right, moved, pieces - pieces // 2)


def random_model(rng):
    """Returns whole tensors, and the parts of each of four ranks."""
    whole, ranks = {}, [{} for _ in range(4)]
    for i in range(rng.randrange(1, 6)):
        shape = [rng.choice([1, 2, 5, 9]) for _ in range(rng.randrange(4))]
        tensor = torch.randint(0, 2, shape).to(rng.choice(DTYPES))
        whole[f"t{i}"] = tensor
        parts = cut(rng, tensor, (0,) * len(shape), rng.randrange(1, 5))
        for rank, (offsets, part) in zip(rng.sample(ranks, len(parts)), parts, strict=True):
            rank[f"t{i}"] = (offsets, part.contiguous())
    return whole, [rank for rank in ranks if rank]


@pytest.mark.parametrize("how", ["copied", "read", "assembled"])
def test_random_models(monkeypatch, tmp_path, how):
    """Runs that the kernel copies, runs that are read, and blocks of several parts. `progress` is
    told of each byte of the tensors once."""
    if how == "read":
        monkeypatch.delattr(os, "copy_file_range", raising=False)
    if how != "assembled":
        monkeypatch.setattr(module, "_LEAST_RUN_NBYTES", 1)
    monkeypatch.setattr(module, "_BLOCK_NBYTES", 24)
    rng = random.Random(how)
    for number in range(60):
        whole, ranks = random_model(rng)
        write(tmp_path / f"{number}", ranks)
        source, out = tmp_path / f"{number}", tmp_path / f"{number} out"
        told: list = []
        paths = consolidate(
            source,
            out,
            max_shard_size=100,
            progress=lambda *numbers, told=told: told.append(numbers),
        )
        total = sum(tensor.nbytes for tensor in whole.values())
        assert {each for _, each in told} == {total}
        assert [done for done, _ in told] == sorted({done for done, _ in told})
        assert told[-1] == (total, total)
        found = load_files(tmp_path / f"{number} out")
        assert found.keys() == whole.keys()
        for name, tensor in whole.items():
            assert found[name].dtype == tensor.dtype
            assert torch.equal(found[name].float(), tensor.float()), name
        ordered = {name: whole[name] for rank in ranks for name in found if name in rank}
        order = [name for path in paths for name in load_files(path)]
        assert sorted(order) == sorted(ordered)


def test_one_file_is_that_of_save_files(tmp_path):
    """Byte for byte; also over an old model, which it replaces."""
    whole = {"a": torch.arange(40.0).reshape(8, 5), "b": torch.tensor(2), "c": torch.zeros(0, 3)}
    rows = whole["a"].split([3, 5])
    columns = whole["a"].split([1, 4], 1)
    for number, (parts, other) in enumerate([(rows, (3, 0)), (columns, (0, 1))]):
        first = {"a": ((0, 0), parts[0].contiguous()), "b": ((), whole["b"])}
        second = {"a": (other, parts[1].contiguous()), "c": ((0, 0), whole["c"])}
        write(tmp_path / f"ranks{number}", [first, second])
        consolidate(tmp_path / f"ranks{number}", tmp_path / "out", name="m")
        save_files(whole, tmp_path / "expected", name="m")
        assert os.listdir(tmp_path / "out") == ["m.safetensors"]
        expected = (tmp_path / "expected" / "m.safetensors").read_bytes()
        assert (tmp_path / "out" / "m.safetensors").read_bytes() == expected


def test_f4(tmp_path):
    """The header's dimensions count elements of four bits; two are a byte."""
    tensor = torch.arange(48, dtype=torch.uint8).reshape(4, 12).view(torch.float4_e2m1fn_x2)
    left, right = (part.contiguous() for part in tensor.split([5, 7], 1))
    write(tmp_path / "ranks", [{"x": ((0, 0), left)}, {"x": ((0, 10), right)}])
    consolidate(tmp_path / "ranks", tmp_path / "out")
    found = load_files(tmp_path / "out")["x"]
    assert torch.equal(found.view(torch.uint8), tensor.view(torch.uint8))


def write_bytes(folder, number, dtype, shape, data, offsets):
    """Writes the file of a rank with one tensor, of any dtype."""
    folder.mkdir(exist_ok=True)
    info = json.dumps({"x": {"saved_offsets": offsets}})
    header = {
        "__metadata__": {"DCP_SHARDING_INFO": info},
        "x": {"dtype": dtype, "shape": shape, "data_offsets": [0, len(data)]},
    }
    path = folder / f"shard-{number:05}-model-00001-of-00001.safetensors"
    path.write_bytes(with_length(json.dumps(header).encode()) + data)


SMALL = [name for name, dtype in _core._dtypes().items() if dtype["bits"] % 8]


@pytest.mark.parametrize("dtype", SMALL)
@pytest.mark.parametrize("shape", [[2, 3], [4, 3], [2, 2], [4, 1, 5], [8]])
def test_rows_that_end_within_a_byte(tmp_path, dtype, shape):
    """All bytes of a tensor in one file; its parts in several files are refused."""
    nbits = math.prod(shape) * _core._dtypes()[dtype]["bits"]
    if nbits % 8:
        pytest.skip("no file has such a tensor")
    data = random.Random(7).randbytes(nbits // 8)
    ranks, out = tmp_path / "ranks", tmp_path / "out"
    write_bytes(ranks, 1, dtype, shape, data, [0] * len(shape))
    (path,) = consolidate(ranks, out)
    with open(path, "rb") as file:
        assert file.read().endswith(data)
    with safetensors.safe_open(path, "np") as file:
        assert file.get_tensor_meta("x").shape == shape
        assert file.get_tensor_meta("x").data_offsets == (0, len(data))

    write_bytes(ranks, 2, dtype, shape, data, [shape[0], *[0] * (len(shape) - 1)])
    if len(shape) > 1 and shape[-1] * _core._dtypes()[dtype]["bits"] % 8:
        with pytest.raises(safetensors.SafetensorError, match="ends within a byte"):
            consolidate(ranks, tmp_path / "other")
        return
    (path,) = consolidate(ranks, tmp_path / "other")
    with open(path, "rb") as file:
        assert file.read().endswith(data + data)


ROWS = [{"x": ((0, 0), torch.ones(2, 3))}, {"x": ((2, 0), torch.ones(2, 3))}]


@pytest.mark.parametrize(
    ("ranks", "text"),
    [
        ([ROWS[1]], "have 24 bytes of tensor `x`, which is F32 [4, 3] and has 48"),
        ([*ROWS, {"x": ((1, 0), torch.ones(1, 1))}], "part of tensor `x` overlaps"),
        ([*ROWS, {"x": ((4, 0), torch.ones(2, 3).half())}], "tensor `x` is F16 [2, 3]"),
        ([*ROWS, {"x": ((4,), torch.ones(2))}], "tensor `x` is F32 [2]"),
        ([*ROWS, {"x": ((4,), torch.ones(2, 3))}], "no valid offsets of tensor `x`"),
        ([*ROWS, {"x": ((-1, 0), torch.ones(2, 3))}], "no valid offsets of tensor `x`"),
        ([*ROWS, {"x": ((True, 0), torch.ones(2, 3))}], "no valid offsets of tensor `x`"),
        ([*ROWS, {"x": ((1 << 62, 0), torch.ones(2, 3))}], "tensor `x`"),
    ],
)
def test_parts_that_are_no_tensor(tmp_path, ranks, text):
    """One error, which names the tensor and the file or folder. Nothing is written."""
    write(tmp_path / "ranks", ranks)
    with pytest.raises(safetensors.SafetensorError) as caught:
        consolidate(tmp_path / "ranks", tmp_path / "out")
    assert text in str(caught.value)
    assert str(tmp_path / "ranks") in str(caught.value)
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    ("metadata", "text"),
    [
        (None, "no DCP_SHARDING_INFO"),
        ({"DCP_SHARDING_INFO": "{"}, "not a JSON object"),
        ({"DCP_SHARDING_INFO": "[" * 100_000}, "nested deeper than 127 levels"),
        ({"DCP_SHARDING_INFO": "[1]"}, "not a JSON object"),
        ({"DCP_SHARDING_INFO": '{"x": 3}'}, "no valid offsets of tensor `x`: 3"),
        ({"DCP_SHARDING_INFO": '{"y": {"saved_offsets": [0]}}'}, "no valid offsets of tensor `x`"),
    ],
)
def test_files_of_others(tmp_path, metadata, text):
    """A folder that no rank wrote."""
    save_file({"x": torch.ones(3)}, tmp_path / "a.safetensors", metadata)
    with pytest.raises(safetensors.SafetensorError) as caught:
        consolidate(tmp_path, tmp_path / "out")
    assert text in str(caught.value)
    assert "a.safetensors" in str(caught.value)


def test_folders(tmp_path):
    """One without files, and one that is both."""
    with pytest.raises(FileNotFoundError):
        consolidate(tmp_path, tmp_path / "out")
    write(tmp_path / "ranks", ROWS)
    with pytest.raises(ValueError, match="beside the files of the ranks"):
        consolidate(tmp_path / "ranks", tmp_path / "." / "ranks")


def test_a_file_that_changes(monkeypatch, tmp_path):
    """Is noticed when it is opened again."""
    write(tmp_path / "ranks", ROWS)
    made = module.FullSizeModel

    def change(*args):
        write(tmp_path / "ranks", ROWS)
        return made(*args)

    monkeypatch.setattr(module, "FullSizeModel", change)
    with pytest.raises(safetensors.SafetensorError, match="has changed while it was read"):
        consolidate(tmp_path / "ranks", tmp_path / "out")
    assert not (tmp_path / "out").exists()


PEAK = """
    import pathlib
    import numpy as np
    from safetensors.dcp import consolidate
    from support import memory
    folder = pathlib.Path(sys.argv[1])
    consolidate(folder / "small", folder / "small out")
    print(memory.peak_growth(consolidate, folder / "ranks", folder / "out"))
"""


@pytest.mark.skipif(not memory.can_measure_peak(), reason="the system does not reset the peak")
def test_peak_memory(tmp_path):
    """128 MiB, half of it in columns, take 24 MiB at most."""
    whole = torch.from_numpy(np.arange(1 << 23)).reshape(1 << 11, 1 << 12)
    left, right = (part.contiguous() for part in whole.split(1 << 11, 1))
    top, bottom = whole.split(1 << 10)
    first = {"columns": ((0, 0), left), "rows": ((0, 0), top)}
    second = {"columns": ((0, 1 << 11), right), "rows": ((1 << 10, 0), bottom)}
    write(tmp_path / "ranks", [first, second])
    write(tmp_path / "small", ROWS)
    assert int(children.run(PEAK, tmp_path)) < 24 << 20
    found = load_files(tmp_path / "out")
    assert torch.equal(found["columns"], whole)
    assert torch.equal(found["rows"], whole)


def test_a_pipe(tmp_path):
    """Between the files of ranks it is refused at once: nobody ever writes to it."""
    write(tmp_path / "ranks", [{"a": ((0,), torch.ones(3))}])
    os.mkfifo(tmp_path / "ranks" / "shard-00002-model-00001-of-00001.safetensors")
    script = """
        from safetensors import SafetensorError
        from safetensors.dcp import consolidate
        try: consolidate(sys.argv[1], sys.argv[2])
        except SafetensorError as error: assert "found a named pipe" in str(error), error
        else: raise AssertionError("nothing was raised")
    """
    children.run(script, tmp_path / "ranks", tmp_path / "out", imports=forked.TORCH)
    assert not (tmp_path / "out").exists()


def test_more_dimensions_than_arrays_can_have(tmp_path):
    """Of size 1: a header may have any number, and parts of a row are assembled in memory."""
    (tmp_path / "ranks").mkdir()
    for rank in range(2):
        entry = {"dtype": "U8", "shape": [2, *[1] * 70, 2], "data_offsets": [0, 4]}
        info = {"a": {"saved_offsets": [*[0] * 71, 2 * rank]}}
        header = {"__metadata__": {"DCP_SHARDING_INFO": json.dumps(info)}, "a": entry}
        data = bytes(range(4 * rank, 4 * rank + 4))
        file = f"shard-{rank + 1:05}-model-00001-of-00001.safetensors"
        (tmp_path / "ranks" / file).write_bytes(with_length(json.dumps(header).encode(), data))
    (path,) = consolidate(tmp_path / "ranks", tmp_path / "out")
    with open(path, "rb") as file:
        assert file.read()[-8:] == bytes([0, 1, 4, 5, 2, 3, 6, 7])
