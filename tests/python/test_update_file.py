"""update_file changes, adds and removes tensors of a file as a whole."""

import os

import numpy as np
import pytest
import torch

import safetensors.torch
from safetensors import SafetensorError, safe_open, update_file
from safetensors.numpy import load_file, save_file
from support import reflink

OLD = {
    "a": np.arange(3000, dtype="f4"),
    "b": np.arange(70_000, dtype="i4").reshape(70, 1000),
    "c": np.arange(5, dtype="u1"),
    "none": np.empty((0, 3), "f8"),
}


@pytest.fixture
def path(tmp_path):
    file = tmp_path / "model.safetensors"
    save_file(OLD, file, {"format": "np"})
    return file


def check(path, expected, metadata=None):
    """Compares the file with arrays, and that nothing else is beside it."""
    found = load_file(path)
    assert set(found) == set(expected)
    for name, array in expected.items():
        np.testing.assert_array_equal(found[name], array)
        assert found[name].dtype == array.dtype
    with safe_open(path, "np") as file:
        assert file.metadata() == (metadata or {"format": "np"})
    assert os.listdir(path.parent) == [path.name]


def begin_of(path):
    return 8 + int.from_bytes(path.read_bytes()[:8], "little")


def test_values_change_and_the_rest_of_the_file_does_not(path):
    before = path.read_bytes()
    new = -OLD["a"]
    update_file(path, {"a": new})
    after = path.read_bytes()
    check(path, {**OLD, "a": new})
    at = before.index(OLD["a"].tobytes())
    assert after == before[:at] + new.tobytes() + before[at + new.nbytes :]


def test_without_tensors_the_bytes_stay(path):
    before = path.read_bytes()
    update_file(path, {})
    assert path.read_bytes() == before


@pytest.mark.parametrize(
    "value",
    [
        torch.full((3000,), 2.0),
        torch.full((3000, 2), 2.0)[:, 0],
        np.full(3000, 2.0, "f4"),
        np.full(3000, 2.0, ">f4"),
        np.full(3000, 2.0, "f4").tobytes(),
    ],
    ids=["torch", "strided", "numpy", "big-endian", "bytes"],
)
def test_every_kind_of_value_is_taken(path, value):
    update_file(path, {"a": value})
    check(path, {**OLD, "a": np.full(3000, 2.0, "f4")})


def test_tensors_are_added_at_the_end(path):
    begin = begin_of(path)
    added = {"d": np.arange(7, dtype="f8"), "e": np.ones((2, 2), "i2")}
    update_file(path, added, add=True)
    check(path, {**OLD, **added})
    assert begin_of(path) % 4096 == begin % 4096
    with safe_open(path, "np") as file:
        assert file.offset_keys()[-2:] == ["d", "e"]


def test_added_and_removed_tensors_keep_the_residue_of_the_others(path):
    begin = begin_of(path)
    many = {f"added.{i}": np.full(3, i, "u1") for i in range(200)}
    update_file(path, many, add=True)
    grown = begin_of(path)
    assert grown > begin
    assert (grown - begin) % 4096 == 0
    update_file(path, {}, remove=many)
    assert begin_of(path) == grown
    check(path, OLD)


def test_tensors_are_removed_changed_and_added_at_once(path):
    update_file(
        path,
        {"a": OLD["a"] + 1, "new": np.zeros(2, "f4")},
        add=True,
        remove=["b", "none"],
        metadata={"k": "v"},
    )
    expected = {"a": OLD["a"] + 1, "c": OLD["c"], "new": np.zeros(2, "f4")}
    check(path, expected, {"k": "v"})


def test_metadata_is_kept_set_or_removed(path):
    update_file(path, {})
    check(path, OLD, {"format": "np"})
    update_file(path, {}, metadata={"k": "v" * 5000})
    check(path, OLD, {"k": "v" * 5000})
    update_file(path, {}, metadata=None)
    with safe_open(path, "np") as file:
        assert file.metadata() is None


def test_everything_can_be_removed(path):
    update_file(path, {}, remove=list(OLD))
    check(path, {})


