"""`delta.apply_file(in_place=True)`: patches are applied to the files of a model themselves."""

import os
import shutil

import pytest
import torch

import safetensors
from safetensors import SafetensorError, delta
from safetensors.torch import load_file, load_files, save_file, save_files
from support import cli, in_place_changes
from support.replaced_calls import fail

pytestmark = pytest.mark.usefixtures("leases")

OLD = {f"l.{i}": torch.arange(40_000).view(200, 200).bfloat16() for i in range(5)}
NEW = {name: tensor.clone() for name, tensor in OLD.items()}
for number, each in enumerate([*NEW.values()][:4]):
    each.view(torch.int16)[number::17] += 1
NEWER = {**NEW, "l.4": NEW["l.4"] + 1}


@pytest.fixture
def place(tmp_path):
    """A file, a model of several files, and two patches."""
    save_file(OLD, tmp_path / "m.safetensors", {"k": "v"})
    save_files(OLD, tmp_path / "model", max_shard_size=170_000)
    delta.diff(OLD, NEW, tmp_path / "1.safetensors-patch").close()
    delta.diff(NEW, NEWER, tmp_path / "2.safetensors-patch", values="set").close()
    return tmp_path


def same(found, expected):
    return found.keys() == expected.keys() and all(
        torch.equal(found[name], expected[name]) for name in expected
    )


def test_a_file(place):
    path = place / "m.safetensors"
    before = path.stat()
    delta.apply_file(path, place / "1.safetensors-patch", in_place=True, verify="whole")
    assert path.stat().st_ino == before.st_ino
    save_file(NEW, place / "expected.safetensors", {"k": "v"})
    assert path.read_bytes() == (place / "expected.safetensors").read_bytes()


@pytest.mark.parametrize("source", ["model", "model/model.safetensors.index.json"])
def test_shards_and_a_chain(place, source):
    names = sorted(os.listdir(place / "model"))
    patches = [place / "1.safetensors-patch", place / "2.safetensors-patch"]
    delta.apply_file(place / source, patches, in_place=True, verify="whole")
    assert same(load_files(place / "model"), NEWER)
    assert sorted(os.listdir(place / "model")) == names


def test_the_wrong_base_changes_nothing(place):
    for source in ("m.safetensors", "model"):
        with pytest.raises(delta.WrongBaseError):
            delta.apply_file(
                place / source, place / "2.safetensors-patch", in_place=True, verify="whole"
            )
        assert same(load_files(place / source), OLD)
    assert not [name for name in os.listdir(place / "model") if name.startswith(".")]


def test_twice(place):
    for _ in range(2):
        delta.apply_file(
            place / "model", place / "1.safetensors-patch", in_place=True, already="skip"
        )
    with pytest.raises(delta.AlreadyAppliedError):
        delta.apply_file(place / "model", place / "1.safetensors-patch", in_place=True)
    assert same(load_files(place / "model"), NEW)


def test_what_needs_a_new_file(place):
    delta.diff(OLD, {**OLD, "new": torch.ones(3)}, place / "3.safetensors-patch").close()
    delta.diff(OLD, {"l.0": OLD["l.0"]}, place / "4.safetensors-patch").close()
    for number in (3, 4):
        with pytest.raises(ValueError, match="needs a new file"):
            delta.apply_file(place / "model", place / f"{number}.safetensors-patch", in_place=True)
    assert same(load_files(place / "model"), OLD)


def test_an_output_or_in_place(place):
    with pytest.raises(ValueError, match="needs an output"):
        delta.apply_file(place / "model", place / "1.safetensors-patch")
    with pytest.raises(ValueError, match="needs an output"):
        delta.apply_file(place / "model", place / "1.safetensors-patch", place / "o", in_place=True)


@pytest.mark.parametrize("to_the_end", [False, True])
def test_fail_at_each_call(place, to_the_end):
    """A model of several files is old, new or refused; never a mixture of shards."""
    seen = []
    for at in range(1, 1000):
        folder = place / f"{at}"
        shutil.copytree(place / "model", folder)
        try:
            with in_place_changes.Steps(at, fail(5), to_the_end):
                delta.apply_file(folder, place / "1.safetensors-patch", in_place=True)
            break
        except OSError:
            pass
        try:
            found = load_files(folder)
        except SafetensorError:
            seen.append("refused")
        else:
            assert same(found, OLD) or same(found, NEW)
            seen.append("old" if same(found, OLD) else "new")
        safetensors.recover(folder)
        assert same(
            load_files(folder), NEW if seen[-1] == "refused" else OLD if seen[-1] == "old" else NEW
        )
        shutil.rmtree(folder)
    assert {"old", "refused"} <= {*seen}


def test_command(place):
    path, patch = place / "m.safetensors", place / "1.safetensors-patch"
    assert cli.run("patch", path, patch, "--in-place")
    assert same(load_file(path), NEW)
    assert "has this patch already" in cli.complaint("patch", path, patch, "--in-place")
    other = place / "2.safetensors-patch"
    with path.open("rb"):
        assert "it is open or mapped" in cli.complaint("patch", path, other, "--in-place")
    assert cli.run("patch", path, other, "--in-place", "--shared")
    assert same(load_file(path), NEWER)


def test_a_name_in_two_files(place):
    """As for loads: which of the two is meant is not known."""
    folder = place / "model"
    first, *_, last = sorted(path for path in folder.iterdir() if path.suffix != ".json")
    names = load_file(last)
    tensors = load_file(first)
    save_file({**tensors, **names}, first)
    with pytest.raises(SafetensorError, match="is in two files"):
        delta.apply_file(folder, place / "1.safetensors-patch", in_place=True)
    assert same({**load_file(first), **load_file(last)}, {**tensors, **names})


def test_recovery_leaves_a_newer_shard_alone(place):
    """A shard with the same header that was saved after the change was interrupted."""
    folder = place / "model"
    shards = sorted(path for path in folder.iterdir() if path.suffix != ".json")
    steps = in_place_changes.steps_after_the_mark(fail(5))
    newer = {name: tensor * 0 for name, tensor in load_file(shards[1]).items()}
    with pytest.raises(OSError, match="Input/output"), steps:
        delta.apply_file(folder, place / "1.safetensors-patch", in_place=True)
    save_file(newer, shards[1], {"format": "pt"})
    kept = shards[1].read_bytes()
    assert safetensors.recover(folder) == "rolled forward"
    assert shards[1].read_bytes() == kept
    assert load_file(shards[0])["l.0"].equal(NEW["l.0"])
