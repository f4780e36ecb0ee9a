"""Models of files, for the commands that copy tensors."""

import json

import numpy as np

from safetensors import safe_open
from safetensors._saving.writer import safe_create
from safetensors.numpy import save
from support.file_builder import Raw, raw


def tensors(count=6, rows=64):
    """Returns tensors of whole blocks and of other sizes, with values that differ."""
    model = {}
    for i in range(count):
        model[f"layer.{i}.weight"] = np.full((rows, 1024), i, "f4")
        model[f"layer.{i}.bias"] = np.full(100 + i, i, "f2")
    model["ids"] = np.arange(10)
    return model


def write(path, model, layout="blocks", metadata=None):
    """Writes a file with a layout, and returns its path."""
    path.parent.mkdir(parents=True, exist_ok=True)
    specs = {name: (str(array.dtype), array.shape) for name, array in model.items()}
    with safe_create(path, specs, metadata=metadata, layout=layout) as writer:
        for name, array in model.items():
            writer.write(name, array)
    return path


def read(*paths):
    """Returns the tensors of files or folders as arrays."""
    found = {}
    for path in paths:
        index = path / "model.safetensors.index.json"
        files = [path]
        if path.is_dir():
            names = ["model.safetensors"]
            if index.exists():
                names = sorted(set(json.loads(index.read_text())["weight_map"].values()))
            files = [path / name for name in names]
        for file in files:
            with safe_open(file, "np") as opened:
                found |= {name: opened.get_tensor(name) for name in opened.offset_keys()}
    return found


def same(first, second):
    """Whether two dicts of arrays have the same names, dtypes, shapes and values."""
    return first.keys() == second.keys() and all(
        first[name].dtype == second[name].dtype and np.array_equal(first[name], second[name])
        for name in first
    )


def header(path):
    """Returns the header's bytes."""
    with path.open("rb") as file:
        return file.read(int.from_bytes(file.read(8), "little"))


def data_offset(path):
    """Returns the offset of the data section."""
    return 8 + len(header(path))


def serialized(model, metadata=None):
    """Returns the bytes of save for arrays."""
    return save(model, metadata)


def patched():
    """Returns two states: a tensor changes, one stays, one comes, one goes, one gets a dtype."""
    long = np.arange(70_000, dtype="<i4")
    old = {
        "h.0.weight": Raw("I32", (70, 1000), long.tobytes()),
        "h.1.weight": raw("BF16", (50,)),
        "gone": raw("F32", (3,)),
        "type": raw("I8", (4,)),
    }
    long[[3, 60_000, 69_999]] += 1
    new = {
        "h.0.weight": Raw("I32", (70, 1000), long.tobytes()),
        "h.1.weight": old["h.1.weight"],
        "new": raw("F4", (6,)),
        "type": raw("U8", (4,)),
    }
    return old, new