WRONG = [
    (
        {"tensors": {"a": np.zeros(3, "f4")}},
        SafetensorError,
        r"`a` is F32 \[3000\] in .*, but F32 \[3",
    ),
    (
        {"tensors": {"a": np.zeros(3000, "i4")}},
        SafetensorError,
        r"`a` is F32 .* but I32 \[3000\] was",
    ),
    (
        {"tensors": {"x": np.zeros(3, "f4")}},
        KeyError,
        r"model.*: there is no tensor `x`; the option `add` adds",
    ),
    ({"tensors": {}, "remove": ["x"]}, KeyError, r"model.*: there is no tensor `x`"),
    ({"tensors": {"a": OLD["a"]}, "remove": ["a"]}, SafetensorError, "`a` is both changed and rem"),
    ({"tensors": {"a": b"123"}}, SafetensorError, "`a` takes 12,000 bytes, 3 are given"),
    ({"tensors": {"x": b"123"}, "add": True}, TypeError, "`x` is new: it needs a dtype"),
    ({"tensors": {"a": 1.5}}, TypeError, "float"),
    ({"tensors": {}, "remove": "a"}, TypeError, "remove is a list of names, not 'a'"),
]


@pytest.mark.parametrize(("arguments", "kind", "text"), WRONG)
def test_a_wrong_tensor_leaves_the_file(path, arguments, kind, text):
    with pytest.raises(kind, match=text):
        update_file(path, **arguments)
    check(path, OLD)


def test_unknown_names_are_errors_of_both_kinds(path):
    with pytest.raises(SafetensorError) as caught:
        update_file(path, {"x": OLD["a"]})
    assert isinstance(caught.value, KeyError)


def test_a_file_that_does_not_exist_is_not_made(tmp_path):
    with pytest.raises(FileNotFoundError):
        update_file(tmp_path / "none", {"a": OLD["a"]}, add=True)
    assert os.listdir(tmp_path) == []


def test_tensors_may_be_views_of_the_file_and_old_mappings_stay(path):
    tensors = safetensors.torch.load_file(path)
    update_file(path, {"a": tensors["a"].flip(0), "b": tensors["b"]})
    np.testing.assert_array_equal(tensors["a"].numpy(), OLD["a"])
    check(path, {**OLD, "a": OLD["a"][::-1]})


@pytest.mark.parametrize("way", ["replaced", "written"])
def test_a_file_changed_meanwhile_is_an_error(path, way):
    class Value:
        """An array that changes the file when it is read."""

        dtype, shape = OLD["a"].dtype, OLD["a"].shape

        def __dlpack__(self, **kwargs):
            if way == "replaced":
                save_file({"other": OLD["a"]}, path)
            else:
                with open(path, "r+b") as file:
                    file.seek(-1, os.SEEK_END)
                    file.write(b"x")
                os.utime(path, ns=(1, 1))
            return OLD["a"].__dlpack__(**kwargs)

        def __dlpack_device__(self):
            return OLD["a"].__dlpack_device__()

    with pytest.raises(SafetensorError, match="replaced or written to") as caught:
        update_file(path, {"a": Value()})
    assert caught.value.code == "file_changed"
    assert os.listdir(path.parent) == [path.name]
    assert ("other" in load_file(path)) == (way == "replaced")


@pytest.mark.parametrize("kind", reflink.KINDS)
def test_unchanged_tensors_share_their_blocks(tmp_path, kind):
    with reflink.mounted(kind, tmp_path) as root:
        path = root / "model.safetensors"
        generator = np.random.default_rng(0)
        tensors = {f"layer.{i}": generator.bytes(16 << 20) for i in range(4)}
        arrays = {name: np.frombuffer(data, "u1") for name, data in tensors.items()}
        save_file(arrays, path)
        assert begin_of(path) % 4096 != 0
        before = path.stat().st_ino
        kept = load_file(path)  # keeps the old file's blocks
        used = reflink.used_nbytes(root)
        change = np.frombuffer(generator.bytes(1 << 20), "u1")
        many = {f"small.{i:04}": change[:3] for i in range(200)}  # the header grows
        update_file(path, {"change": change, **many}, add=True)
        update_file(path, {"change": change[::-1]}, remove=many)
        assert path.stat().st_ino != before
        new = reflink.used_nbytes(root) - used
        assert new < 6 << 20, f"{new} new bytes for a change of 1 MiB"
        found = load_file(path)
        for name, array in {**arrays, "change": change[::-1]}.items():
            np.testing.assert_array_equal(found[name], array)
        del kept, found
