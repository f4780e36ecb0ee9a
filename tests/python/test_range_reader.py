"""safe_open of RangeReaders: what is asked of them, and what happens when they fail."""

import json
import os

import numpy as np
import pytest

from safetensors import SafetensorError, safe_open
from safetensors.numpy import save
from support import file_builder
from support.range_readers import FailingReader, MemoryReader

FIRST = 512 << 10
ARRAYS = {
    "a": np.arange(6, dtype="<f4").reshape(2, 3),
    "big": np.arange(1 << 20, dtype="<i4").reshape(1024, 1024),
    "none": np.zeros((0, 3), "<f8"),
}


def reader_of(arrays=None, cls=MemoryReader, *args):
    return cls(save(ARRAYS if arrays is None else arrays), *args)


def test_opening_makes_one_request_and_closing_closes():
    reader = reader_of()
    with safe_open(reader, "np") as file:
        assert file.keys() == ["a", "big", "none"]
        assert repr(file) == "<safe_open path='memory://model' framework='numpy' tensors=3>"
        assert (reader.opens, reader.reads, reader.closes) == ([FIRST], [], 0)
    assert reader.closes == 1
    assert repr(file) == "<safe_open path='memory://model' closed>"


def test_the_first_bytes_are_not_asked_for_again():
    reader = reader_of()
    with safe_open(reader, "np") as file:
        small, none = file.get_tensor("a"), file.get_tensor("none")
        assert reader.requests == 1
        big = file.get_tensor("big")
    for name, found in (("a", small), ("none", none), ("big", big)):
        assert found.dtype == ARRAYS[name].dtype
        np.testing.assert_array_equal(found, ARRAYS[name])
    asked = np.zeros(reader.opens and len(save(ARRAYS)), bool)
    asked[:FIRST] = True
    for offset, nbytes in reader.reads:
        assert not asked[offset : offset + nbytes].any()
        asked[offset : offset + nbytes] = True
    assert asked.all()


def test_a_header_beyond_the_first_bytes_costs_one_request_more():
    names = [f"layer.{i}.weight" for i in range(20_000)]
    data = file_builder.from_entries(
        {name: file_builder.entry("U8", [1], i, i + 1) for i, name in enumerate(names)},
        bytes(len(names)),
    )
    reader = MemoryReader(data)
    with safe_open(reader, "np") as file:
        assert len(file) == len(names)
    header = int.from_bytes(data[:8], "little") + 8
    assert reader.reads == [(FIRST, header - FIRST)]


def test_fewer_first_bytes_than_asked_for_are_fine():
    class Shy(MemoryReader):
        def open(self, nbytes):
            return super().open(10)

    reader = reader_of(cls=Shy)
    with safe_open(reader, "np") as file:
        np.testing.assert_array_equal(file.get_tensor("a"), ARRAYS["a"])
    assert all(offset >= 10 for offset, _ in reader.reads)


@pytest.mark.parametrize("wrap", [bytearray, memoryview, lambda data: np.frombuffer(data, "u1")])
def test_answers_may_be_any_buffer(wrap):
    class Wrapped(MemoryReader):
        def open(self, nbytes):
            size, first = super().open(nbytes)
            return np.int64(size), wrap(first)

        def read(self, offset, nbytes):
            return wrap(super().read(offset, nbytes))

    with safe_open(reader_of(cls=Wrapped), "np") as file:
        np.testing.assert_array_equal(file.get_tensor("big"), ARRAYS["big"])
        np.testing.assert_array_equal(file.get_slice("big")[5:9, 1], ARRAYS["big"][5:9, 1])


def test_all_ways_to_read_give_the_same():
    with safe_open(reader_of(), "np", backend="pread") as file:
        tensors = file.get_tensors()
        assert set(tensors) == set(ARRAYS)
        for name, expected in ARRAYS.items():
            np.testing.assert_array_equal(tensors[name], expected)
            np.testing.assert_array_equal(file[name], expected)
            np.testing.assert_array_equal(file.get_slice(name)[:1], expected[:1])
        np.testing.assert_array_equal(file.get_slice("big")[::-2, 3], ARRAYS["big"][::-2, 3])
        assert dict(file.items()).keys() == set(ARRAYS)
        assert file.get_tensor_meta("a").shape == [2, 3]


@pytest.mark.parametrize(
    ("framework", "module"),
    [("pt", "torch"), ("flax", "jax"), ("tf", "tensorflow"), ("mlx", "mlx.core"),
     ("paddle", "paddle")],
)  # fmt: skip
def test_every_framework(framework, module):
    pytest.importorskip(module)
    with safe_open(reader_of(), framework) as file:
        whole, part = file.get_tensor("big"), file.get_slice("big")[3:5]
        assert set(file.get_tensors()) == set(ARRAYS)
    np.testing.assert_array_equal(np.asarray(whole), ARRAYS["big"])
    np.testing.assert_array_equal(np.asarray(part), ARRAYS["big"][3:5])


