"""Models in shards, for the tests of loading many files."""

import json

import torch

from safetensors.torch import save_file

BACKENDS = ["auto", "mmap", "pread", "direct"]
DTYPES = [torch.float32, torch.bfloat16, torch.int64, torch.bool, torch.complex64, torch.uint8]


def make(count, seed=0):
    """Returns tensors of several dtypes and shapes, some without elements or axes."""
    generator = torch.Generator().manual_seed(seed)
    tensors = {}
    for i in range(count):
        shape = [(), (0, 3), (5,), (3, 4), (2, 3, 5), (1000, 7)][i % 6]
        data = torch.randint(0, 2, shape, generator=generator)
        tensors[f"layers.{i}.weight"] = data.to(DTYPES[i % len(DTYPES)])
    return tensors


def write(directory, tensors, shards=2, index="model.safetensors.index.json"):
    """Saves the tensors in turn to `shards` files with an index; returns the index's path."""
    weight_map = {}
    for number in range(shards):
        name = f"model-{number + 1:05}-of-{shards:05}.safetensors"
        part = dict(list(tensors.items())[number::shards])
        save_file(part, directory / name)
        weight_map.update(dict.fromkeys(part, name))
    return write_index(directory / index, weight_map)


def write_index(path, weight_map):
    """Writes an index. `weight_map` may be wrong on purpose."""
    path.write_text(json.dumps({"metadata": {"total_size": 0}, "weight_map": weight_map}))
    return path


def shards_of(directory):
    """Returns the paths of a model's files, sorted."""
    return sorted(directory.glob("*.safetensors"))


def same(found, wanted):
    """Returns whether two tensors have the same dtype, shape and bytes."""
    return (
        found.dtype == wanted.dtype
        and found.shape == wanted.shape
        and bytes_of(found) == bytes_of(wanted)
    )


def bytes_of(tensor):
    """Returns the tensor's bytes."""
    return bytes(tensor.detach().contiguous().view(-1).view(torch.uint8).tolist())


def check(found, wanted):
    """Checks that both dicts hold the same tensors, bit for bit."""
    assert found.keys() == wanted.keys()
    assert [name for name in wanted if not same(found[name], wanted[name])] == []
