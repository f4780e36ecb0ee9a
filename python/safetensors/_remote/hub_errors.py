"""The errors that the Hub names in the headers of an answer."""

from __future__ import annotations

import http.client
from typing import NamedTuple

from .._core import SafetensorError
from . import errors

_MAX_CHARS = 300


class Asked(NamedTuple):
    """What the Hub was asked for."""

    name: str
    """The file or folder, for people."""
    repository: str
    """With its kind, unless it is a model."""
    revision: str
    page: str
    """The address of the repository for browsers."""
    credentials: str
    """Which were sent."""


def refusal(response: http.client.HTTPResponse, asked: Asked) -> SafetensorError | None:
    """Returns the error that the Hub names; None if it names none.

    The rules are those of huggingface_hub: X-Error-Code says what is wrong, X-Error-Message says it
    for people. Status 401 without a code also means that there is no such repository.
    """
    status = response.status
    code = response.headers.get("X-Error-Code", "").strip()
    message = _message_of(response)
    said = f" (the Hub says: {message})" if message else ""
    used = f"; credentials: {asked.credentials}"
    if code == "RevisionNotFound":
        text = f"{asked.repository} has no revision {asked.revision!r}"
        advice = "check what follows the @; a / in the name of a branch is written %2F"
        return errors.missing(asked.name, f"{text}: {advice}{said}")
    if code == "EntryNotFound":
        text = f"{asked.repository} has no such file or folder at the revision {asked.revision!r}"
        return errors.missing(asked.name, text + said)
    if code == "GatedRepo":
        text = f"{asked.repository} is gated: ask for access at {asked.page}"
        return errors.denied(asked.name, f"{text}, and use a token of that account{said}{used}")
    if message == "Access to this resource is disabled.":
        return errors.denied(asked.name, f"the Hub has disabled {asked.repository}{used}")
    if status == 401 and message == "Invalid credentials in Authorization header":
        text = "the Hub does not accept the token, which may have ended: `hf auth login` makes one"
        return errors.denied(asked.name, text + said + used)
    if code == "RepoNotFound" or status == 401:
        make = errors.missing if status == 404 else errors.denied
        text = f"the Hub has no repository {asked.repository}, or it is private or gated"
        advice = "check the name; to authenticate, set HF_TOKEN or run `hf auth login`"
        return make(asked.name, f"{text}: {advice}{said}{used}")
    if status == 403 and message:
        text = f"the Hub denies access: {message}: the token may lack the permission to read it"
        return errors.denied(asked.name, text + used)
    if message and 400 <= status < 500 and status not in (404, 408, 410, 429):
        return errors.failed(asked.name, f"the Hub answered {status}: {message}")
    return None


def _message_of(response: http.client.HTTPResponse) -> str:
    # http.client decodes headers as Latin-1, whatever they are.
    text = response.headers.get("X-Error-Message", "").encode("latin-1", "replace")
    return text.decode("utf-8", "replace").strip()[:_MAX_CHARS]
