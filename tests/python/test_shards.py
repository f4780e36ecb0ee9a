"""The files of a model: directories, indexes and lists, and their errors."""

import json
import os
import shutil

import pytest
import torch

from safetensors import SafetensorError
from safetensors.torch import load_file, load_files, save_file
from support import children, memory, sharded

BACKENDS = sharded.BACKENDS


@pytest.fixture
def copied(model, tmp_path):
    """A copy of the directory for a test to damage."""
    return shutil.copytree(model, tmp_path / "model")


@pytest.mark.parametrize("backend", BACKENDS)
def test_directory_index_and_list_give_the_same(model, tensors, backend):
    """All ways to name the files of a model load the same tensors."""
    index = model / "model.safetensors.index.json"
    ways = [model, str(model), os.fsencode(model), index, str(index)]
    for way in [*ways, sharded.shards_of(model), tuple(map(str, sharded.shards_of(model)))]:
        sharded.check(load_files(way, backend=backend), tensors)


def test_order_is_by_file_and_offset(model):
    """The order does not depend on that of keys."""
    wanted = [name for path in sharded.shards_of(model) for name in load_file(path)]
    assert list(load_files(model)) == wanted
    assert list(load_files(model, keys=reversed(wanted[3:9]))) == wanted[3:9]


def test_nothing_to_load(tmp_path):
    """An empty directory, a missing one and an empty list are errors."""
    with pytest.raises(FileNotFoundError, match="No .safetensors files") as caught:
        load_files(tmp_path)
    assert caught.value.filename == str(tmp_path)
    with pytest.raises(FileNotFoundError):
        load_files(tmp_path / "absent")
    with pytest.raises(FileNotFoundError):
        load_files(tmp_path / "absent.safetensors.index.json")
    with pytest.raises(ValueError, match="list of filenames is empty"):
        load_files([])
    (tmp_path / "model.safetensors.index.json").write_text('{"weight_map": {}}')
    with pytest.raises(SafetensorError, match="it names no tensor"):
        load_files(tmp_path)


def test_only_files_with_wanted_tensors_are_opened(copied, tensors):
    """Other files may be missing or damaged."""
    first, second, third = sharded.shards_of(copied)
    keep = list(load_file(second))
    first.unlink()
    third.write_bytes(b"damaged")
    sharded.check(load_files(copied, keys=keep), {name: tensors[name] for name in keep})


def test_the_same_name_in_two_files(model, tmp_path):
    """The error names both files, also with an index."""
    first, second, _ = sharded.shards_of(model)
    name = min(load_file(first))
    save_file({name: torch.zeros(2)}, tmp_path / "again.safetensors")
    for files in ([first, tmp_path / "again.safetensors"], [first, first], [model, first]):
        with pytest.raises(SafetensorError, match=f"Tensor '{name}' is in two files") as caught:
            load_files(files)
        assert str(first) in str(caught.value)
    text = f'{{"weight_map": {{"a": "{first.name}", "a": "{second.name}"}}}}'
    (tmp_path / "x.index.json").write_text(text)
    with pytest.raises(SafetensorError, match="puts tensor 'a' into two files") as caught:
        load_files(tmp_path / "x.index.json")
    assert first.name in str(caught.value)
    assert second.name in str(caught.value)


def test_a_tensor_in_another_file_than_the_index_says(copied):
    """Which of the two is meant is not known."""
    first, second, _ = sharded.shards_of(copied)
    tensors = load_file(first)
    name = min(tensors)
    save_file(load_file(second) | {name: torch.zeros(2)}, second)
    with pytest.raises(SafetensorError, match=f"Tensor '{name}' is in two files"):
        load_files(copied)


HOSTILE = {
    "JSON": (b'{"weight_map": {"a": "b', "is not JSON"),
    "deep": (b'{"weight_map": ' + b'{"a":' * 200_000, "for tensor 'a', but an object"),
    "no map": (b"[]", "has no object `weight_map`"),
    "list": (b'{"weight_map": {"a": ["b"]}}', "names no file for tensor 'a'"),
    "parent": (
        b'{"weight_map": {"a": "../b.safetensors"}}',
        "not a file below the index's directory",
    ),
    "utf-16": ('{"weight_map": {"a": "b"}}'.encode("utf-16"), "is not JSON: not UTF-8"),
}


