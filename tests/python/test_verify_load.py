"""`verify` of load_files, load_into, stream_files and the load_file of each framework."""

import hashlib
import importlib
import json
import os
import pickle
import shutil
from pathlib import Path

import pytest
import torch

from safetensors import IntegrityError, SafetensorError, safe_open
from safetensors.torch import (
    load_file,
    load_files,
    load_into,
    load_model,
    save_files,
    save_model,
    stream_files,
)
from support import cli
from support.damage import BLOCK, flip, places_of
from support.range_readers import MemoryReader
from support.rank_faults import values

GENERATOR = torch.Generator().manual_seed(3)
TENSORS = {
    "bias": torch.randn(9, generator=GENERATOR),
    "empty": torch.zeros(0, 4),
    "half": torch.randn(300, 501, generator=GENERATOR).bfloat16(),
    "long": torch.randint(0, 9, (1100, 1001), generator=GENERATOR),  # of 3 blocks
    "packed": torch.randint(0, 255, (6, 2), generator=GENERATOR).to(torch.uint8).view(
        torch.float4_e2m1fn_x2
    ),
    "z": torch.tensor(5, dtype=torch.int16),
}  # fmt: skip


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    """A model of shards with an index, and its sums."""
    folder = tmp_path_factory.mktemp("made")
    save_files(TENSORS, folder, max_shard_size=300_620)
    cli.output("hash", folder, "--write", "--algorithm", "sha256")
    return folder


@pytest.fixture
def model(made, tmp_path):
    shutil.copytree(made, tmp_path / "m")
    return tmp_path / "m"


@pytest.fixture
def places(made):
    """The file and the range of each tensor."""
    return {
        name: (path.name, *place)
        for path in made.glob("*.safetensors")
        for name, place in places_of(path.read_bytes())[0].items()
    }


def bits(tensor):
    return tensor.contiguous().view(-1).view(torch.uint8)


def same(found, wanted=TENSORS):
    assert set(found) == set(wanted)
    for name, tensor in wanted.items():
        assert (found[name].dtype, found[name].shape) == (tensor.dtype, tensor.shape)
        if tensor.dim():
            assert torch.equal(bits(found[name]), bits(tensor)), name
        else:
            assert found[name] == tensor


def targets():
    return {name: torch.zeros_like(t) for name, t in TENSORS.items() if name != "packed"} | {
        "packed": torch.zeros(6, 2, dtype=torch.uint8).view(torch.float4_e2m1fn_x2)
    }


def into(filenames, **more):
    made = targets()
    load_into(made, filenames, **more)
    return made


def streamed(filenames, **more):
    return dict(stream_files(filenames, **more))


def damage_of(load, *arguments, **more):
    with pytest.raises(IntegrityError) as caught:
        load(*arguments, **more)
    assert caught.value.count == len(caught.value.damaged)
    return [
        (each.tensor, os.path.basename(each.file), each.begin, each.end)
        for each in caught.value.damaged
    ]


LOADS = [load_files, into, streamed]


@pytest.mark.parametrize("verify", [True, "sha256"])
@pytest.mark.parametrize("load", LOADS)
def test_a_good_model_loads(model, load, verify):
    same(load(model, verify=verify))
    same(load([model / "model.safetensors.index.json"], verify=verify))
    same(load(sorted(model.glob("*.safetensors")), verify=verify))
    same(load(sorted(model.glob("*.safetensors")), verify=model / "model.sums.json"))


@pytest.mark.parametrize("verify", [True, "sha256"])
@pytest.mark.parametrize("load", LOADS)
def test_each_damaged_block_is_named(model, places, load, verify):
    for name, (file, begin, end) in places.items():
        for first in range(begin, end, BLOCK):
            last = min(first + BLOCK, end)
            flip(model / file, last - 1)
            wanted = (first, last) if verify is True else (begin, end)
            assert damage_of(load, model, verify=verify) == [(name, file, *wanted)]
            flip(model / file, last - 1)
    same(load(model, verify=verify))


