"""Both packages refuse bad files with the same class, and upstream's text begins ours."""

from collections import Counter
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from support import (
    corruption,
    file_builder,
    hostile_headers,
    intentional_differences,
    operations,
    strategies,
)

ERROR = "safetensors._safetensors_rust.SafetensorError"
JSON_DETAIL = "invalid JSON in header: "


def kept_part(text):
    """Returns the part of upstream's text that ours repeats: all but its JSON parser's details."""
    head, found, _ = text.partition(JSON_DETAIL)
    return head + found


def same_failure(ours, theirs):
    """Checks that both raised the same class, and that our text begins with upstream's."""
    assert not theirs.ok, "upstream accepts this"
    assert not ours.ok, f"accepted; upstream: {theirs.failure.text}"
    assert ours.failure.kind == theirs.failure.kind == ERROR
    assert ours.failure.text.startswith(kept_part(theirs.failure.text))


@pytest.fixture(params=[pytest.param("keys_by_file", marks=pytest.mark.slow), "keys_by_bytes"])
def read(request, upstream, scratch):
    """Returns both packages' Outcomes of reading bytes, from a file or directly."""

    def both(content):
        source = content
        if request.param == "keys_by_file":
            source = str(file_builder.write(scratch / "bad.safetensors", content))
        return operations.run(request.param, source), upstream.run(request.param, source)

    return both


@pytest.mark.parametrize("name", hostile_headers.REFUSED)
def test_refused(read, name):
    """Each file of the table is refused, and upstream's text is the prefix of ours."""
    same_failure(*read(hostile_headers.REFUSED[name]))


def test_two_tensors_on_the_same_bytes(read):
    """They are refused; the error names either of them."""
    ours, theirs = read(hostile_headers.SAME_BYTES_TWICE)
    theirs = theirs._replace(failure=theirs.failure._replace(text=theirs.failure.text[:-3]))
    same_failure(ours, theirs)


@pytest.mark.parametrize("name", hostile_headers.ACCEPTED)
def test_accepted(read, name):
    """Both packages accept each unusual but valid file of the table."""
    content = hostile_headers.ACCEPTED[name]
    assert intentional_differences.why_refused(content) is None
    ours, theirs = read(content)
    assert ours.unwrap() == theirs.unwrap()


@pytest.mark.parametrize("name", hostile_headers.ACCEPTED)
def test_accepted_is_understood_alike(upstream, scratch, name):
    """Metadata, shapes and names of the unusual files are equal."""
    path = str(file_builder.write(scratch / "odd.safetensors", hostile_headers.ACCEPTED[name]))
    ours = operations.run("look", path, "np", "mmap").unwrap()
    theirs = upstream.run("look", path, "np", "mmap").unwrap()
    assert sorted(ours.pop("offset_keys")) == sorted(theirs.pop("offset_keys"))
    assert ours == theirs


def test_the_backend_does_not_matter(scratch):
    """pread raises the same errors."""
    for name, content in hostile_headers.REFUSED.items():
        path = str(file_builder.write(scratch / "backend.safetensors", content))
        by_mmap = operations.run("look", path, "np", "mmap")
        by_pread = operations.run("look", path, "np", "pread")
        assert not by_pread.ok, name
        assert by_mmap.failure == by_pread.failure, name


def test_nesting_ends_where_upstreams_ends(read):
    """The deepest unknown field that upstream accepts is accepted, and one more level is not."""
    accepted = [read(hostile_headers.nested(depth))[1].ok for depth in range(100, 140)]
    deepest = 99 + accepted.index(False)
    ours, theirs = read(hostile_headers.nested(deepest))
    assert ours.unwrap() == theirs.unwrap() == ["a"]
    same_failure(*read(hostile_headers.nested(deepest + 1)))


@pytest.mark.parametrize(
    "content", [hostile_headers.GOOD, hostile_headers.ACCEPTED["unknown fields"]]
)
def test_every_prefix_is_refused(read, content):
    """A download may stop at any byte."""
    for size in range(len(content)):
        same_failure(*read(content[:size]))
    ours, theirs = read(content)
    assert ours.unwrap() == theirs.unwrap() == ["a"]


def same_verdict(ours, theirs, content):
    """Checks that the verdict is upstream's, except for intended differences, and returns it."""
    reason = intentional_differences.why_refused(content)
    if reason is None and theirs.ok:
        assert ours.unwrap() == theirs.value
        return "accepted"
    assert not ours.ok, f"accepted, though: {reason or theirs.failure.text}"
    assert ours.failure.kind == ERROR
    if reason is None:
        # Of two tensors at one place upstream names whichever its hash table gives first.
        expected = kept_part(theirs.failure.text).partition("for tensor `")
        assert ours.failure.text.startswith("".join(expected[:2]))
    return reason or "refused"


def test_damaged_files(read):
    """Both packages agree on files with changed bits, bytes, tokens and JSON trees."""
    seen = Counter()

    @strategies.examples(40)
    @given(st.integers(0, 2**64 - 1))
    def check(seed):
        random = Random(seed)
        for _ in range(100):
            content = corruption.corrupted(random)
            seen[same_verdict(*read(content), content)] += 1

    check()
    # A generator that stops to reach these would make the test say nothing.
    assert seen["accepted"] > seen.total() / 50
    assert seen["refused"] > seen.total() / 10
    assert len(seen) >= 5


def test_every_byte_of_a_header_changed(read):
    """Each byte of a valid file's length and header is set to several values."""
    tensors = {"a": file_builder.raw("F4", (2, 2)), "\\": file_builder.raw("U8", (3,))}
    good = file_builder.to_bytes(tensors, {"k": "v"}, separators=(",", ":"))
    end = len(good) - sum(len(tensor.data) for tensor in tensors.values())
    for at in range(end):
        for value in b' 0-"}],\\\x80':
            content = good[:at] + bytes([value]) + good[at + 1 :]
            same_verdict(*read(content), content)


