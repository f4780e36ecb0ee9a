"""The files of the Hub that huggingface_hub has downloaded: what is read if programs are offline.

HF_HUB_CACHE/models--org--repo/refs/main            the commit of a revision
                               snapshots/COMMIT/    the files, as far as they were downloaded
                               .no_exist/COMMIT/    empty files: the Hub has none of these names
                               trees/COMMIT.json    the names of all files, if they were listed
"""

from __future__ import annotations

import contextlib
import os
import re
from typing import NamedTuple

from .. import _json
from .._core import SafetensorError
from . import errors, hub
from .urls import Url

_COMMIT = re.compile(r"[0-9a-f]{40}")
_TREES_VERSION = 1
_MAX_OF_REF = 1000


class Cached(NamedTuple):
    """A file or a folder in the cache."""

    path: str
    names: list[str] | None
    """The names of the files in the folder on the Hub, which may not all be in the cache; None for
    a file, and if they are not known."""


def find(url: Url) -> Cached:
    """Returns where the cache has a file or a folder of the Hub.

    Raises:
        FileNotFoundError: it has not.
        SafetensorError: the URL is not one of the Hub.
    """
    repository, revision, path = hub.parts_of(url)
    *kind, org, name = repository.split("/")
    folder = os.path.join(hub.cache_folder(), "--".join([*(kind or ["models"]), org, name]))
    commit = revision if _COMMIT.fullmatch(revision) else _commit_of(folder, revision)
    if commit is None:
        known = f"has no revision {revision!r} of" if os.path.isdir(folder) else "lacks"
        raise lacks(url.name, f"{known} {repository}")
    path = path.strip("/")
    found = os.path.join(folder, "snapshots", commit, *path.split("/"))
    if os.path.isdir(found):
        return Cached(found, _names_in(folder, commit, path))
    if os.path.exists(found) and not url.path.endswith("/"):
        return Cached(found, None)
    if os.path.isfile(os.path.join(folder, ".no_exist", commit, path)):
        text = (
            f"{repository} has no such file at the revision {revision!r}, as the Hub's cache says"
        )
        raise errors.missing(url.name, text)
    raise lacks(url.name, "lacks it")


def lacks(name: str, what: str = "lacks it") -> SafetensorError:
    """Returns the error for a file that is not in the cache."""
    variable = "HF_HUB_OFFLINE" if os.environ.get("HF_HUB_OFFLINE") else "TRANSFORMERS_OFFLINE"
    text = f"the Hub's cache {hub.cache_folder()} {what}, and {variable} is set"
    return errors.missing(name, f"{text}: download it by `hf download`, or unset the variable")


def _commit_of(folder: str, revision: str) -> str | None:
    try:
        with open(os.path.join(folder, "refs", *revision.split("/")), encoding="ascii") as file:
            commit = file.read(_MAX_OF_REF).strip()
    except (OSError, UnicodeDecodeError):
        return None
    return commit if _COMMIT.fullmatch(commit) else None


def _names_in(folder: str, commit: str, path: str) -> list[str] | None:
    """Returns the names of the files in a folder of the Hub, if the cache knows them."""
    prefix = path + "/" if path else ""
    with contextlib.suppress(OSError, ValueError, TypeError, KeyError, SafetensorError):
        with open(os.path.join(folder, "trees", f"{commit}.json"), "rb") as file:
            tree = _json.loads(file.read(_json.MAX_NBYTES + 1), file.name)
        if tree["format_version"] == _TREES_VERSION:
            below = [each.removeprefix(prefix) for each in tree["files"] if each.startswith(prefix)]
            return [each for each in below if "/" not in each]
    return None
