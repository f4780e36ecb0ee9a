"""Files of the Hugging Face Hub: their URLs, and the token that users have set for it."""

from __future__ import annotations

import os
import re
import urllib.parse
from typing import Mapping, Optional, Tuple, Type

from . import errors
from .connections import Pool
from .http import HttpReader, refuse_plain_secrets, sends_plainly
from .settings import Settings, is_header_value
from .urls import Url

_TRUE = frozenset({"1", "ON", "YES", "TRUE"})
_SEGMENT = re.compile(r"[A-Za-z0-9._\-]+")
_FORM = "is not of the form hf://[datasets/|spaces/]org/repo[@revision][/path]"
_KINDS = ("datasets", "spaces")


class Repo:
    """A repository of the Hub at one revision: the commit that its first answer names."""

    def __init__(self, url: Url, settings: Settings) -> None:
        """Takes apart `hf://[datasets/|spaces/]org/repo[@revision][/path]`; sends nothing.

        Raises:
            SafetensorError: the URL is none of these, or HF_HUB_OFFLINE is set.
        """
        if _is_set("HF_HUB_OFFLINE"):
            raise errors.denied(url.name, "HF_HUB_OFFLINE is set")
        self._prefix, self.revision, _ = _parts(url)
        self._settings = settings
        self._endpoint = Url.parse(
            (os.environ.get("HF_ENDPOINT") or "https://huggingface.co").rstrip("/")
        )
        self._headers, self._credentials = _credentials(settings, self._endpoint, url.name)

    @property
    def repository(self) -> str:
        """Its kind, if it is no model, its owner and its name."""
        return self._prefix

    def path_of(self, url: Url) -> str:
        """Returns the path of a file in the repository."""
        return _parts(url)[2]

    def url(self, path: str) -> Url:
        """Returns the URL by which a web server has a file of the repository."""
        folder = f"{self._endpoint.text.rstrip('/')}/{self._prefix}/resolve"
        revision = urllib.parse.quote(self.revision, safe="")
        return Url.parse(f"{folder}/{revision}/{urllib.parse.quote(path, safe='/')}")

    def address(self, path: str) -> str:
        """Returns the hf:// URL of a file at the revision that is read."""
        return f"hf://{self._prefix}@{urllib.parse.quote(self.revision, safe='/')}/{path}"

    def name(self, path: str) -> str:
        """Returns the name of a file, for people."""
        return f"hf://{self._prefix}@{self.revision}/{path}"

    def pin(self, reader: HttpReader) -> None:
        """Reads later files at the commit of one that was opened."""
        self.revision = reader.resolved.commit or self.revision

    def reader(
        self, path: str, pool: Optional[Pool] = None, reader_class: Type[HttpReader] = HttpReader
    ) -> HttpReader:
        """Returns a reader of a file, which was not opened yet."""
        return reader_class(
            self.url(path),
            self._settings,
            pool=pool,
            name=self.name(path),
            headers=self._headers,
            credentials=self._credentials,
        )


def _parts(url: Url) -> Tuple[str, str, str]:
    """Returns the repository with its kind, the revision, and the path of a file in it."""
    if url.query:
        raise errors.refused(url.name, _FORM)
    parts = [url.host, *url.path.split("/")]
    kinds = [parts.pop(0)] if parts[0] in _KINDS else []
    org, repo = [*parts, "", ""][:2]
    repo, has_revision, revision = repo.partition("@")
    revision = urllib.parse.unquote(revision) if has_revision else "main"
    names = [org, repo, *revision.split("/")]
    if not (_SEGMENT.fullmatch(org) and _SEGMENT.fullmatch(repo) and revision.isprintable()):
        raise errors.refused(url.name, _FORM)
    if any(name in ("", ".", "..") for name in [*names, *parts[2:-1]]):
        raise errors.refused(url.name, _FORM)
    return "/".join([*kinds, org, repo]), revision, "/".join(parts[2:])


def _credentials(settings: Settings, endpoint: Url, name: str) -> Tuple[Mapping[str, str], str]:
    """Returns the headers for the Hub, and which token is in them."""
    headers = dict(settings.headers)
    used = "storage_options['headers']" if headers else ""
    token, source = _token(settings)
    is_given = isinstance(settings.token, str)
    is_free = all(key.lower() != "authorization" for key in headers)
    if token is not None and is_free and (is_given or not sends_plainly(endpoint)):
        headers["Authorization"], used = f"Bearer {token}", source
    refuse_plain_secrets(endpoint, headers, name)
    return headers, used


def _token(settings: Settings) -> Tuple[Optional[str], str]:
    if isinstance(settings.token, str):
        return settings.token, "storage_options['token']"
    if settings.token is False:
        return None, ""
    if settings.token is None and _is_set("HF_HUB_DISABLE_IMPLICIT_TOKEN"):
        return None, ""
    token = os.environ.get("HF_TOKEN", "").strip()
    source = "HF_TOKEN"
    if not token:
        path, source = _token_path(), "the token file of the Hub"
        try:
            with open(path, encoding="utf-8") as file:
                token = file.read(1 << 16).strip()
        except (OSError, UnicodeDecodeError):
            token = ""
    if not token:
        return None, ""
    if not is_header_value(token):
        raise errors.refused("", f"{source} has no valid token")
    return token, source


def _token_path() -> str:
    path = os.environ.get("HF_TOKEN_PATH")
    if not path:
        cache = os.environ.get("XDG_CACHE_HOME") or os.path.join("~", ".cache")
        home = os.environ.get("HF_HOME") or os.path.join(cache, "huggingface")
        path = os.path.join(home, "token")
    return os.path.expanduser(os.path.expandvars(path))


def _is_set(name: str) -> bool:
    return os.environ.get(name, "").strip().upper() in _TRUE
