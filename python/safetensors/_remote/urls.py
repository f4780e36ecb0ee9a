"""URLs of remote files: which are accepted, and the files next to an index."""

from __future__ import annotations

import dataclasses
import re
import urllib.parse

from .._redact import redact
from . import errors

_URL = re.compile(r"([A-Za-z][A-Za-z0-9+.:\-]+)://")
_PARTS = re.compile(r"[^:]+://([^/?#]*)([^?#]*)(?:\?([^#]*))?(?:#.*)?")
_STORE_PARTS = re.compile(r"[^:]+://([^/?#]*)([^?]*)(?:\?(.*))?")
_HOST = re.compile(r"(?:\[[0-9A-Fa-f:.]+\]|[A-Za-z0-9_.\-]+)(?::[0-9]{1,5})?")
_UNFIT = re.compile("[\x00-\x1f\x7f-\x9f\ud800-\udfff]")
_UNFIT_IN_NAMES = re.compile("[\x00-\x1f\x7f-\x9f\ud800-\udfff?#%\\\\]")
_REMOVED = re.compile(r"(?:^|[=&;])\.\.\.(?:[&;]|$)")
_HEX = re.compile(r"%(?![0-9A-Fa-f]{2})")
# What stays as it is in a path or a query: the rest of ASCII, and what is quoted already.
_PLAIN = "/:@!$&'()*+,;=~-._%"

HTTP = frozenset({"http", "https"})
STORES = frozenset({"s3", "gs", "gcs", "az", "abfs", "abfss", "adl"})
MAX_CHARS = 8192
"""Web servers refuse longer request lines."""
_MAX_HOST_CHARS = 300
_LOCAL = frozenset({"file", "local", "reference"})


@dataclasses.dataclass(frozen=True)
class Url:
    """A URL that was checked. str() and repr() show no secrets; `text` is the URL itself."""

    scheme: str
    """In lower case."""
    host: str
    """For http, the host and the port if there is one. Otherwise the bucket or its like."""
    path: str
    """After the host and its "/". For http it is quoted; otherwise as written."""
    query: str = ""
    """Without "?"."""

    @staticmethod
    def parse(text: str) -> Url:
        """Returns the parts of a URL.

        Raises:
            SafetensorError: it is none, or not accepted.
        """
        found = _URL.match(text[:MAX_CHARS])
        if len(text) > MAX_CHARS:
            raise errors.refused(
                f"{found[1][:20]}://..." if found else "",
                f"is a URL of {len(text):,} characters: {MAX_CHARS:,} are allowed",
            )
        # Without all before the last "@": a password may have a "/" in it.
        shown = re.sub(r"://.*@", "://", redact("".join(text.split())))
        if found is None:
            raise errors.refused(
                shown, "is not a URL: give the path of a local file as a pathlib.Path"
            )
        scheme = found[1].lower()
        if ":" in scheme:
            raise errors.refused(shown, "chains of protocols are not read")
        if scheme in _LOCAL:
            raise errors.refused(shown, f"{scheme}:// is not read: give the path of a local file")
        if _UNFIT.search(text):
            raise errors.refused(shown, "has a control character or half of a surrogate pair")
        is_web = scheme in HTTP or scheme == "hf"
        parts = (_PARTS if is_web else _STORE_PARTS).fullmatch(text)
        if parts is None:
            raise errors.refused(shown, "is not a URL")
        host, path, query = parts[1], parts[2].removeprefix("/"), parts[3] or ""
        if "@" in host and (scheme not in ("abfs", "abfss") or ":" in host or host.count("@") > 1):
            raise errors.refused(
                shown, "has a user or a password in it: give them by storage_options"
            )
        if scheme in HTTP:
            host, path, query = _host(host, shown), _quoted(path), _quoted(query, "?")
        elif not host and (scheme in STORES or is_web):
            raise errors.refused(shown, "names no bucket or repository")
        if _REMOVED.search(query):
            raise errors.refused(
                shown,
                "lacks values of its query, as URLs in error texts and pickles do: give the whole "
                "URL",
            )
        return Url(scheme, host, path, query)

    @property
    def text(self) -> str:
        """The whole URL, which may have secrets in its query."""
        return f"{self.scheme}://{self.host}/{self.path}" + (f"?{self.query}" if self.query else "")

    def without_query(self) -> str:
        """Returns the URL with "..." instead of its query."""
        return dataclasses.replace(self, query="...").text if self.query else self.text

    @property
    def name(self) -> str:
        """The URL without secrets, for people."""
        return redact(self.text)

    @property
    def hostname(self) -> str:
        """The host without its port and brackets, for http."""
        host = self.host.rpartition(":")[0] if re.search(r":[0-9]*$", self.host) else self.host
        return host.strip("[]")

    @property
    def port(self) -> int:
        """The port, for http."""
        found = re.search(r":([0-9]+)$", self.host)
        return int(found[1]) if found else 443 if self.scheme == "https" else 80

    @property
    def target(self) -> str:
        """The path and the query, as a request spells them."""
        return f"/{self.path}" + (f"?{self.query}" if self.query else "")

    def __str__(self) -> str:
        return self.name

    def __repr__(self) -> str:
        return f"Url({self.name!r})"


def join(index: Url, name: str) -> Url:
    """Returns the URL of a file that an index names: always below the index's own folder.

    The query, which may be a signature for the index alone, is not carried over.

    Raises:
        SafetensorError: the name is not a relative path of plain segments.
    """
    if _UNFIT_IN_NAMES.search(name) or any(part in ("", ".", "..") for part in name.split("/")):
        raise errors.refused(
            index.name, f"names the file {name[:200]!r}, which is not a plain path below its folder"
        )
    if index.scheme in HTTP:
        name = urllib.parse.quote(name, safe="/~")
    folder = index.path[: index.path.rfind("/") + 1]
    return Url(index.scheme, index.host, folder + name)


def _host(host: str, shown: str) -> str:
    try:
        # Also checks the lengths of labels, which a look-up would refuse with another error.
        # Python 3.10.8 and older take quadratic time.
        host = host.encode("idna").decode("ascii") if len(host) <= _MAX_HOST_CHARS else ""
    except UnicodeError:
        host = ""
    if not _HOST.fullmatch(host) or int((re.search(r":([0-9]+)$", host) or "00")[1]) > 65535:
        raise errors.refused(shown, "has an invalid host")
    return host.lower()


def _quoted(text: str, also: str = "") -> str:
    # A "%" that begins no code is data, as in a name that nobody quoted.
    return urllib.parse.quote(_HEX.sub("%25", text), safe=_PLAIN + also)