def test_damage_of_several_shards_is_named_at_once(model, places):
    for name in ("bias", "half", "z"):
        file, begin, _ = places[name]
        flip(model / file, begin)
    assert len({places[name][0] for name in ("bias", "half", "z")}) > 1
    wanted = sorted((name, *places[name]) for name in ("bias", "half", "z"))
    assert sorted(damage_of(load_files, model, verify=True)) == wanted
    assert sorted(damage_of(into, model, verify=True)) == wanted
    # What is not wanted is not compared.
    good = [name for name in TENSORS if name not in ("bias", "half", "z")]
    same(load_files(model, keys=good, verify=True), {name: TENSORS[name] for name in good})
    assert damage_of(load_files, model, keys=["z", *good], verify=True) == [wanted[-1]]


def test_parts_compare_the_blocks_that_they_touch(model, places):
    file, begin, _ = places["long"]
    flip(model / file, begin + BLOCK)
    row = BLOCK // (1001 * 8)
    plan = {"long": (slice(0, row),)}
    assert torch.equal(load_files(model, plan=plan, verify=True)["long"], TENSORS["long"][:row])
    wanted = [("long", file, begin + BLOCK, begin + 2 * BLOCK)]
    for index in [(slice(0, row + 1),), (slice(None), slice(3, 5))]:
        assert damage_of(load_files, model, plan={"long": index}, verify=True) == wanted
        assert damage_of(streamed, model, plan={"long": index}, verify=True) == wanted
    flip(model / file, begin + BLOCK)
    for index in [(slice(0, row + 1),), (slice(None), slice(3, 5)), (slice(None, None, 7),)]:
        for verify in (True, "sha256"):
            found = load_files(model, plan={"long": index}, verify=verify)["long"]
            assert torch.equal(found, TENSORS["long"][index])


def test_a_stream_yields_no_damaged_tensor(model, places):
    file, begin, _ = places["long"]
    flip(model / file, begin + 2 * BLOCK)
    seen = {}
    stream = stream_files(model, verify=True)
    with pytest.raises(IntegrityError, match="`long` is damaged"):
        seen.update(stream)
    assert "long" not in seen
    same(seen, {name: TENSORS[name] for name in seen})


def test_other_files_and_missing_sums(model, places):
    file = places["z"][0]
    flip(model / file, 20)
    with pytest.raises(IntegrityError, match=f"header is damaged.*{file}"):
        load_files(model, verify=True)
    flip(model / file, 20)
    os.remove(model / "model.sums.json")
    with pytest.raises(FileNotFoundError, match=r"No sums of the model: .*model.sums.json"):
        load_files(model, verify=True)


def test_readers(model, places):
    paths = sorted(model.glob("*.safetensors"))
    readers = [MemoryReader(path.read_bytes(), path.name) for path in paths]
    same(load_files(readers, verify=model / "model.sums.json"))
    file, begin, end = places["half"]
    flip(model / file, begin)
    readers = [MemoryReader(path.read_bytes(), path.name) for path in paths]
    found = damage_of(load_files, readers, verify=model / "model.sums.json")
    assert found == [("half", file, begin, end)]


def test_load_file_and_load_model(tmp_path):
    module = torch.nn.Linear(5, 7)
    path = tmp_path / "m.safetensors"
    importlib.import_module("safetensors.torch").save_model(module, path)
    cli.output("hash", path, "--write")
    assert load_model(torch.nn.Linear(5, 7), path, verify=True) == (set(), [])
    begin, end = places_of(path.read_bytes())[0]["weight"]
    flip(path, begin)
    assert damage_of(load_file, path, verify=True) == [("weight", "m.safetensors", begin, end)]
    assert damage_of(load_model, module, path, verify=True)
    with safe_open(path, "pt", verify=True) as file:
        assert torch.equal(file.get_tensor("bias"), module.bias)


@pytest.mark.parametrize("backend", ["mmap", "pread", "direct"])
def test_devices(model, places, cuda, backend):
    """The engine hands a tensor out after all of its chunks agreed."""
    for verify in (True, "sha256"):
        same(load_files(model, "cuda:0", backend=backend, verify=verify))
        same(into(model, verify=verify))
        file, begin, end = places["long"]
        flip(model / file, begin + BLOCK + 9)
        wanted = (begin + BLOCK, begin + 2 * BLOCK) if verify is True else (begin, end)
        assert damage_of(load_files, model, "cuda:0", backend=backend, verify=verify) == [
            ("long", file, *wanted)
        ]
        for name in ("long", "half"):
            with safe_open(model / places[name][0], "pt", "cuda:0", verify=verify) as opened:
                if name == "long":
                    with pytest.raises(IntegrityError, match="`long`"):
                        opened.get_tensor(name)
                else:
                    assert torch.equal(opened.get_tensor(name), TENSORS[name])
        flip(model / file, begin + BLOCK + 9)


