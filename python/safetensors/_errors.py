"""Makes the package's errors, with their fields. No other module makes one, as a test checks."""

import builtins
import errno
import os
from collections.abc import Callable, Mapping
from typing import Final, Literal, TypeVar

from ._core import SafetensorError, _error_class

E = TypeVar("E", bound=Exception)
Path = str | bytes | os.PathLike[str] | os.PathLike[bytes]

Code = Literal[
    "invalid_header_utf8",
    "invalid_header_json",
    "header_too_large",
    "header_too_small",
    "invalid_header_length",
    "duplicate_name",
    "invalid_offset",
    "invalid_tensor_info",
    "incomplete_data",
    "overflow",
    "misaligned_slice",
    "tensor_not_found",
    "too_many_indices",
    "index_out_of_bounds",
    "invalid_slice",
    "invalid_argument",
    "unsupported_dtype",
    "not_regular_file",
    "io",
    "file_changed",
    "out_of_memory",
    "device",
    "written_twice",
    "missing_tensors",
    "out_of_order",
    "writer_closed",
    "invalid_patch",
    "wrong_base",
    "patch_applied",
    "damaged",
    "no_model",
    "several_models",
    "incomplete_model",
]
"""The codes of SafetensorError: those of ErrorCode in C++."""

WeightsCode = Literal[
    "bad_shape",
    "different",
    "duplicate",
    "f16_overflow",
    "non_finite",
    "overflow",
    "unsupported",
]
"""The codes of WeightsError that Python gives: some of Errc in C++, and two of conversions."""

_NUMBERS: Final[Mapping[type[Exception], int]] = {
    FileNotFoundError: errno.ENOENT,
    PermissionError: errno.EACCES,
    TimeoutError: errno.ETIMEDOUT,
}


def failure(
    code: Code,
    text: str,
    *,
    path: Path | None = None,
    subject: object = None,
    also: type[Exception] | None = None,
) -> SafetensorError:
    """Returns a SafetensorError to raise.

    Args:
        code: what kind of fault it is.
        text: says what was found, and what is allowed where there is a choice.
        path: the file, folder or URL at fault. The text names it: at its end, unless before.
        subject: the name of the tensor, key or option at fault, which the text names.
        also: a built-in class that the error derives from, too. An OSError has `errno` and
            `filename`.
    """
    kind = SafetensorError if also is None else _error_class(also)
    error = failure_of(kind, code, text, path=path, subject=subject)
    if also is not None and issubclass(also, OSError):
        error.errno = _NUMBERS.get(also)  # type: ignore[attr-defined]
        error.filename = error.path  # type: ignore[attr-defined]
    return error


def failure_of(
    kind: type[E],
    code: Code | WeightsCode,
    text: str,
    *,
    path: Path | None = None,
    subject: object = None,
) -> E:
    """Returns an error of another class than SafetensorError. See `failure`."""
    shown = None if path is None else _shown(path)
    error = kind(f"{text} (in {shown})" if shown and shown not in text else text)
    error.code = code  # type: ignore[attr-defined]
    error.path = shown or None  # type: ignore[attr-defined]
    error.subject = None if subject is None else str(subject)  # type: ignore[attr-defined]
    return error


def while_loading(error: E, name: str, path: Path | None) -> E:
    """Returns an error of the same class whose text and fields name the tensor and its file."""
    return failure_of(
        type(error),
        getattr(error, "code", None) or "invalid_argument",
        f"Error while loading tensor {name}: {error}",
        path=path or None,
        subject=name,
    )


def not_a_tensor(
    name: object, value: object, expected: str, cause: Exception | None = None
) -> SafetensorError:
    """Returns the error for a value in a dict of tensors that is none: a ValueError, too.

    If `cause` is an AttributeError or a TypeError, the error is one instead, and begins with its
    text: upstream raises those of some frameworks.
    """
    text = f"Key `{name}` is invalid, expected {expected} but received {type(value)}"
    for also in (AttributeError, TypeError):
        if isinstance(cause, also):
            return failure("invalid_argument", f"{cause}. {text}", subject=name, also=also)
    return failure("invalid_argument", text, subject=name, also=ValueError)


def _shown(path: Path) -> str:
    name = os.fsdecode(path)
    if "://" not in name:
        return name
    from ._redact import redact

    return redact(name)


def class_named(
    name: str, prefix: str, make: Callable[[type[Exception]], type[Exception]]
) -> type[Exception] | None:
    """Returns the class with this name, such as SafetensorIndexError; None if there is none.

    pickle looks classes up by name when an error is sent to another process.

    Args:
        name: the prefix and the name of a built-in error.
        prefix: "Safetensor" or "Weights".
        make: returns the class that derives from the given built-in error.
    """
    base = getattr(builtins, name.removeprefix(prefix), None)
    kinds = (AttributeError, IndexError, KeyError, OSError, RuntimeError, TypeError, ValueError)
    if isinstance(base, type) and issubclass(base, kinds):
        return make(base)
    return None


def __getattr__(name: str) -> type[OSError]:
    """Returns a subclass of a built-in OSError that has `filename` and upstream's text."""
    base = getattr(builtins, name, None)
    if isinstance(base, type) and issubclass(base, OSError):
        from . import _core

        return _core._os_error_class(base)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
