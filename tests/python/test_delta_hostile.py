"""Patches from anyone: each is refused or does what it says, with nothing changed if refused."""

import time

import numpy as np
import pytest

from safetensors import _extra, delta, safe_open
from support import file_builder
from support.file_builder import Raw

DIGEST = "xxh3-128:" + "0" * 32
METADATA = {"format": "safetensors-patch", "patch_version": "1", "base": DIGEST, "target": DIGEST}
BASE = np.arange(70_000, dtype="<i4")
TARGET = BASE.copy()
TARGET[::1000] += 1
TARGET[7] -= 1_000_000


def digest_of(array):
    hasher = _extra._TensorHasher("I32", array.shape)
    hasher.update(array)
    return hasher.digest()


def entries():
    """Returns the entries of a valid patch."""
    record, values, *_ = _extra._encode_patch(BASE.tobytes(), TARGET.tobytes(), "I32", BASE.shape)
    removed = _extra._whole_patch(None, "I32", (1,), base_digest=digest_of(np.zeros(1, "<i4")))
    data = np.ones((2, 3), "<f4")
    whole = _extra._whole_patch(data, "F32", (2, 3), base_digest=None)
    return {
        "r/x": Raw("U8", (len(record),), bytes(record)),
        "v/x": Raw("I32", (len(values) // 4,), bytes(values)),
        "r/gone": Raw("U8", (96,), bytes(removed)),
        "r/new": Raw("U8", (96,), bytes(whole)),
        "v/new": Raw("F32", (2, 3), data.tobytes()),
    }


def write(path, changed=(), metadata=METADATA):
    """Writes a patch with entries changed or, if None, left out."""
    found = {**entries(), **dict(changed)}
    found = {name: entry for name, entry in found.items() if entry is not None}
    return file_builder.write(path / "p.safetensors-patch", found, metadata)


def refused(path, words, kind=delta.PatchError):
    tensors = {"x": BASE.copy(), "gone": np.zeros(1, "<i4"), "kept": np.ones(1)}
    with pytest.raises(kind) as caught:
        delta.apply(tensors, path)
    assert (tensors["x"] == BASE).all()
    assert tensors.keys() == {"x", "gone", "kept"}
    text = str(caught.value)
    assert "\n" not in text
    for word in ("p.safetensors-patch", *words):
        assert word in text, text


def test_the_patch_is_valid(tmp_path):
    tensors = {"x": BASE.copy(), "gone": np.zeros(1, "<i4")}
    delta.apply(tensors, write(tmp_path))
    assert (tensors["x"] == TARGET).all()
    assert tensors.keys() == {"x", "new"}


@pytest.mark.parametrize(
    ("metadata", "words"),
    [
        (None, ["not a patch"]),
        ({**METADATA, "base": DIGEST + "\n"}, ["`base` is"]),
        ({**METADATA, "target_label": "é" * 129}, ["`target_label`", "256"]),
    ],
    ids=["none", "digest", "label"],
)
def test_metadata(tmp_path, metadata, words):
    path = write(tmp_path, metadata=metadata)
    refused(path, words)
    with pytest.raises(delta.PatchError):
        delta.open_patch(path)


def test_other_metadata_is_ignored(tmp_path):
    delta.open_patch(write(tmp_path, metadata={**METADATA, "more": "x"})).close()


X = entries()["r/x"]


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"": Raw("U8", (1,), b"x")}, ["entry ``"]),
        ({"v/y": Raw("U8", (1,), b"x")}, ["`y`", "values and no record"]),
        ({"r/x": Raw("I8", X.shape, X.data)}, ["`x`", "I8"]),
        ({"r/x": Raw("U8", (0,), b"")}, ["`x`"]),
        ({"r/x": Raw("U8", X.shape, X.data[:-1] + b"\x55")}, ["`x`", "it is damaged"]),
        ({"v/x": Raw("F64", (0,), b"")}, ["`x`"]),
        ({"v/x": Raw("I16", (2,), entries()["v/x"].data)}, ["`x`"]),
        ({"v/gone": Raw("I32", (1,), bytes(4))}, ["`gone`"]),
    ],
    ids=str,
)
def test_entries(tmp_path, change, words):
    """A record without values, values without a record, other names, dtypes and sizes."""
    refused(write(tmp_path, change), words)


def test_values_of_another_dtype(tmp_path):
    """A valid record for another dtype of the same size is not one for this tensor."""
    values = entries()["v/x"]
    path = write(tmp_path, {"v/x": Raw("F32", values.shape, values.data)})
    refused(path, ["`x`", "F32", "I32"], delta.WrongBaseError)


def test_names_are_only_names(tmp_path):
    """Nothing is resolved: not paths, not control characters."""
    record = entries()["r/new"]
    values = entries()["v/new"]
    names = ["../x", "/etc/x", "a\nb", "\x1b[0m", "r/x", "v/x", " ", "x" * 5000]
    found = {}
    for name in names:
        found |= {"r/" + name: record, "v/" + name: values}
    path = file_builder.write(tmp_path / "p.safetensors-patch", found, METADATA)
    tensors = {"x": BASE.copy()}
    delta.apply(tensors, path)
    assert tensors.keys() == {"x", *names}


@pytest.mark.timed
@pytest.mark.slow
def test_opening_many_records(tmp_path):
    """Opening 100,000 records takes about twice as long as opening the file."""
    record, values = entries()["r/new"], entries()["v/new"]
    found = {}
    for i in range(100_000):
        found |= {f"r/layers.{i}": record, f"v/layers.{i}": values}
    path = file_builder.write(tmp_path / "p.safetensors-patch", found, METADATA)

    def seconds(function):
        begin = time.process_time()
        function().close()
        return time.process_time() - begin

    ratios = [
        seconds(lambda: delta.open_patch(path))
        / seconds(lambda: safe_open(path, "np", backend="pread"))
        for _ in range(5)
    ]
    assert min(ratios) < 4