@pytest.mark.parametrize("name", ["numpy", "flax", "tensorflow", "paddle", "mlx"])
def test_each_framework(tmp_path, name):
    pytest.importorskip({"flax": "jax", "mlx": "mlx.core"}.get(name, name))
    module = importlib.import_module("safetensors." + name)
    path = tmp_path / "m.safetensors"
    importlib.import_module("safetensors.torch").save_file({"a": torch.ones(3, 4)}, path)
    cli.output("hash", path, "--write")
    assert module.load_file(path, verify=True)["a"].shape == (3, 4)
    hashes = {path.name: hash_of(path)}
    assert module.load_file(path, expected_hashes=hashes)["a"].shape == (3, 4)
    flip(path, os.path.getsize(path) - 1)
    assert damage_of(module.load_file, path, verify=True)[0][0] == "a"
    assert damage_of(module.load_file, path, expected_hashes=hashes)[0][0] == ""


def test_jax_load_files(model, places):
    jax = pytest.importorskip("jax")
    from safetensors.jax import load_files as load

    sharding = jax.sharding.SingleDeviceSharding(jax.devices()[0])
    keys = ["bias", "half"]
    assert load(model, sharding, keys=keys, verify=True)["bias"].shape == (9,)
    hashes = {path.name: hash_of(path) for path in model.glob("*.safetensors")}
    assert load(model, sharding, keys=keys, expected_hashes=hashes)["bias"].shape == (9,)
    file, begin, end = places["half"]
    flip(model / file, begin)
    found = damage_of(load, model, sharding, keys=keys, verify=True)
    assert found == [("half", file, begin, end)]
    assert damage_of(load, model, sharding, keys=keys, expected_hashes=hashes)


def hash_of(path):
    return hashlib.sha256(path.read_bytes()).hexdigest()


def test_hashes_of_whole_files(model, places):
    paths = sorted(model.glob("*.safetensors"))
    by_name = {path.name: hash_of(path) for path in paths}
    by_path = {str(path): by_name[path.name].upper() for path in paths}
    for hashes in (by_name, by_path):
        same(load_files(model, expected_hashes=hashes))
        same(load_files(paths, expected_hashes=hashes))
    part = load_files(model, keys=["z"], expected_hashes=by_name)
    same(part, {"z": TENSORS["z"]})
    name = "safetensors.numpy"
    arrays = importlib.import_module(name).load_file(paths[0], expected_hashes=by_name)
    assert set(arrays) == {key for key, place in places.items() if place[0] == paths[0].name}
    for path in paths:
        size = path.stat().st_size
        for at in (3, 30, size - 1):
            flip(path, at)
            assert damage_of(load_files, model, expected_hashes=by_name) == [
                ("", path.name, 0, size)
            ]
            with pytest.raises(IntegrityError, match="another digest: expected sha256:"):
                load_file(path, expected_hashes=by_name)
            flip(path, at)
    with pytest.raises(SafetensorError, match="no entry for the file"):
        load_files(model, expected_hashes={paths[0].name: by_name[paths[0].name]})
    with pytest.raises(ValueError, match="together"):
        load_file(paths[0], verify=True, expected_hashes=by_name)
    with pytest.raises(SafetensorError, match="not a digest"):
        load_file(paths[0], expected_hashes={paths[0].name: "00"})


@pytest.mark.parametrize("load", [load_files, into, streamed])
def test_hashes_of_the_files_of_a_model(model, load):
    paths = sorted(model.glob("*.safetensors"))
    hashes = {path.name: hash_of(path) for path in paths}
    same(load(model, expected_hashes=hashes))
    with pytest.raises(ValueError, match="together"):
        load(model, verify=True, expected_hashes=hashes)
    size = paths[1].stat().st_size
    flip(paths[1], size - 1)
    assert damage_of(load, model, expected_hashes=hashes) == [("", paths[1].name, 0, size)]


