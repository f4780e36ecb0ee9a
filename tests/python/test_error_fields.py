"""The fields of errors: code, path and subject, beside the text."""

import errno
import os
import pickle

import numpy as np
import pytest

import safetensors
from safetensors import SafetensorError, _core, safe_open
from safetensors.numpy import save, save_file
from support import file_builder, hostile_cases
from support.file_builder import entry, from_entries, raw


def error_of(call):
    """Returns the error that the call raises."""
    with pytest.raises(Exception, match=".") as caught:
        call()
    return caught.value


def fields(error):
    return error.code, error.path, error.subject


@pytest.fixture
def path(tmp_path):
    """A file with the matrix `a`."""
    return str(file_builder.write(tmp_path / "m.safetensors", {"a": raw("F32", (3, 3))}))


def opened(path):
    return safe_open(path, "np", backend="pread")


CALLS = {
    "not found": (lambda path: opened(path).get_tensor("b"), "tensor_not_found", "b"),
    "not found, by []": (lambda path: opened(path)["b"], "tensor_not_found", "b"),
    "not found, empty": (lambda path: opened(path).get_tensor(""), "tensor_not_found", None),
    "out of bounds": (lambda path: opened(path).get_slice("a")[5], "index_out_of_bounds", "a"),
    "out of bounds, negative": (
        lambda path: opened(path).get_slice("a")[-9], "index_out_of_bounds", "a",
    ),
    "too large": (lambda path: opened(path).get_slice("a")[10**30], "index_out_of_bounds", "a"),
    "too many": (lambda path: opened(path).get_slice("a")[0, 0, 0], "too_many_indices", "a"),
    "step": (lambda path: opened(path).get_slice("a")[::0], "invalid_slice", "a"),
    "list": (lambda path: opened(path).get_slice("a")[[7]], "invalid_argument", "a"),
    "missing": (lambda path: opened(path + ".no"), "io", None),
    "directory": (lambda path: opened(os.path.dirname(path)), "not_regular_file", None),
}  # fmt: skip


@pytest.mark.parametrize("name", CALLS)
def test_calls(path, name):
    """Errors have code, path and subject; the text names both, and pickling keeps all."""
    call, code, subject = CALLS[name]
    error = error_of(lambda: call(path))
    found = {"missing": path + ".no", "directory": os.path.dirname(path)}.get(name, path)
    assert fields(error) == (code, found, subject)
    assert str(error).count(found) == 1
    if code.startswith(("index", "too", "invalid")):
        assert str(error).endswith(f": tensor `a` (in {path})")
    copied = pickle.loads(pickle.dumps(error))
    assert (type(copied), fields(copied)) == (type(error), fields(error))


def code_of(row):
    """Returns invalid_offset for kInvalidOffset."""
    return "".join("_" + c.lower() if c.isupper() else c for c in row.expect[1:]).lstrip("_")


@pytest.mark.slow
def test_every_hostile_file(tmp_path):
    """The code is the table's, for a path and for bytes."""
    seen = set()
    for row in hostile_cases.LIGHT:
        if row.expect == "ok":
            continue
        path = tmp_path / "bad.safetensors"
        path.write_bytes(row.file())
        error = error_of(lambda path=path: safe_open(path, "np"))
        assert (error.code, error.path) == (code_of(row), str(path)), row.name
        error = error_of(lambda row=row: safetensors.deserialize(row.file()))
        assert (error.code, error.path) == (code_of(row), None), row.name
        seen.add(error.code)
    assert len(seen) > 9


def test_the_subject_of_a_bad_header(tmp_path):
    """It is the tensor at fault; in a truncated file, the first whose bytes are missing."""
    good = from_entries({"a": entry("U8", (4,), 0, 4), "b": entry("U8", (4,), 4, 8)}, bytes(8))
    cases = {
        from_entries({"a": entry("U8", (4,), 1, 5)}, bytes(5)): "a",
        from_entries({"a": entry("U8", (4,), 0, 5)}, bytes(5)): "a",
        from_entries({"a": entry("X8", (4,), 0, 4)}, bytes(4)): "a",
        good[:-1]: "b",
        good[:-8]: "a",
        good + b"x": None,
        good[:9]: None,
    }
    for content, subject in cases.items():
        path = file_builder.write(tmp_path / "bad.safetensors", content)
        assert error_of(lambda path=path: safe_open(path, "np")).subject == subject, content


