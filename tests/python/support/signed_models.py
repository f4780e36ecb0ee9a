"""A signed model of several files, and what a stranger does to it."""

import json
import shutil

import torch

from safetensors import SafetensorError
from safetensors._checking import sums as _sums
from safetensors.torch import load_into, save_file, save_files, stream_files
from support import cli

INDEX = "model.safetensors.index.json"
SUMS = "model.sums.json"
TENSORS = {f"t.{i}": torch.full((10, 10), float(i)) for i in range(6)}
"""Two tensors for each of three shards."""


def shard(number):
    return f"model-{number:05}-of-00003.safetensors"


def same(found, names=tuple(TENSORS)):
    assert set(found) == set(names)
    assert all(torch.equal(found[name], TENSORS[name]) for name in names)


def into(filenames, **more):
    """Returns what `load_into` writes to zeros."""
    target = {name: torch.zeros(10, 10) for name in more.pop("keys", TENSORS)}
    load_into(target, filenames, strict=False, **more)
    return target


def streamed(filenames, **more):
    """Returns what `stream_files` yields."""
    return dict(stream_files(filenames, **more))


def write(folder, tensors, shard_nbytes):
    """Writes shards with an index, and sums by SHA-256."""
    save_files(tensors, folder, max_shard_size=shard_nbytes)
    cli.output("hash", folder, "--write", "--algorithm", "sha256")
    return sorted(path.name for path in folder.glob("*.safetensors"))


def copy(made, to):
    """Returns a new copy of a folder, instead of an older one."""
    shutil.rmtree(to, ignore_errors=True)
    return shutil.copytree(made, to)


def names_in(folder, file):
    """Returns the tensors that the sums put into a file."""
    sums = _sums.read(str(folder / SUMS))
    return {name for name, each in sums.tensors.items() if each.file == file}


def edit_index(folder, change):
    """Changes the weight map of an index in place."""
    path = folder / INDEX
    content = json.loads(path.read_text(encoding="utf-8"))
    change(content["weight_map"])
    path.write_text(json.dumps(content), encoding="utf-8")


def leave_out(folder, names):
    """Takes tensors out of an index."""
    edit_index(folder, lambda weights: [weights.pop(name) for name in names])


def save_as_shard(path, tensors):
    """Writes a shard anew as another program does, which leaves the sums as they are."""
    save_file(tensors, path.with_name("new"))
    path.with_name("new").replace(path)


def mutations(folder):
    """Yields names and functions that change the files of a folder: each removed, emptied, cut,
    renamed and exchanged with each other, and each set of them removed."""
    names = sorted(path.name for path in folder.iterdir())
    for name in names:
        path = folder / name
        size = path.stat().st_size
        for nbytes in sorted({0, 1, 8, size // 2, size - 1}):
            yield f"{name} cut to {nbytes}", lambda p=path, n=nbytes: _cut(p, n)
        for other in ("x.safetensors", "model.safetensors", "model.safetensors.index.json"):
            if other != name:
                yield f"{name} renamed to {other}", lambda p=path, n=other: p.replace(folder / n)
        for other in names:
            if other > name:
                yield f"{name} and {other} exchanged", lambda a=path, b=folder / other: _swap(a, b)
            if other != name:
                yield (
                    f"{name} copied over {other}",
                    lambda a=path, b=folder / other: b.write_bytes(a.read_bytes()),
                )
    for bits in range(1, 1 << len(names)):
        gone = [folder / name for at, name in enumerate(names) if bits >> at & 1]
        yield (
            " and ".join(path.name for path in gone) + " removed",
            lambda paths=gone: [path.unlink() for path in paths],
        )


def loaded(load, *arguments, **more):
    """Returns what a load returns; None if it refuses."""
    try:
        return load(*arguments, **more)
    except (SafetensorError, OSError):
        return None


def _cut(path, nbytes):
    path.write_bytes(path.read_bytes()[:nbytes])


def _swap(a, b):
    first, second = a.read_bytes(), b.read_bytes()
    a.write_bytes(second)
    b.write_bytes(first)
