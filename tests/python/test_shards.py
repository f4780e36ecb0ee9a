"""The files of a model: directories, indexes and lists, and their errors."""

import json
import os
import shutil

import pytest
import torch

from safetensors import SafetensorError
from safetensors.torch import load_file, load_files, load_into, save_file, stream_files
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


def test_directory_without_an_index(tmp_path, tensors):
    """Its numbered files are loaded, in order, and no hidden ones."""
    names = list(tensors)
    first, second = (tmp_path / f"x-{i}-of-00002.safetensors" for i in (1, 2))
    save_file({name: tensors[name] for name in names[:9]}, second)
    save_file({name: tensors[name] for name in names[9:]}, first)
    (tmp_path / "._a.safetensors").write_bytes(b"left by a file manager")
    (tmp_path / "config.json").write_text("{}")
    found = load_files(tmp_path)
    sharded.check(found, tensors)
    assert list(found)[: len(names) - 9] == list(load_file(first))


def test_which_index_is_used(tmp_path, tensors):
    """model.safetensors.index.json is used, else a single other index; several are an error."""
    sharded.write(tmp_path, tensors, 2)
    few = dict.fromkeys(list(tensors)[::2], "model-00001-of-00002.safetensors")
    other = sharded.write_index(tmp_path / "x.safetensors.index.json", few)
    sharded.check(load_files(tmp_path), tensors)
    (tmp_path / "model.safetensors.index.json").unlink()
    assert load_files(tmp_path).keys() == few.keys()
    shutil.copy(other, tmp_path / "y.safetensors.index.json")
    sharded.check(load_files(tmp_path), tensors)


def test_the_models_index_is_preferred(tmp_path, tensors):
    """It is preferred to another index and to files that it does not name."""
    sharded.write(tmp_path, tensors, 2)
    first, second = "model-00001-of-00002.safetensors", "model-00002-of-00002.safetensors"
    few = dict.fromkeys(list(tensors)[::2], first)
    sharded.write_index(tmp_path / "a.safetensors.index.json", {list(tensors)[1]: second})
    sharded.write_index(tmp_path / "model.safetensors.index.json", few)
    with pytest.warns(UserWarning, match=f"{second} is not used: model.safetensors.index.json"):
        assert load_files(tmp_path).keys() == few.keys()


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


NO_WEIGHT_MAP = "has no object `weight_map`"
BELOW = "not a file below the index's directory"
HOSTILE = {
    "empty": (b"", "is not JSON"),
    "cut": (b'{"weight_map": {"a": "b', "is not JSON"),
    "binary": (bytes(range(256)), "is not JSON"),
    "deep": (b"[" * 200_000, "is not JSON"),
    "deep in the map": (
        b'{"weight_map": ' + b'{"a":' * 200_000,
        "names no file for tensor 'a', but an object",
    ),
    "array": (b"[]", NO_WEIGHT_MAP),
    "text": (b'"weight_map"', NO_WEIGHT_MAP),
    "without": (b'{"metadata": {}}', NO_WEIGHT_MAP),
    "null": (b'{"weight_map": null}', NO_WEIGHT_MAP),
    "pairs": (b'{"weight_map": [["a", "b"]]}', NO_WEIGHT_MAP),
    "number": (b'{"weight_map": {"a": 1}}', "names no file for tensor 'a', but 1"),
    "list": (b'{"weight_map": {"a": ["b"]}}', "names no file for tensor 'a'"),
    "object": (b'{"weight_map": {"a": {}}}', "names no file for tensor 'a'"),
    "parent": (b'{"weight_map": {"a": "../b.safetensors"}}', BELOW),
    "parent inside": (b'{"weight_map": {"a": "c/../../b.safetensors"}}', BELOW),
    "absolute": (b'{"weight_map": {"a": "/etc/passwd"}}', BELOW),
    "drive": (b'{"weight_map": {"a": "C:b.safetensors"}}', BELOW),
    "backslashes": (b'{"weight_map": {"a": "..\\\\b.safetensors"}}', BELOW),
    "share": (b'{"weight_map": {"a": "\\\\\\\\host\\\\share\\\\b"}}', BELOW),
    "no name": (b'{"weight_map": {"a": ""}}', BELOW),
    "dot": (b'{"weight_map": {"a": "."}}', BELOW),
    "nul": (b'{"weight_map": {"a": "b\\u0000.safetensors"}}', "no file can have this name"),
    "surrogate": (
        b'{"weight_map": {"a": "\\ud800.safetensors"}}',
        "is not JSON: The surrogate pair",
    ),
    "two maps": (b'{"weight_map": {}, "weight_map": {"a": "b"}}', "has two objects `weight_map`"),
    "utf-16": ('{"weight_map": {"a": "b"}}'.encode("utf-16"), "is not JSON: not UTF-8"),
    "many files": (
        json.dumps({"weight_map": {str(i): str(i) for i in range(100_001)}}).encode(),
        "names more than 100,000 files",
    ),
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


def test_an_index_that_is_too_large(tmp_path):
    """An index that is too large is not read to its end."""
    index = tmp_path / "model.safetensors.index.json"
    with open(index, "wb") as file:
        file.truncate(1 << 40)
    with pytest.raises(SafetensorError, match="larger than 100000000 bytes"):
        load_files(index)


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
    from safetensors.torch import load_files
    from support import memory

    def load(path):
        with contextlib.suppress(FileNotFoundError):
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
def test_an_index_that_is_not_a_regular_file(tmp_path, tensors):
    """It is refused at once, and the error names it."""
    pipe = tmp_path / "model.safetensors.index.json"
    os.mkfifo(pipe)
    for call in (load_files, lambda path: list(stream_files(path))):
        for path in (tmp_path, pipe):
            with pytest.raises(SafetensorError, match="found a named pipe") as caught:
                call(path)
            assert str(pipe) in str(caught.value)
    with pytest.raises(OSError, match="found a named pipe"):
        load_into(tensors, pipe)
    device = tmp_path / "zero.json"
    device.symlink_to("/dev/zero")
    with pytest.raises(OSError, match="found a device"):
        load_files(device)


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