def test_a_tensor_outlives_the_reader():
    reader = reader_of()
    file = safe_open(reader, "np")
    part = file.get_slice("big")
    file.close()
    assert reader.closes == 0
    np.testing.assert_array_equal(part[1], ARRAYS["big"][1])
    del part
    assert reader.closes == 1


# Errors ---------------------------------------------------------------------


class Special(Exception):
    pass


def test_the_exception_is_the_cause():
    cause = Special("no route\nsecond line")
    file = safe_open(reader_of(None, FailingReader, cause), "np")
    with pytest.raises(SafetensorError) as caught:
        file.get_tensor("big")
    assert caught.value.__cause__ is cause
    assert caught.value.code == "io"
    assert caught.value.path == "memory://model"
    assert "failed: Special: no route" in str(caught.value)
    assert "second line" not in str(caught.value)
    assert "memory://model" in str(caught.value)
    assert isinstance(caught.value, OSError)


@pytest.mark.parametrize("kind", [SafetensorError, KeyboardInterrupt, SystemExit, MemoryError])
@pytest.mark.parametrize("name", ["big", "a"])
def test_some_exceptions_are_raised_as_they_are(kind, name):
    error = kind("mine")
    arrays = {"pad": np.zeros(FIRST // 8), **ARRAYS}
    file = safe_open(reader_of(arrays, FailingReader, error), "np")
    with pytest.raises(kind) as caught:
        file.get_tensor(name)
    assert caught.value is error
    assert caught.value.__cause__ is None


def test_an_exception_may_say_that_the_file_changed():
    cause = Special("other ETag")
    cause.code = "file_changed"
    file = safe_open(reader_of(None, FailingReader, cause), "np")
    with pytest.raises(SafetensorError, match="other ETag") as caught:
        file.get_tensor("big")
    assert caught.value.code == "file_changed"
    assert caught.value.__cause__ is cause


def test_an_exception_without_a_text():
    class Mute(Exception):
        def __str__(self):
            raise ValueError("never")

    file = safe_open(reader_of(None, FailingReader, Mute()), "np")
    with pytest.raises(SafetensorError, match="failed: Mute"):
        file.get_tensor("big")


@pytest.mark.parametrize("more", [-1, 1])
def test_an_answer_of_another_length(more):
    class Wrong(MemoryReader):
        def read(self, offset, nbytes):
            super().read(offset, nbytes)
            return bytes(nbytes + more)

    arrays = {"x": np.zeros(FIRST + 100, "u1")}
    reader = reader_of(arrays, Wrong)
    file = safe_open(reader, "np")
    with pytest.raises(SafetensorError) as caught:
        file.get_tensor("x")
    ((offset, nbytes),) = reader.reads
    assert str(caught.value) == (
        f"read({offset}, {nbytes}) returned {nbytes + more} bytes (in memory://model)"
    )


@pytest.mark.parametrize("answer", [None, "text", 17, [1, 2]])
def test_an_answer_that_is_no_buffer(answer):
    class Wrong(MemoryReader):
        def read(self, offset, nbytes):
            return answer

    file = safe_open(reader_of(cls=Wrong), "np")
    with pytest.raises(SafetensorError, match=rf"returned a {type(answer).__name__}, no bytes"):
        file.get_tensor("big")


def test_a_buffer_with_gaps():
    class Wrong(MemoryReader):
        def read(self, offset, nbytes):
            return memoryview(bytes(2 * nbytes))[::2]

    file = safe_open(reader_of(cls=Wrong), "np")
    with pytest.raises(SafetensorError, match="buffer that cannot be read") as caught:
        file.get_tensor("big")
    assert isinstance(caught.value.__cause__, BufferError)


@pytest.mark.parametrize(
    ("answer", "text"),
    [
        ((-1, b""), "size is negative or above"),
        ((1 << 63, b""), "size is 9223372036854775808, not from 0 to 9223372036854775807"),
        ((1 << 70, b""), "size is negative or above"),
        ((True, b""), "size is no integer but a bool"),
        ((8.0, b""), "size is no integer but a float"),
        (("8", b""), "size is no integer but a str"),
        ((1, b"12"), "returned 2 bytes of 1"),
        ((1 << 30, bytes(FIRST + 1)), f"returned {FIRST + 1} bytes of {1 << 30}"),
        ((8, None), "returned a NoneType, no bytes"),
        (8, "returned a int, not a tuple"),
        ((8, b"", b""), "returned a tuple, not a tuple"),
        ((0, b""), "HeaderTooSmall"),
    ],
)
def test_open_that_says_what_cannot_be(answer, text):
    class Wrong(MemoryReader):
        def open(self, nbytes):
            return answer

    reader = Wrong(b"")
    with pytest.raises(SafetensorError) as caught:
        safe_open(reader, "np")
    assert text in str(caught.value).replace("header too small", "HeaderTooSmall")
    assert "memory://model" in str(caught.value)
    assert reader.closes == 1


def test_open_that_raises():
    class Wrong(MemoryReader):
        def open(self, nbytes):
            raise FileNotFoundError(2, "gone")

    reader = Wrong(b"")
    with pytest.raises(SafetensorError, match="open failed: FileNotFoundError") as caught:
        safe_open(reader, "np")
    assert isinstance(caught.value.__cause__, FileNotFoundError)
    assert reader.closes == 1


def test_a_header_that_claims_more_than_the_size_is_not_asked_for():
    reader = MemoryReader((1 << 62).to_bytes(8, "little") + bytes(1 << 20))
    with pytest.raises(SafetensorError, match="memory://model"):
        safe_open(reader, "np")
    assert reader.reads == []


@pytest.mark.parametrize(
    ("attribute", "value", "text"),
    [
        ("concurrency", 0, "concurrency is 0, not from 1 to 256"),
        ("concurrency", 257, "concurrency is 257"),
        ("concurrency", 2.5, "concurrency is no integer but a float"),
        ("chunk_bytes", 0, "chunk_bytes is 0"),
        ("chunk_bytes", True, "chunk_bytes is no integer but a bool"),
        ("gap_bytes", -1, "gap_bytes is negative"),
    ],
)
def test_settings_are_checked(attribute, value, text):
    reader = reader_of()
    setattr(reader, attribute, value)
    with pytest.raises(SafetensorError, match=text):
        safe_open(reader, "np")
    assert reader.requests == 1  # open() may settle them


def test_close_that_raises_is_reported_and_ignored(monkeypatch):
    class Wrong(MemoryReader):
        def close(self):
            raise Special("broken close")

    seen = []
    monkeypatch.setattr("sys.unraisablehook", lambda args: seen.append(args.exc_value))
    safe_open(reader_of(cls=Wrong), "np").close()
    assert [str(error) for error in seen] == ["broken close"]


# What is a reader -----------------------------------------------------------


def test_a_path_is_never_a_reader(tmp_path):
    path = tmp_path / "model.safetensors"
    path.write_bytes(save(ARRAYS))

    class Both(MemoryReader):
        def __fspath__(self):
            return os.fspath(path)

    reader = Both(b"")
    with safe_open(reader, "np") as file:
        assert len(file) == 3
    assert reader.requests == 0


@pytest.mark.parametrize("thing", [None, 3, object(), [b"a"]])
def test_other_objects_raise_the_type_error_of_paths(thing):
    with pytest.raises(TypeError, match="expected str, bytes or os.PathLike object"):
        safe_open(thing, "np")


def test_a_reader_has_a_name():
    reader = reader_of()
    del reader.name
    with pytest.raises(AttributeError, match="name"):
        safe_open(reader, "np")
    reader.name = b"bytes"
    with pytest.raises(TypeError, match="'name'"):
        safe_open(reader, "np")


def test_storage_options_are_for_urls(tmp_path):
    path = tmp_path / "model.safetensors"
    path.write_bytes(save(ARRAYS))
    for file in (os.fspath(path), os.fsencode(path), path, reader_of()):
        with pytest.raises(TypeError, match="storage_options"):
            safe_open(file, "np", storage_options={"retries": 1})
        safe_open(file, "np", storage_options=None).close()


def test_bytes_and_path_objects_are_never_urls(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    os.mkdir("s3:")
    with open("s3:/model", "wb") as file:
        file.write(save(ARRAYS))
    for name in (b"s3://model", os.fsencode(tmp_path) + b"/s3://model"):
        assert len(safe_open(name, "np")) == 3


def test_what_is_a_url():
    from safetensors._paths import is_url

    for url in ("s3://b/k", "HTTPS://h", "zip::s3://b", "a+b.c-d://x", "x9://"):
        assert is_url(url), url
    for path in ("", "a", "/data/a://b", "C://x", "a/b://c", "://x", "9p://x", "s3:/b", "sé://b"):
        assert not is_url(path), path
    assert not is_url(b"s3://b/k")
    assert not is_url(None)


def test_an_unknown_framework_makes_no_request():
    reader = reader_of()
    with pytest.raises(SafetensorError, match="framework"):
        safe_open(reader, "nope")
    assert reader.requests == 0


def test_index_from_bytes():
    from safetensors import _extra

    text = json.dumps(
        {"metadata": {"total_size": 7}, "weight_map": {"x": "b.safetensors", "y": "a.safetensors"}}
    ).encode()
    assert _extra._parse_index(text, "https://host/index.json") == (
        {"a.safetensors": ["y"], "b.safetensors": ["x"]},
        7,
    )
    for bad in (b"", b"[]", text.replace(b"b.safe", b"../b.safe")):
        with pytest.raises(SafetensorError, match="https://host/index.json"):
            _extra._parse_index(bad, "https://host/index.json")
