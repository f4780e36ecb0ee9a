"""What sums name and the caller does not exclude is there, or a load raises.

The table of docs/verify.md, "What has to be there".
"""

import importlib
import json
import os
import time

import pytest
import torch

from safetensors import IntegrityError, SafetensorError, safe_open, sums
from safetensors._checking import sums as _sums
from safetensors.plan import SKIP
from safetensors.torch import load_file, load_files, load_into, save_file
from support import cli, signed_models
from support.range_readers import MemoryReader
from support.signed_models import INDEX, SUMS, TENSORS, into, same, shard, streamed

# What an index leaves out is warned of, too.
pytestmark = pytest.mark.filterwarnings("ignore:.* not used:UserWarning")


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    """A model of three shards with two tensors each."""
    folder = tmp_path_factory.mktemp("made")
    assert len(signed_models.write(folder, TENSORS, 800)) == 3
    return folder


@pytest.fixture
def model(made, tmp_path):
    return signed_models.copy(made, tmp_path / "m")


def by_jax(filenames, **more):
    jax = pytest.importorskip("jax")
    from safetensors.jax import load_files as load

    found = load(filenames, jax.sharding.SingleDeviceSharding(jax.devices()[0]), **more)
    return {name: torch.from_numpy(array.__array__().copy()) for name, array in found.items()}


LOADS = [load_files, into, streamed, by_jax]


def kinds(folder):
    """The values of `verify` that are sums."""
    path = folder / SUMS
    return [True, "xxh3-128", "sha256", path, _sums.read(str(path))]


def refused(load, *arguments, said, **more):
    with pytest.raises(IntegrityError, match=said) as caught:
        load(*arguments, **more)
    assert caught.value.damaged == []
    assert caught.value.code == "damaged"
    return caught.value


@pytest.mark.parametrize("load", LOADS)
@pytest.mark.parametrize("number", [1, 2, 3])
def test_a_folder_without_its_index_and_a_shard(model, load, number):
    gone = signed_models.names_in(model, shard(number))
    others = sorted(TENSORS.keys() - gone)
    used = kinds(model)
    os.remove(model / INDEX)
    for verify in used:
        same(load(model, verify=verify))
    os.remove(model / shard(number))
    for verify in [None, *used]:
        with pytest.raises(SafetensorError, match="is absent of the 3 in the set"):
            load(model, verify=verify)
    files = [model / shard(each) for each in {1, 2, 3} - {number}]
    same(load(files, verify=True, keys=others), others)


@pytest.mark.parametrize("load", [load_files, streamed, by_jax])
def test_what_keys_and_plans_exclude_need_not_be_there(model, load):
    gone = signed_models.names_in(model, shard(2))
    others = sorted(TENSORS.keys() - gone)
    for change in (
        lambda: os.remove(model / shard(2)),
        lambda: signed_models.leave_out(model, gone),
    ):
        change()  # first the index leads to a shard that is missing, then nothing does
        wanted = lambda name: name not in gone  # noqa: E731
        same(load(model, verify=True, keys=wanted), others)
        same(load(model, verify=True, plan=dict.fromkeys(others)), others)
        skipped = {**dict.fromkeys(gone, SKIP), "t.*": None}
        same(load(model, verify=True, plan=skipped), others)
        same(load(model, verify=True, plan={"t.*": None}, keys=wanted), others)
        for more in (
            {"plan": {"t.*": None}},
            {"plan": {min(gone): (slice(0, 3),)}},
            {"plan": {"t.*": lambda name, tensor: None}},
            {"keys": lambda name: True},
            {"keys": list(gone)},
        ):
            with pytest.raises((IntegrityError, FileNotFoundError), match="missing"):
                load(model, verify=True, **more)


def test_targets_say_what_load_into_takes(model):
    gone = signed_models.names_in(model, shard(2))
    os.remove(model / shard(2))
    signed_models.leave_out(model, gone)
    others = {name: torch.zeros(10, 10) for name in TENSORS.keys() - gone}
    assert load_into(others, model, strict=False, verify=True) == ([], sorted(gone))
    same(others, others)
    with pytest.raises(RuntimeError, match="Unexpected key"):
        load_into(others, model, verify=True)


def test_an_index_that_leaves_something_out(model):
    gone = signed_models.names_in(model, shard(3))
    others = sorted(TENSORS.keys() - gone)
    for change in (
        lambda weights: weights.pop(min(gone)),  # one of a file
        lambda weights: [weights.pop(name, None) for name in gone],  # a file
    ):
        signed_models.edit_index(model, change)
        for path in (model, model / INDEX):
            for load in (load_files, into, streamed):
                refused(load, path, verify=True, said=f"{INDEX}: tensor `{min(gone)}` is missing")
            same(load_files(path, verify=True, keys=others), others)
        said = cli.run("hash", model, "--check", status=1).stdout
        assert f"tensor `{min(gone)}` is not in the index" in said