CALLS = {
    "missing tensor": "safe_open(path, 'np').get_tensor('zz')",
    "missing slice": "safe_open(path, 'np').get_slice('zz')",
    "missing empty name": "safe_open(path, 'np').get_tensor('')",
    "tensor name a number": "safe_open(path, 'np').get_tensor(5)",
    "tensor name None": "safe_open(path, 'np').get_tensor(None)",
    "tensor name bytes": "safe_open(path, 'np').get_slice(b'a')",
    "tensor name with a lone surrogate": r"safe_open(path, 'np').get_tensor('a\ud800')",
    "missing file": "safe_open('no-such-file.st', 'np')",
    "missing file, load_file": "sn.load_file('no-such-file.st')",
    "path a number": "safe_open(5, 'np')",
    "path None": "safe_open(None, 'np')",
    "no framework": "safe_open(path)",
    "framework unknown": "safe_open(path, 'xyz')",
    "framework in capitals": "safe_open(path, 'NP')",
    "framework empty": "safe_open(path, '')",
    "framework None": "safe_open(path, None)",
    "backend unknown": "safe_open(path, 'np', backend='x')",
    "backend in capitals": "safe_open(path, 'np', backend='MMAP')",
    "backend None": "safe_open(path, 'np', backend=None)",
    "backend by position": "safe_open(path, 'np', 'cpu', 'mmap')",
    "backend of load_file": "sn.load_file(path, backend='x')",
    "device unknown": "safe_open(path, 'np', 'xyz')",
    "device empty": "safe_open(path, 'np', '')",
    "device in capitals": "safe_open(path, 'np', 'CPU')",
    "device -1": "safe_open(path, 'np', -1)",
    "device 2**70": "safe_open(path, 'np', 2**70)",
    "device 1.5": "safe_open(path, 'np', 1.5)",
    "device cuda:x": "safe_open(path, 'np', 'cuda:x')",
    "device cuda:": "safe_open(path, 'np', 'cuda:')",
    "device cuda:-1": "safe_open(path, 'np', 'cuda:-1')",
    "device cuda:2**64": "safe_open(path, 'np', 'cuda:18446744073709551616')",
    "cuda for NumPy": "safe_open(path, 'np', 'cuda')",
    "cuda:1 for NumPy": "safe_open(path, 'np', 'cuda:1')",
    "mps for NumPy": "safe_open(path, 'np', 'mps')",
    "xpu for NumPy": "safe_open(path, 'np', 'xpu:0')",
    "device 0 for NumPy": "safe_open(path, 'np', 0)",
    "deserialize a str": "safetensors.deserialize('x')",
    "TensorSpec by position": "safetensors.TensorSpec('float32', [2], 0, 8)",
    "TensorSpec of unknown dtype": (
        "safetensors.TensorSpec(dtype='F32', shape=[2], data_ptr=8, data_len=8)"
    ),
    "TensorSpec of negative size": (
        "safetensors.TensorSpec(dtype='int8', shape=[-1], data_ptr=8, data_len=0)"
    ),
    "TensorSpec of wrong length": (
        "safetensors.serialize({'a': safetensors.TensorSpec("
        "dtype='float32', shape=[2], data_ptr=8, data_len=7)})"
    ),
    "TensorSpec too large": (
        "safetensors.serialize({'a': safetensors.TensorSpec("
        "dtype='float32', shape=[2**62, 4], data_ptr=8, data_len=0)})"
    ),
    "serialize a list": "safetensors.serialize([])",
    "serialize no argument": "safetensors.serialize()",
    "serialize a number as name": "safetensors.serialize({1: 2})",
    "serialize not a TensorSpec": "safetensors.serialize({'a': {}})",
    "metadata a list": "safetensors.serialize({}, [])",
    "metadata value a number": "safetensors.serialize({}, {'a': 1})",
    "metadata value None": "safetensors.serialize({}, {'a': None})",
    "metadata key a number": "safetensors.serialize({}, {1: 'a'})",
    "handle of a str": "safetensors._safe_open_handle('x', 'np')",
    "handle of None": "safetensors._safe_open_handle(None, 'np')",
    "subclass": "type('S', (safetensors.safe_open,), {})",
    "pickle": "__import__('pickle').dumps(safe_open(path, 'np'))",
    "attribute": "setattr(safe_open(path, 'np'), 'x', 1)",
    "NumPy object": "sn.save({'a': np.array([None])})",
    "NumPy complex128": "sn.save({'a': np.zeros(2, 'c16')})",
    "NumPy list": "sn.save({'a': [1, 2]})",
    "NumPy no dict": "sn.save(5)",
    "file saved to a missing folder": "sn.save_file({}, str(path) + '.no/x.st')",
    "file saved to None": "sn.save_file({}, None)",
}


@pytest.mark.parametrize("name", CALLS)
def test_wrong_calls(upstream, scratch, name):
    """Wrong arguments raise upstream's class or one derived from it."""
    path = str(file_builder.write(scratch / "good.safetensors", hostile_headers.GOOD))
    ours = operations.run("evaluate", CALLS[name], path=path)
    theirs = upstream.evaluate(CALLS[name], path=path)
    assert not theirs.ok
    assert not ours.ok
    assert theirs.failure.kind in (ours.failure.kind, *ours.failure.bases)
    if theirs.failure.kind not in ("builtins.TypeError", "builtins.AttributeError"):
        # A temporary file's name is in one of these texts.
        assert ours.failure.text.startswith(theirs.failure.text.partition(' at path "')[0])
