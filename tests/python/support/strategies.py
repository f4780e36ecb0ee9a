"""Hypothesis strategies for tensors, names, metadata and files."""

import os

from hypothesis import settings
from hypothesis import strategies as st

from support import file_builder
from support.dtype_table import BY_NAME

MULTIPLIER = float(os.environ.get("SAFETENSORS_TEST_EXAMPLES", "1"))


def examples(count):
    """Returns settings for `count` examples times SAFETENSORS_TEST_EXAMPLES."""
    return settings(max_examples=max(1, int(count * MULTIPLIER)))


# Lone surrogates have no UTF-8; they have tests of their own.
letters = st.characters(exclude_categories=["Cs"])
awkward = st.sampled_from(
    ['"', "\\", "/", "\x00", "\x1f", "\x7f", "\n", "\u2028", "é", "😀", "\ufeff"]
)
text = st.text(st.one_of(letters, awkward), max_size=8)
names = text.filter(lambda name: name != "__metadata__")
no_or_one_key = st.one_of(st.none(), st.dictionaries(text, text, max_size=1))
metadata = st.one_of(st.none(), st.dictionaries(text, text, max_size=4))
shapes = st.lists(st.integers(0, 4), max_size=4).map(tuple)


@st.composite
def raws(draw, dtypes):
    """Draws a Raw of one of the named dtypes."""
    dtype = draw(st.sampled_from(dtypes))
    shape = draw(shapes)
    if BY_NAME[dtype].bits < 8:
        # PyTorch packs along the last dimension, so that one has to be whole bytes.
        shape = (*shape, 4 * draw(st.integers(0, 2)))
    size = BY_NAME[dtype].nbytes(shape)
    fill = draw(st.binary(min_size=min(size, 16), max_size=min(size, 16)))
    data = (fill * (size // 16 + 1))[:size]
    if dtype == "BOOL":
        data = bytes(value & 1 for value in data)
    return file_builder.Raw(dtype, shape, data)


def tensor_dicts(dtypes, max_size=6):
    """Draws a dict of Raw; its order need not be that of the names."""
    return st.lists(
        st.tuples(names, raws(dtypes)), max_size=max_size, unique_by=lambda x: x[0]
    ).map(dict)


@st.composite
def files(draw, dtypes):
    """Draws a good file whose key order and JSON style are those of no particular writer."""
    tensors = draw(tensor_dicts(dtypes))
    order = draw(st.randoms(use_true_random=False))

    def shuffled(keys):
        order.shuffle(keys)
        return keys

    style = draw(
        st.sampled_from(
            [
                {},
                {"ensure_ascii": False},
                {"separators": (",", ":")},
                {"indent": 1},
                {"indent": "\t", "ensure_ascii": False},
            ]
        )
    )
    return file_builder.to_bytes(tensors, draw(metadata), shuffled, **style)