def test_an_index_that_says_something_else(model):
    """It moves a tensor to another file, or names one that is in no file."""
    name = min(signed_models.names_in(model, shard(1)))
    signed_models.edit_index(model, lambda weights: weights.update({name: shard(2)}))
    with pytest.raises(SafetensorError, match=f"puts tensor '{name}' into .*has no such tensor"):
        load_files(model, verify=True)
    assert f"`{name}` is in {shard(1)} by" in cli.run("hash", model, "--check", status=1).stdout
    signed_models.edit_index(
        model, lambda weights: weights.update({name: shard(1), "more": shard(1)})
    )
    with pytest.raises(SafetensorError, match="puts tensor 'more' into .*has no such tensor"):
        load_files(model, verify=True)
    assert "`more` is in no file" in cli.run("hash", model, "--check", status=1).stdout


def test_files_stand_for_themselves(model):
    """A list, or one file, excludes the other files of the sums."""
    first = signed_models.names_in(model, shard(1))
    last = signed_models.names_in(model, shard(3))
    for verify in kinds(model):
        same(load_file(model / shard(1), verify=verify), first)
        same(load_files(model / shard(1), verify=verify), first)
        same(load_files([model / shard(1), model / shard(3)], verify=verify), first | last)
        with safe_open(model / shard(3), "pt", verify=verify) as file:
            assert set(file.keys()) == last
    readers = [MemoryReader((model / shard(1)).read_bytes(), shard(1))]
    same(load_files(readers, verify=model / SUMS), first)
    # A folder in the list is a model; another source may have what it lacks.
    signed_models.leave_out(model, last)
    elsewhere = model.parent / "elsewhere"
    elsewhere.mkdir()
    (model / shard(3)).rename(elsewhere / shard(3))
    refused(load_files, [model], verify=model / SUMS, said="is missing")
    refused(load_files, [model, model.parent / "m" / "." / shard(1)], verify=True, said="missing")
    same(load_files([model, elsewhere / shard(3)], verify=model / SUMS))


def test_a_shard_that_was_written_without_a_tensor(model):
    """Or with one that another file had: the header is not the one that was summed."""
    names = sorted(signed_models.names_in(model, shard(1)))
    signed_models.save_as_shard(model / shard(1), {names[0]: TENSORS[names[0]]})
    moved = {name: TENSORS[name] for name in signed_models.names_in(model, shard(2))}
    for files in ([shard(1)], [shard(1), shard(2)]):
        for source in (model, model / INDEX, [model / name for name in files]):
            with pytest.raises(SafetensorError):
                load_files(source, verify=True)
        with pytest.raises(IntegrityError, match="the digests are of another file"):
            load_file(model / shard(1), verify=True)
        signed_models.save_as_shard(model / shard(2), {**moved, names[1]: TENSORS[names[1]]})
        signed_models.edit_index(model, lambda weights: weights.update({names[1]: shard(2)}))


def test_sums_that_name_what_their_file_does_not_have(model):
    """They contradict themselves, but what they name is not there."""
    whole = _sums.read(str(model / SUMS))
    names = sorted(signed_models.names_in(model, shard(1)))
    bad = whole._replace(tensors={**whole.tensors, "more": whole.tensors[names[0]]})
    for load in (load_file, load_files):
        with pytest.raises(IntegrityError, match="`more` is missing: there is a digest of it"):
            load(model / shard(1), verify=bad)
    refused(load_files, model, verify=bad, said="`more` is missing: the sums")
    moved = whole.tensors[names[0]]._replace(file=shard(2))
    bad = whole._replace(tensors={**whole.tensors, names[0]: moved})
    with pytest.raises(SafetensorError, match=f"`{names[0]}` (has no digest|is missing)"):
        load_files(model, verify=bad)


