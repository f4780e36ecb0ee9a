"""Repeats requests that failed for a reason that may pass."""

from __future__ import annotations

import email.utils
import random
import threading
import time
from typing import Callable, Optional, TypeVar

from .._core import SafetensorError
from . import errors
from .settings import Settings

T = TypeVar("T")

RETRIED = frozenset({408, 429, 500, 502, 503, 504})
"""The statuses after which a request is repeated."""
_TIMEOUTS = frozenset({408, 504})

_FIRST_DELAY = 0.2
_LAST_DELAY = 10.0
_MOST_ASKED = 60.0


def error_of(status: int) -> Callable[[str, str], SafetensorError]:
    """Returns the function of `errors` for a status that may pass, or for another one of which
    nothing else is known."""
    if status not in RETRIED:
        return errors.failed
    return errors.timed_out if status in _TIMEOUTS else errors.unreachable


class Again(Exception):
    """A try failed, and another one may succeed."""

    def __init__(
        self,
        make: Callable[[str, str], SafetensorError],
        name: str,
        what: str,
        wait: Optional[float] = None,
    ) -> None:
        """Keeps the error for the case that no try succeeds.

        Args:
            make: a function of `errors`.
            name: its first argument, the object.
            what: its second argument, what happened.
            wait: the seconds that the server asked for.
        """
        super().__init__(what)
        self.make, self.name, self.what, self.wait = make, name, what, wait


class Deadline:
    """The end of the time that a request and its repetitions may take."""

    def __init__(self, seconds: float) -> None:
        self.began = time.monotonic()
        self.seconds = seconds

    def left(self) -> float:
        """Returns the seconds until the end; 0 after it."""
        return max(0.0, self.began + self.seconds - time.monotonic())


def retry(
    attempt: Callable[[Deadline], T],
    settings: Settings,
    cancelled: Optional[threading.Event] = None,
) -> T:
    """Returns what `attempt` returns, which is called again while it raises Again.

    Args:
        attempt: makes one try, which ends at the given time.
        settings: `tries` and `timeout`, the seconds that all tries may take together.
        cancelled: ends the waiting between two tries.

    Raises:
        SafetensorError: the last try's, with the number of tries and their time.
    """
    cancelled = cancelled or threading.Event()
    deadline = Deadline(settings.timeout)
    for done in range(1, settings.tries + 1):
        try:
            return attempt(deadline)
        except Again as again:
            delay = _delay(done) if again.wait is None else min(again.wait, _MOST_ASKED)
            if done == settings.tries or delay >= deadline.left():
                took = time.monotonic() - deadline.began
                tries = "1 try" if done == 1 else f"{done} tries"
                text = f"{again.what}, after {tries} in {took:.1f} s"
                raise again.make(again.name, text) from again.__cause__
            name = again.name
        if cancelled.wait(delay):
            raise errors.failed(name, "the read was cancelled")
    raise AssertionError("unreachable")


def retry_after(value: Optional[str]) -> Optional[float]:
    """Returns the seconds that a Retry-After header asks for; None if it is absent or malformed."""
    if value is None:
        return None
    value = value.strip()
    if value.isascii() and value.isdigit():
        return float(value[:9])
    try:
        return max(0.0, email.utils.parsedate_to_datetime(value).timestamp() - time.time())
    except (TypeError, ValueError, OverflowError):
        return None


def _delay(done: int) -> float:
    """Returns a random part of 0.2 s, 0.4 s, ... 10 s, so that clients do not repeat at once."""
    return random.uniform(0.0, min(_LAST_DELAY, _FIRST_DELAY * 2.0 ** (done - 1)))