def test_errors_of_saving(tmp_path):
    """They are both SafetensorError and OSError."""
    missing = tmp_path / "no" / "m.safetensors"
    error = error_of(lambda: save_file({"a": np.zeros(3)}, missing))
    assert fields(error) == ("io", str(missing), None)
    assert (error.errno, error.filename) == (errno.ENOENT, str(missing))
    error = error_of(lambda: save({"__metadata__": np.zeros(3)}))
    assert fields(error) == ("invalid_argument", None, "__metadata__")


def test_an_empty_path():
    """The texts are upstream's, except that ours goes on with the path of a file to be written."""
    error = error_of(lambda: safe_open("", "np"))
    assert isinstance(error, FileNotFoundError)
    assert str(error) == "No such file or directory: "
    assert error.code == "io"
    error = error_of(lambda: save_file({}, ""))
    text = "Error while serializing: I/O error: No such file or directory (os error 2)"
    assert str(error) == text + ' at path ""'
    assert error.errno == errno.ENOENT


def test_a_nul_in_the_name_of_a_save():
    error = error_of(lambda: save_file({}, "a\0b"))
    assert isinstance(error, SafetensorError)
    assert isinstance(error, FileNotFoundError)
    assert str(error) == "No such file or directory: a NUL in the name"
    assert fields(error) == ("io", None, None)


def test_errors_of_arguments(path):
    """They have a code, and the text lists what is allowed."""
    for call, allowed in (
        (lambda: safe_open(path, "nonsense"), '"pt", "np", "tf"'),
        (lambda: safe_open(path, "np", "nonsense"), '"cpu", "cuda:N"'),
        (lambda: safe_open(path, "np", backend="nonsense"), '"mmap", "pread"'),
    ):
        error = error_of(call)
        assert fields(error) == ("invalid_argument", None, None)
        assert "nonsense" in str(error)
        assert allowed in str(error)


def test_errors_of_programs(path):
    """An error that a program makes itself has no fields."""
    assert fields(SafetensorError("text")) == (None, None, None)
    assert fields(safetensors.SafetensorIndexError("text")) == (None, None, None)
    assert fields(safetensors._errors.FileNotFoundError("text")) == (None, None, None)


def test_a_load_names_file_and_tensor(path):
    """A system error in a reader thread has a filename too."""
    pytest.importorskip("torch")
    handle = _core._open_shard(path, "pread")
    os.remove(path)
    error = error_of(lambda: _core._load_groups([("cpu", [(handle, "a", None, None)])], None))
    assert isinstance(error, FileNotFoundError)
    assert fields(error) == ("io", path, "a")
    assert (error.errno, error.filename) == (errno.ENOENT, path)
    assert str(error) == f"Error while loading tensor `a`: No such file or directory: {path}"


def test_a_name_that_is_not_utf8(tmp_path):
    """The path is the str that names the file."""
    name = os.fsencode(tmp_path) + b"/\xff.safetensors"
    error = error_of(lambda: safe_open(name, "np"))
    assert error.path == error.filename == os.fsdecode(name)


def test_each_module_raises_its_own_errors(tmp_path):
    """The compiled modules share one file, for which pybind11 keeps one list of translators."""
    from safetensors.weights import WeightsError, open_weights

    path = tmp_path / "short.safetensors"
    path.write_bytes(b"1234")
    assert type(error_of(lambda: safe_open(path, "np"))) is SafetensorError
    assert isinstance(error_of(lambda: open_weights(path)), WeightsError)
    assert type(error_of(lambda: safe_open(path, "np"))) is SafetensorError