def test_sums_of_more_than_the_folder(tmp_path):
    """The sums of a folder name all of its files, also those that an index does not."""
    files = [tmp_path / f"model-0000{i}-of-00002.safetensors" for i in (1, 2)]
    save_file({"a": torch.ones(3)}, files[0])
    save_file({"b": torch.ones(4)}, files[1])
    sums.write(tmp_path)
    assert set(load_files(tmp_path, verify=True)) == {"a", "b"}
    index = json.dumps({"weight_map": {"a": files[0].name}})
    (tmp_path / INDEX).write_text(index, encoding="utf-8")
    refused(load_files, tmp_path, verify=True, said=f"{INDEX}: tensor `b` is missing")
    assert set(load_files(tmp_path, verify=True, keys=["a"])) == {"a"}
    # Sums beside each file: nothing says which files the folder has.
    os.remove(tmp_path / INDEX)
    os.remove(tmp_path / SUMS)
    for file in files:
        sums.write(file)
    assert set(load_files(tmp_path, verify=True)) == {"a", "b"}


def test_a_dict_says_nothing_about_what_is_there(model):
    """`keys` with its names does."""
    digests = {
        name: f"sha256:{each.digests['sha256']}"
        for name, each in _sums.read(str(model / SUMS)).tensors.items()
    }
    signed_models.leave_out(model, signed_models.names_in(model, shard(2)))
    os.remove(model / shard(2))
    gone = TENSORS.keys() - set(load_files(model, verify=digests))
    assert len(gone) == 2
    with pytest.raises(SafetensorError, match="do not contain tensor"):
        load_files(model, verify=digests, keys=list(digests))


def test_hashes_of_numbered_files(model):
    hashes = {name: each.sha256 for name, each in sums.make(model, files=True).files.items()} | {
        "config.json": "0" * 64
    }
    same(load_files(model, expected_hashes=hashes))
    signed_models.edit_index(
        model, lambda weights: [weights.pop(n) for n, f in [*weights.items()] if f == shard(2)]
    )
    with pytest.raises(IntegrityError, match=f"{INDEX}: {shard(2)} is missing: expected_hashes"):
        load_files(model, expected_hashes=hashes)
    os.remove(model / INDEX)
    same(load_files(model, expected_hashes=hashes))
    os.remove(model / shard(2))
    for load in (load_files, into, streamed):
        with pytest.raises(SafetensorError, match="file number 2 is absent of the 3"):
            load(model, expected_hashes=hashes)
    assert load_files([model / shard(1)], expected_hashes=hashes)


def test_each_mutation_is_refused_or_changes_nothing(made, tmp_path):
    to = tmp_path / "m"
    for what, mutate in signed_models.mutations(signed_models.copy(made, to)):
        mutate()
        for load in (load_files, into):
            found = signed_models.loaded(load, to, verify="sha256")
            assert found is None or set(found) == set(TENSORS), what
            if found is not None:
                same(found)
        signed_models.copy(made, to)
    same(load_files(to, verify="sha256"))


def test_mutations_of_a_signed_model(made, tmp_path):
    keys = importlib.import_module("support.keys")
    from safetensors.signing import Signed

    pairs = keys.write(tmp_path)
    signed_folder = signed_models.copy(made, tmp_path / "signed")
    cli.output("sign", signed_folder, "--key", pairs["p256"].private)
    os.remove(signed_folder / "model.sig")
    to, signed = tmp_path / "m", Signed(key=pairs["p256"].public)
    same(load_files(signed_folder, verify=signed))
    for what, mutate in signed_models.mutations(signed_models.copy(signed_folder, to)):
        mutate()
        found = signed_models.loaded(load_files, to, verify=signed)
        if found is not None:
            assert set(found) == set(TENSORS), what
            same(found)
        signed_models.copy(signed_folder, to)


@pytest.mark.timed
def test_many_shards_take_linear_time(tmp_path):
    """Of the verifier alone: the sums name as many files as there are."""
    from safetensors._checking.verify import FileHashes, Verifier
    from safetensors._shards import ShardFile

    def seconds(count, make):
        files = {f"a/{i}/model-{i:05}-of-{count:05}.safetensors": i for i in range(count)}
        paths = [str(tmp_path / file) for file in files]
        shards = [ShardFile(path, folder=str(tmp_path)) for path in paths]
        best = float("inf")
        for _ in range(3):
            verifier = make(files)
            began = time.process_time()
            assert verifier.absent(shards) == []
            for path in paths:
                verifier.digests(path)
            best = min(best, time.process_time() - began)
        return best

    def of_sums(files):
        header = {"xxh3-128": "0" * 32}
        return Verifier(
            _sums.Sums(
                {file: _sums.FileSums(9, header) for file in files},
                {file: _sums.TensorSums(file, header) for file in files},
            )
        )

    def of_hashes(files):
        return FileHashes(dict.fromkeys(files, "0" * 64))

    for make in (of_sums, of_hashes):
        assert seconds(8000, make) < 30 * seconds(1000, make)