@pytest.mark.parametrize("case", HOSTILE)
def test_hostile_indexes(tmp_path, case):
    """One error names the index."""
    content, text = HOSTILE[case]
    index = tmp_path / "model.safetensors.index.json"
    index.write_bytes(content)
    with pytest.raises(SafetensorError) as caught:
        load_files(tmp_path)
    assert text in str(caught.value)
    assert str(index) in str(caught.value)
    assert len(str(caught.value)) < 600


MB = 1 << 20
BULK = {
    "objects": lambda n: b'{"a": [' + b"{}," * (n // 3) + b'{}], "weight_map": {}}',
    "names": lambda n: (
        b'{"weight_map": {' + b",".join(b'"%x":"a"' % i for i in range(n // 11)) + b"}}"
    ),
    "wide names": lambda n: (
        b'{"weight_map": {'
        + b",".join(f'"{chr(1000 + i % 50_000)}{i // 50_000}":"a"'.encode() for i in range(n // 12))
        + b"}}"
    ),
    "files": lambda n: (
        b'{"weight_map": {' + b",".join(b'"%x":"%x"' % (i, i) for i in range(100_000)) + b"}}"
    ),
    "a name": lambda n: b'{"weight_map": {"' + b"n" * n + b'": "a"}}',
}
LOAD = """
    import contextlib, sys
    from safetensors import SafetensorError
    from safetensors.torch import load_files
    from support import memory

    def load(path):
        with contextlib.suppress(FileNotFoundError, SafetensorError):
            load_files(path)

    load(sys.argv[1] + ".safetensors.index.json")  # imports what is imported on first use
    print(memory.peak_growth(load, sys.argv[1]))
"""


@pytest.mark.slow
@pytest.mark.skipif(not memory.can_measure_peak(), reason="the peak cannot be measured")
@pytest.mark.parametrize("case", BULK)
def test_memory_of_an_index(tmp_path, case):
    """It is at most 8 times the index and 64 MB."""
    index = tmp_path / "model.safetensors.index.json"
    index.write_bytes(BULK[case](24 * MB))
    assert int(children.run(LOAD, index)) <= 8 * index.stat().st_size + 64 * MB


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="this system has no named pipes")
def test_an_index_that_is_not_a_regular_file(tmp_path):
    """It is refused at once, and the error names it."""
    pipe = tmp_path / "model.safetensors.index.json"
    os.mkfifo(pipe)
    for path in (tmp_path, pipe):
        with pytest.raises(SafetensorError, match="found a named pipe") as caught:
            load_files(path)
        assert isinstance(caught.value, OSError)
        assert str(pipe) in str(caught.value)


def test_a_missing_shard(copied):
    """The error names index, shard and tensor."""
    gone = sharded.shards_of(copied)[1]
    names = list(load_file(gone))
    gone.unlink()
    with pytest.raises(FileNotFoundError) as caught:
        load_files(copied)
    assert caught.value.filename == str(gone)
    assert any(f"tensor '{name}'" in str(caught.value) for name in names)
    assert "model.safetensors.index.json" in str(caught.value)


def test_a_name_that_its_shard_lacks(copied):
    """The error names index, shard and tensor, even if the tensor is not requested."""
    index = copied / "model.safetensors.index.json"
    shard = sharded.shards_of(copied)[0]
    weight_map = json.loads(index.read_text())["weight_map"]
    sharded.write_index(index, {**weight_map, "absent": shard.name})
    for keys in (None, ["layers.0.weight"]):
        with pytest.raises(SafetensorError, match="puts tensor 'absent'") as caught:
            load_files(copied, keys=keys)
        assert str(shard) in str(caught.value)
        assert str(index) in str(caught.value)


def test_shards_may_be_links_and_in_directories(copied, tmp_path, tensors):
    """Download caches have links to files in other directories."""
    index = copied / "model.safetensors.index.json"
    weight_map = json.loads(index.read_text())["weight_map"]
    (copied / "sub").mkdir()
    for number, shard in enumerate(sharded.shards_of(copied)):
        blob = shutil.move(shard, tmp_path / f"blob{number}")
        (copied / "sub" / shard.name).symlink_to(blob)
    sharded.write_index(index, {name: f"sub/{shard}" for name, shard in weight_map.items()})
    sharded.check(load_files(copied), tensors)


@pytest.mark.parametrize("backend", BACKENDS)
def test_a_truncated_shard(copied, backend):
    """The error names it."""
    shard = sharded.shards_of(copied)[2]
    shard.write_bytes(shard.read_bytes()[:-1])
    with pytest.raises(SafetensorError) as caught:
        load_files(copied, backend=backend)
    assert str(shard) in str(caught.value)
