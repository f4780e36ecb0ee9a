"""Errors are pickled, as by workers of a data loader."""

import pickle

import numpy as np
import pytest

import safetensors
from safetensors import SafetensorError, safe_open, weights
from safetensors.numpy import save_file
from support import children


def error_of(call):
    """Returns the error that the call raises."""
    with pytest.raises(Exception, match=".") as caught:
        call()
    return caught.value


@pytest.fixture
def errors(tmp_path):
    """One error of each class that combines ours with Python's, and of ours alone."""
    path = tmp_path / "a.safetensors"
    save_file({"a": np.zeros((3, 3), "f4")}, path)
    with safe_open(path, "np", backend="pread") as f, weights.open_weights(path) as model:
        rows = f.get_slice("a")
        return [
            error_of(lambda: f.get_tensor("b")),
            error_of(lambda: rows[5]),
            error_of(lambda: rows[10**30]),
            error_of(lambda: rows[::0]),
            error_of(lambda: safe_open("/dev/null", "np")),
            error_of(lambda: safe_open(tmp_path / "absent", "np")),
            error_of(lambda: save_file({}, tmp_path)),
            error_of(lambda: save_file({}, tmp_path / "absent" / "a")),
            error_of(lambda: model["b"]),
            error_of(lambda: weights.open_weights(tmp_path / "absent")),
            error_of(lambda: weights.open_weights(tmp_path / "absent.gguf")),
        ]


def state(error):
    """Returns all properties of an error."""
    return str(error), error.args, vars(error), getattr(error, "errno", None)


def test_errors_are_pickled(errors, tmp_path):
    """Errors and classes are unpickled here and in a process that has raised none."""
    assert sum(type(error).__bases__ != (Exception,) for error in errors) > 6
    for error in errors:
        copied, its_class = pickle.loads(pickle.dumps((error, type(error))))
        assert type(copied) is its_class is type(error)
        assert state(copied) == state(error)
    (tmp_path / "errors").write_bytes(pickle.dumps(errors))
    script = """
        import pickle
        for error in pickle.load(open(sys.argv[1], "rb")):
            print([c.__name__ for c in type(error).__mro__], ascii(str(error)), vars(error))
    """
    lines = [
        f"{[c.__name__ for c in type(error).__mro__]} {str(error)!a} {vars(error)}"
        for error in errors
    ]
    assert children.run(script, tmp_path / "errors").splitlines() == lines


def test_classes_by_name():
    """Modules have the names of error classes and no similar ones."""
    error = safetensors.SafetensorIndexError
    assert error is safetensors.SafetensorIndexError
    assert error.__mro__[1:3] == (SafetensorError, IndexError)
    assert weights.WeightsFileNotFoundError.__mro__[1:2] == (weights.WeightsError,)
    for module, prefix in ((safetensors, "Safetensor"), (weights, "Weights")):
        for name in ("SystemExit", "ZeroDivisionError", "Nothing", "print"):
            assert not hasattr(module, prefix + name)
