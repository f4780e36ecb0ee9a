"""Turns errors of obstore into those that users of URLs get."""

from __future__ import annotations

import datetime
import re
from typing import Any, NamedTuple

from . import errors
from .credentials import Used
from .retry import error_of


class PastTheEnd(Exception):
    """The server says that the range begins at or after the end of the object."""


class Version(NamedTuple):
    """What tells two versions of an object apart."""

    size: int
    tag: str | None
    modified: datetime.datetime | None

    @staticmethod
    def of(meta: Any) -> Version:
        """Returns the version that obstore's answer is of."""
        version = Version(meta["size"], meta["e_tag"], meta["last_modified"])
        # With a strong tag, the time does not matter: servers behind one name may disagree on it.
        return version._replace(modified=None) if version.is_strong else version

    @property
    def is_strong(self) -> bool:
        """Whether the tag can be sent as If-Match."""
        return self.tag is not None and not self.tag.startswith("W/")

    def describe(self) -> str:
        """Returns what identifies it."""
        return self.tag if self.tag and self.is_strong else f"{self.tag}, {self._measures()}"

    def told_from(self, other: Version) -> tuple[str, str]:
        """Returns what names this version and another one in an error."""
        if self.tag and other.tag and self.tag != other.tag:
            return self.tag, other.tag
        return self._measures(), other._measures()

    def _measures(self) -> str:
        return f"{self.size} bytes" + (f" of {self.modified}" if self.modified else "")


_PREFIX = re.compile(r"^Generic [A-Za-z0-9 ]+ error: ")
_STATUS = re.compile(r"status code: (\d{3})\b")
_CODE = re.compile(r"<Code>([A-Za-z0-9_.]{1,80})</Code>")
_TRIES = re.compile(r"in ([0-9.]+)(s|ms|µs|ns), after (\d+) retries")
# The services that give credentials to instances: of AWS (two), Google, and Azure.
_METADATA = re.compile(
    r"Error performing [A-Z]+ \S+/"
    r"(latest/api/token|latest/meta-data|computeMetadata|metadata/identity)\b"
)
_SECONDS = {"s": 1.0, "ms": 1e-3, "µs": 1e-6, "ns": 1e-9}
_CAUSES = (
    # A word at the end of an obstore error's text, and what our error says instead.
    ("TimedOut", "does not answer in time"),
    ("dns error", "its host is not known"),
    ("ConnectionRefused", "the connection was refused"),
    ("InvalidCertificate", "its certificate is not valid"),
    ("InvalidContentType", "does not speak TLS"),
    ("ConnectionReset", "the connection was reset"),
)
_REGION = frozenset({"AuthorizationHeaderMalformed", "PermanentRedirect", "TemporaryRedirect"})


def rewritten(error: Exception, name: str, used: Used, pinned: Version | None) -> Exception:
    """Returns the error of our table for an error of obstore, whose text may have secrets."""
    from obstore import exceptions

    text = str(error)
    status = next(iter(_STATUS.findall(text)), None)
    code = next(iter(_CODE.findall(text)), None)
    said = f"the server says {status}" + (f" {code}" if code else "")
    advice = f": {used.advice}" if used.advice else ""
    if _METADATA.search(text):
        return errors.denied(name, f"no credentials were found ({used.words}){advice}")
    if isinstance(error, FileNotFoundError) or status in ("404", "410"):
        return errors.missing(name, f"does not exist: {said}")
    denied = (exceptions.PermissionDeniedError, exceptions.UnauthenticatedError)
    if isinstance(error, denied) or status in ("401", "403"):
        return errors.denied(name, f"{said}, with these credentials: {used.words}{advice}")
    if isinstance(error, exceptions.PreconditionError):
        was = pinned.tag if pinned else None
        return errors.changed(name, was or "unknown", "another version")
    if status == "416":
        return PastTheEnd()
    if isinstance(error, ValueError):
        return errors.refused(name, "has a path that obstore does not accept")
    tries = ""
    if found := _TRIES.search(text):
        seconds = float(found[1]) * _SECONDS[found[2]]
        tries = f", after {int(found[3]) + 1} tries in {seconds:.1f} s"
    if code in _REGION or "redirect without LOCATION" in text:
        return errors.failed(name, "the bucket is in another region: set AWS_REGION")
    if status is not None:
        return error_of(int(status))(name, said + tries)
    for word, meaning in _CAUSES:
        if word in text:
            make = errors.timed_out if word == "TimedOut" else errors.unreachable
            return make(name, meaning + tries)
    if "HTTP error" in text:
        return errors.unreachable(name, "the connection failed" + tries)
    return errors.failed(name, plain(error) + tries)


def plain(error: Exception) -> str:
    """Returns the first line of an error of obstore, which errors.py redacts."""
    return _PREFIX.sub("", next(iter(str(error).splitlines()), type(error).__name__))
