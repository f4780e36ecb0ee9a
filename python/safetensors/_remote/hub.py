"""Files of the Hugging Face Hub: their URLs, and the token that users have set for it."""

from __future__ import annotations

import http.client
import os
import re
import urllib.parse
from collections.abc import Mapping

from .. import _json
from .._core import SafetensorError
from . import errors, hub_errors
from .connections import Pool
from .http import HttpReader, refuse_plain_secrets, sends_plainly
from .settings import Settings, is_header_value
from .urls import Url

_TRUE = frozenset({"1", "ON", "YES", "TRUE"})
_KINDS = {"models": "", "datasets": "datasets/", "spaces": "spaces/", "kernels": "kernels/"}
_FORM = "is not of the form hf://[models/|datasets/|spaces/|kernels/]org/repo[@revision][/path]"
# org/repo[@revision][/path]. Two kinds of revisions may have a "/" that is not quoted.
_REST = re.compile(
    r"([^/@]+)/([^/@]+)(?:@(refs/(?:pr/[0-9]+|convert/[\w.\-]+)(?=/|$)|[^/]*))?(?:/(.*))?",
    re.DOTALL,
)
# As huggingface_hub checks them, so that the folder of a repository in its cache is no other's.
_SEGMENT = re.compile(r"(?!.*(?:--|\.\.))(?!.*\.git$)[A-Za-z0-9._\-]+")
_TOKENS = ("HF_TOKEN", "HUGGING_FACE_HUB_TOKEN")
# Of a listing: the bytes of a page, which has 1,000 names, and how many pages.
_MAX_OF_PAGE = 16 << 20
_MAX_PAGES = 100
_NEXT = re.compile(r'<([^<>]*)>\s*;[^,<]*\brel="?next\b')


class Repo:
    """A repository of the Hub at one revision: the commit that its first answer names."""

    def __init__(self, url: Url, settings: Settings) -> None:
        """Takes apart `hf://[KIND/]org/repo[@revision][/path]`; sends nothing.

        Raises:
            SafetensorError: the URL is none of these, or the token is none.
        """
        self._prefix, self.revision, _ = parts_of(url)
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
        return parts_of(url)[2]

    def url(self, path: str) -> Url:
        """Returns the URL by which a web server has a file of the repository."""
        folder = f"{self._endpoint.text.rstrip('/')}/{self._prefix}/resolve"
        revision = urllib.parse.quote(self.revision, safe="")
        return Url.parse(f"{folder}/{revision}/{urllib.parse.quote(path, safe='/')}")

    def address(self, path: str) -> str:
        """Returns the hf:// URL of a file at the revision that is read."""
        return f"hf://{self._prefix}@{urllib.parse.quote(self.revision, safe='')}/{path}"

    def name(self, path: str) -> str:
        """Returns the name of a file, for people."""
        return f"hf://{self._prefix}@{self.revision}/{path}"

    def pin(self, reader: HttpReader) -> None:
        """Reads later files at the commit of one that was opened."""
        self.revision = reader.resolved.commit or self.revision

    def reader(
        self, path: str, pool: Pool | None = None, reader_class: type[HttpReader] = HttpReader
    ) -> HttpReader:
        """Returns a reader of a file, which was not opened yet."""
        return self._reader(self.url(path), self.name(path), pool, reader_class, [])

    def listing(self, folder: str, pool: Pool) -> list[str] | None:
        """Returns the names of the files in a folder: one request for each 1,000 entries.

        None if the server does not list it, as mirrors of the Hub may not.

        Raises:
            SafetensorError: the Hub has no such repository, revision or folder, or denies it.
        """
        repository = self._prefix if self._prefix.count("/") == 2 else f"models/{self._prefix}"
        tree = f"{self._endpoint.text.rstrip('/')}/api/{repository}/tree"
        for part in filter(None, [self.revision, folder.strip("/")]):
            tree += "/" + urllib.parse.quote(part, safe="")
        query, name = "recursive=false&expand=false", self.name(folder)
        names: list[str] = []
        for _ in range(_MAX_PAGES):
            refusals: list[SafetensorError] = []
            reader = self._reader(Url.parse(f"{tree}?{query}"), name, pool, HttpReader, refusals)
            try:
                page, headers = reader.get(_MAX_OF_PAGE)
            except (FileNotFoundError, PermissionError):
                if refusals:
                    raise
                return None
            names += _files_of(page, name)
            following = _NEXT.search(headers.get("Link", ""))
            if following is None:
                return names
            # Its query only: the token is for the host of this page.
            query = following[1].partition("?")[2].partition("#")[0]
        raise errors.failed(name, f"has more than {_MAX_PAGES} pages of names: name a file")

    def _reader(
        self,
        url: Url,
        name: str,
        pool: Pool | None,
        reader_class: type[HttpReader],
        refusals: list[SafetensorError],
    ) -> HttpReader:
        """Returns a reader, which adds the error that the Hub names to `refusals`."""
        used = self._credentials or "anonymous"
        page = f"{self._endpoint.text.rstrip('/')}/{self._prefix}"
        asked = hub_errors.Asked(name, self._prefix, self.revision, page, used)

        def refused(response: http.client.HTTPResponse) -> SafetensorError | None:
            error = hub_errors.refusal(response, asked)
            if error is not None:
                refusals.append(error)
            return error

        return reader_class(
            url,
            self._settings,
            pool=pool,
            name=name,
            headers=self._headers,
            credentials=self._credentials,
            refused=refused,
        )


