"""How remote files are read: `storage_options`, and environment variables."""

from __future__ import annotations

import dataclasses
import os
import re
from collections.abc import Collection, Mapping
from typing import Any

from .._core import _MAX_THREADS
from .._near_names import suggestions
from . import errors

MB = 1 << 20
_MAX_BYTES = 1 << 30
_TOKEN = re.compile(r"[!#$%&'*+\-.^_`|~0-9A-Za-z]+")
# Headers that decide how the body is sent, or which part of which version.
_RESERVED = re.compile(
    "accept-encoding|connection|content-length|expect|host|if-.*|proxy-authorization|range|te|"
    "trailer|transfer-encoding|upgrade"
)


@dataclasses.dataclass(frozen=True)
class Settings:
    """How remote files are read. Its repr shows no secrets."""

    tries: int = 5
    connect_timeout: float = 5.0
    """Seconds until a connection is made, TLS included."""
    idle_timeout: float = 30.0
    """Seconds without a byte."""
    timeout: float = 600.0
    """Seconds of one read, its tries included."""
    concurrency: int = 32
    """Reads at once of one load. All loads of the process together make at most 32."""
    chunk_bytes: int = 8 * MB
    gap_bytes: int = MB
    """A shorter gap between two parts is read, not skipped."""
    headers: Mapping[str, str] = dataclasses.field(default_factory=dict, repr=False)
    """Sent to the host of the URL only."""
    verify: bool = True
    """Whether certificates are verified."""
    ca_file: str | None = None
    """Certificates in PEM format, instead of the system's."""
    proxy: str | None = dataclasses.field(default=None, repr=False)
    """The proxy's URL; empty: none; None: the environment's."""
    token: str | bool | None = dataclasses.field(default=None, repr=False)
    """Sent to the host of the URL only. False: none; None, True: the Hub's of the environment."""
    options: Mapping[str, Any] = dataclasses.field(default_factory=dict, repr=False)
    """The options that the engine of the scheme takes."""

    @staticmethod
    def of(
        storage_options: Mapping[str, Any] | None = None,
        engine_options: Collection[str] | None = (),
    ) -> Settings:
        """Returns the settings that a user chose.

        Args:
            storage_options: the fields above by name, and options of an engine.
            engine_options: the names that the engine takes, which get into `options`; None: any
                name but concurrency, chunk_bytes and gap_bytes, which is the engine's even if it is
                a field above.

        Raises:
            PermissionError: SAFETENSORS_REMOTE forbids URLs.
            SafetensorError: a name is unknown, or a value is not accepted.
        """
        refuse_if_off()
        if not isinstance(storage_options, (Mapping, type(None))):
            raise errors.refused("", "storage_options is not a dictionary")
        chosen: dict[str, Any] = {
            "concurrency": _of_environment("SAFETENSORS_REMOTE_CONCURRENCY", _MAX_THREADS),
            "chunk_bytes": _of_environment("SAFETENSORS_REMOTE_CHUNK_MB", _MAX_BYTES // MB, MB),
        }
        chosen = {name: value for name, value in chosen.items() if value is not None}
        options: dict[str, Any] = {}
        for name, value in dict(storage_options or {}).items():
            if name in (_CHECKS if engine_options is not None else _OF_LOADS):
                chosen[name] = _CHECKS[name](name, value)
            elif engine_options is None or name in engine_options:
                options[name] = value
            else:
                raise errors.refused("", _unknown(name, [*_CHECKS, *engine_options]))
        given = {name.lower() for name in chosen.get("headers", ())}
        if "authorization" in given and isinstance(chosen.get("token"), str):
            text = "storage_options has both a token and a header Authorization"
            raise errors.refused("", text)
        return Settings(**chosen, options=options)


def refuse_if_off() -> None:
    """Raises if SAFETENSORS_REMOTE forbids URLs."""
    value = os.environ.get("SAFETENSORS_REMOTE", "").strip().lower()
    if value in ("", "1", "on"):
        return
    if value in ("0", "off"):
        raise errors.denied("", f"SAFETENSORS_REMOTE={value} forbids reading URLs")
    raise errors.denied("", "SAFETENSORS_REMOTE is neither 0 nor 1, so URLs are not read")


def _unknown(name: object, known: Collection[str]) -> str:
    near = suggestions(name, sorted(known))
    text = f"storage_options has the unknown name {str(name)[:80]!r}"
    return text + (near or f"; known: {', '.join(sorted(known))}")


def _of_environment(name: str, most: int, unit: int = 1) -> int | None:
    text = os.environ.get(name, "").strip()
    if not text:
        return None
    if not (text.isascii() and text.isdigit() and 1 <= int(text[:10]) <= most):
        raise errors.refused("", f"{name} is not a number from 1 to {most}")
    return int(text) * unit


def _wrong(name: str, rule: str) -> Exception:
    # Without the value, which may be a secret.
    return errors.refused("", f"storage_options: {name!r} is not {rule}")


def _count(most: int, least: int = 1) -> Any:
    def check(name: str, value: Any) -> int:
        if isinstance(value, bool) or not isinstance(value, int) or not least <= value <= most:
            raise _wrong(name, f"an integer from {least} to {most}")
        return value

    return check


def _seconds(name: str, value: Any) -> float:
    good = isinstance(value, (int, float)) and not isinstance(value, bool)
    if not good or not 0.0 < value <= 86400.0:
        raise _wrong(name, "a number of seconds above 0, at most 86400")
    return float(value)


def _flag(name: str, value: Any) -> bool:
    if not isinstance(value, bool):
        raise _wrong(name, "True or False")
    return value


def _path(name: str, value: Any) -> str | None:
    if value is not None and not isinstance(value, (str, os.PathLike)):
        raise _wrong(name, "a path")
    return None if value is None else os.fspath(value)


def _proxy(name: str, value: Any) -> str | None:
    if value is not None and not isinstance(value, str):
        raise _wrong(name, "a URL")
    return value


def _token(name: str, value: Any) -> str | bool | None:
    if value is None or isinstance(value, bool):
        return value
    if not isinstance(value, str) or not is_header_value(value) or not value.strip():
        raise _wrong(name, "a token, True or False")
    return value.strip()


def _headers(name: str, value: Any) -> Mapping[str, str]:
    if not isinstance(value, Mapping):
        raise _wrong(name, "a dictionary of headers")
    found: dict[str, str] = {}
    for key, text in value.items():
        if not isinstance(key, str) or not _TOKEN.fullmatch(key):
            raise errors.refused("", "storage_options: a name in 'headers' is not a header's")
        if _RESERVED.fullmatch(key.lower()):
            raise errors.refused("", f"storage_options: 'headers' may not have {key}")
        if not isinstance(text, str) or not is_header_value(text):
            raise errors.refused("", f"storage_options: the header {key} has an invalid value")
        found[key] = text
    return found


def is_header_value(text: str) -> bool:
    """Returns whether the text can be the value of a header: no control characters, Latin-1."""
    return all(
        char == "\t" or (" " <= char <= "\xff" and not "\x7f" <= char < "\xa0") for char in text
    )


_CHECKS = {
    "tries": _count(100),
    "connect_timeout": _seconds,
    "idle_timeout": _seconds,
    "timeout": _seconds,
    "concurrency": _count(_MAX_THREADS),
    "chunk_bytes": _count(_MAX_BYTES),
    "gap_bytes": _count(_MAX_BYTES, 0),
    "headers": _headers,
    "verify": _flag,
    "ca_file": _path,
    "proxy": _proxy,
    "token": _token,
}
# What the library itself does, and no engine.
_OF_LOADS = ("concurrency", "chunk_bytes", "gap_bytes")