def test_hashes_of_a_file_that_is_opened(model, places):
    path = model / places["half"][0]
    hashes = {path.name: hash_of(path)}
    with safe_open(path, "pt", expected_hashes=hashes) as file:
        flip(path, places["half"][1])  # all of it is in memory
        assert torch.equal(file.get_tensor("half"), TENSORS["half"])
        assert torch.equal(file.get_slice("half")[3:5], TENSORS["half"][3:5])
    found = damage_of(lambda: safe_open(path, "pt", expected_hashes=hashes))
    assert found == [("", path.name, 0, path.stat().st_size)]
    reader = MemoryReader(path.read_bytes(), name=path.name)
    assert damage_of(lambda: safe_open(reader, "pt", expected_hashes=hashes))
    with pytest.raises(ValueError, match="together"):
        safe_open(path, "pt", verify=True, expected_hashes=hashes)


def test_hashes_of_a_module(tmp_path):
    path = tmp_path / "m.safetensors"
    module = torch.nn.Linear(3, 4)
    save_model(module, path)
    hashes = {path.name: hash_of(path)}
    target = torch.nn.Linear(3, 4)
    load_model(target, path, expected_hashes=hashes)
    assert torch.equal(target.weight, module.weight)
    flip(path, path.stat().st_size - 1)
    assert damage_of(load_model, target, path, expected_hashes=hashes)


def loads_together(rank, folder):
    """Returns what the rank's error says and its cause is; None if it loads."""
    group = torch.distributed.group.WORLD
    target = targets()
    try:
        found = load_files(folder, verify=True, group=group)
        load_into(target, folder, verify=True, group=group)
    except SafetensorError as error:
        return str(error), type(error.__cause__).__name__
    same(found)
    same(target)
    return None


def test_ranks_of_a_group(model, places):
    assert values(2, loads_together, model) == [None, None]
    file, begin, _ = places["long"]
    flip(model / file, begin + BLOCK)
    (text, cause), (other, other_cause) = values(2, loads_together, model)
    assert text == other
    assert "`long` is damaged" in text
    assert "IntegrityError" in (cause, other_cause)


@pytest.mark.filterwarnings("ignore:torch.distributed is (disabled|unavail)")
def test_checkpoints(model, places):
    import torch.distributed.checkpoint as dcp

    from safetensors.dcp import StorageReader

    reader = pickle.loads(pickle.dumps(StorageReader(model, verify=True)))
    state = {name: torch.zeros_like(TENSORS[name]) for name in ("bias", "long")}
    dcp.load(state, storage_reader=reader)
    same(state, {name: TENSORS[name] for name in state})
    file, begin, _ = places["long"]
    flip(model / file, begin)
    with pytest.raises(dcp.CheckpointException, match="`long` is damaged"):
        dcp.load(state, storage_reader=reader)
    flip(model / file, begin)
    hashes = {path.name: hash_of(path) for path in model.glob("*.safetensors")}
    reader = pickle.loads(pickle.dumps(StorageReader(model, expected_hashes=hashes)))
    dcp.load(state, storage_reader=reader)
    flip(model / file, begin)
    with pytest.raises(dcp.CheckpointException, match="another digest: expected sha256:"):
        dcp.load(state, storage_reader=reader)


@pytest.mark.filterwarnings("ignore:.* not used:UserWarning")
def test_an_index_without_some_tensors(model):
    """Else somebody could leave out a bias of a model whose sums are signed."""
    index = next(Path(model).glob("*.index.json"))
    content = json.loads(index.read_text(encoding="utf-8"))
    del content["weight_map"]["long"]
    index.write_text(json.dumps(content), encoding="utf-8")
    for verify in (True, "xxh3-128", index.parent / "model.sums.json"):
        with pytest.raises(SafetensorError, match="tensor `long` is missing"):
            load_files(model, verify=verify)
    assert "long" not in load_files(model)


def test_sums_of_a_neighbour(tmp_path):
    """model.sums.json of model.safetensors is not about the file beside it."""
    torch_module = importlib.import_module("safetensors.torch")
    tensors = {"a": torch.ones(3)}
    torch_module.save_file(tensors, tmp_path / "model.safetensors", sums=True)
    torch_module.save_file(tensors, tmp_path / "adapter.safetensors")
    assert (tmp_path / "model.sums.json").exists()
    with pytest.raises(FileNotFoundError, match=r"adapter\.sums\.json"):
        torch_module.load_file(tmp_path / "adapter.safetensors", verify=True)