def is_offline() -> bool:
    """Returns whether the Hub is not asked, by the variables of huggingface_hub."""
    return _is_true(os.environ.get("HF_HUB_OFFLINE") or os.environ.get("TRANSFORMERS_OFFLINE"))


def home() -> str:
    """Returns the folder that programs of the Hub share."""
    cache = os.environ.get("XDG_CACHE_HOME") or os.path.join("~", ".cache")
    return _expanded(os.environ.get("HF_HOME") or os.path.join(cache, "huggingface"))


def cache_folder() -> str:
    """Returns the folder of the repositories that huggingface_hub has downloaded."""
    for name in ("HF_HUB_CACHE", "HUGGINGFACE_HUB_CACHE"):
        if folder := os.environ.get(name):
            return _expanded(folder)
    return os.path.join(home(), "hub")


def parts_of(url: Url) -> tuple[str, str, str]:
    """Returns the repository with its kind unless it is a model, the revision, and the path of a
    file in it.

    Raises:
        SafetensorError: the URL does not name these.
    """
    kind, _, rest = f"{url.host}/{url.path}".partition("/")
    if kind + "s" in _KINDS:
        raise errors.refused(url.name, f"{_FORM}: write {kind}s/ instead of {kind}/")
    if kind not in _KINDS:
        kind, rest = "models", f"{kind}/{rest}"
    found = _REST.fullmatch(rest)
    if url.query or found is None or not all(map(_SEGMENT.fullmatch, found.group(1, 2))):
        raise errors.refused(url.name, _FORM)
    org, repo, revision, path = found.group(1, 2, 3, 4)
    revision, path = urllib.parse.unquote("main" if revision is None else revision), path or ""
    folders = [*revision.split("/"), *path.split("/")[:-1]]
    if "" in folders or {".", ".."}.intersection([org, repo, *folders]):
        raise errors.refused(url.name, _FORM)
    if not revision.isprintable():
        raise errors.refused(url.name, _FORM)
    return f"{_KINDS[kind]}{org}/{repo}", revision, path


def _files_of(page: bytes, name: str) -> list[str]:
    """Returns the names of the files in a page of a listing, without their folder."""
    try:
        entries = _json.loads(page, name)
        if not isinstance(entries, list):
            raise TypeError
        return [each["path"].rpartition("/")[2] for each in entries if each["type"] == "file"]
    except (ValueError, TypeError, KeyError, AttributeError):
        raise errors.failed(name, "the Hub's list of its files cannot be read") from None


def _credentials(settings: Settings, endpoint: Url, name: str) -> tuple[Mapping[str, str], str]:
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


def _token(settings: Settings) -> tuple[str | None, str]:
    if isinstance(settings.token, str):
        return settings.token, "storage_options['token']"
    if settings.token is False:
        return None, ""
    if settings.token is None and _is_true(os.environ.get("HF_HUB_DISABLE_IMPLICIT_TOKEN")):
        return None, ""
    source = next((name for name in _TOKENS if os.environ.get(name)), "")
    token = os.environ.get(source, "").strip()
    if not token:
        source = "the token file of the Hub"
        path = _expanded(os.environ.get("HF_TOKEN_PATH") or os.path.join(home(), "token"))
        try:
            with open(path, encoding="utf-8") as file:
                token = file.read(1 << 16).strip()
        except (OSError, UnicodeDecodeError):
            token = ""
    if not token and settings.token is True:
        text = "storage_options['token'] is True, and there is no token: set HF_TOKEN or run"
        raise errors.denied("", f"{text} `hf auth login`")
    if not token:
        return None, ""
    if not is_header_value(token):
        raise errors.refused("", f"{source} has no valid token")
    return token, source


def _expanded(path: str) -> str:
    return os.path.expandvars(os.path.expanduser(path))


def _is_true(value: str | None) -> bool:
    return (value or "").strip().upper() in _TRUE
