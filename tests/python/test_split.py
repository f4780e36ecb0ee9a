"""Which tensors go to which file of a model, and what the files are called."""

import itertools
import json
import os

import numpy as np
import pytest

from safetensors import _extra
from safetensors import numpy as stn
from safetensors._saving import split as _split


def test_every_split_of_a_few_sizes():
    """Each tensor is in one shard, in order; none is too large, and no two neighbours fit in
    one, unless a large tensor is a shard of its own."""
    for sizes in itertools.product([0, 1, 2, 3, 5], repeat=5):
        shards = _split.split(dict(enumerate(sizes)), 4).shards
        found = [[sizes[i] for i in shard] for shard in shards]
        assert sorted(itertools.chain.from_iterable(found)) == sorted(sizes)
        assert all(sum(shard) <= 4 for shard in found if shard != [5])
        small = [shard for shard in found if shard != [5]]
        assert list(itertools.chain(*small)) == [size for size in sizes if size < 5]
        assert all(sum(a) + b[0] > 4 for a, b in itertools.pairwise(small))
        assert _split.split(dict(enumerate(sizes)), 4).total_size == sum(sizes)


@pytest.mark.parametrize(
    ("text", "nbytes"),
    [
        ("5GB", 5_000_000_000),
        ("5 gb", 5_000_000_000),
        ("1.5KB", 1500),
        (" 2GiB ", 2 << 30),
        ("3MiB", 3 << 20),
        ("1TB", 10**12),
        ("1TiB", 1 << 40),
        ("2G", 2 * 10**9),
        ("100", 100),
        ("100B", 100),
        (100, 100),
    ],
)
def test_size(text, nbytes):
    assert _split.parse_size(text) == nbytes


@pytest.mark.parametrize(
    "text",
    ["", "GB", "five", "-5GB", "5XB", "5iB", "infGB", "nanGB", "1e3MB", "5GBB", "\u0663GB", "5\0"],
)
def test_bad_size(text):
    with pytest.raises(ValueError, match="^not a size: "):
        _split.parse_size(text)


@pytest.mark.parametrize("size", [0, -1, "0GB", "0.1B"])
def test_no_size(size):
    with pytest.raises(ValueError, match=r"is too small$"):
        _split.parse_size(size)


def test_too_many_shards():
    sizes = {str(i): 2 for i in range(100_000)}
    with pytest.raises(ValueError, match=r"max_shard_size=1 makes 100,000 shards; .* 99,999$"):
        _split.split(sizes, 1)
    del sizes["0"]
    assert len(_split.split(sizes, 1).shards) == 99_999


def test_names():
    assert _split.file_names("model", 1) == ["model.safetensors"]
    assert _split.file_names("a b", 2) == [
        "a b-00001-of-00002.safetensors",
        "a b-00002-of-00002.safetensors",
    ]
    assert _split.index_name("model") == "model.safetensors.index.json"
    assert len(os.fsencode(_split.file_names("x" * 228, 99_999)[-1])) == 255


@pytest.mark.parametrize("name", ["", "a/b", "x" * 229])
def test_bad_name(name):
    with pytest.raises(ValueError, match=r"^(not a name for a model's files|a model's name has)"):
        _extra._check_model_name(name, _split.MAX_NAME_NBYTES)


@pytest.mark.parametrize("name", ["model", "a.b", "diffusion_pytorch_model", "ä" * 64, "a\nb"])
def test_good_name(name):
    _extra._check_model_name(name, _split.MAX_NAME_NBYTES)


def test_index(tmp_path):
    """The text, byte for byte, and that names survive it."""
    names = ["b", 'q"\n\x7f', "\u00e4\U0001f600"]
    stn.save_files({name: np.zeros(4, "u1") for name in names}, tmp_path, max_shard_size=8)
    text = (tmp_path / "model.safetensors.index.json").read_text(encoding="ascii")
    first, second = _split.file_names("model", 2)
    weight_map = dict(zip(names, (first, first, second), strict=True))
    content = {"metadata": {"total_size": 12}, "weight_map": weight_map}
    assert text == json.dumps(content, indent=2)
    assert list(json.loads(text)["weight_map"]) == names
