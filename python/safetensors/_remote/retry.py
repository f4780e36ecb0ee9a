"""Repeats requests that failed for a reason that may pass."""

from __future__ import annotations

import email.utils
import http.client
import logging
import random
import re
import threading
import time
from collections.abc import Callable
from typing import TypeVar

from .._core import SafetensorError
from .._redact import redact
from . import errors
from .settings import Settings

T = TypeVar("T")

RETRIED = frozenset({408, 429, 500, 502, 503, 504})
"""The statuses after which a request is repeated."""
_TIMEOUTS = frozenset({408, 504})

_FIRST_DELAY = 0.2
_LAST_DELAY = 10.0
# Servers round the seconds that they ask for.
_ROUNDING = 1.0
# Clients that are told the same time come back within so much of it, at most.
_SPREAD = 0.1
_MAX_SPREAD = 10.0
# A longer wait is logged, once for all threads that wait until then.
_LOGGED = 5.0

# "resolvers";r=0;t=55 of the draft "RateLimit header fields for HTTP": r requests are left for the
# next t seconds. And "fixed window";"resolvers";q=5000;w=300 of RateLimit-Policy.
_LIMIT = re.compile(
    r'"([^"]{1,40})"\s*;\s*r\s*=\s*([0-9]{1,9})\s*;\s*t\s*=\s*([0-9]{1,9})(?![0-9])'
)
_POLICY = re.compile(r"q\s*=\s*([0-9]{1,9})[^,]*?w\s*=\s*([0-9]{1,9})")

_logger = logging.getLogger("safetensors")
_logging = threading.Lock()
_logged_until = 0.0


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
        wait: float | None = None,
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
    cancelled: threading.Event | None = None,
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
            delay = _delay(done) if again.wait is None else again.wait + _ROUNDING
            if done == settings.tries or delay >= deadline.left():
                took = time.monotonic() - deadline.began
                tries = "1 try" if done == 1 else f"{done} tries"
                text = f"{again.what}, after {tries} in {took:.1f} s"
                if again.wait is not None:
                    text += _advice(delay, done < settings.tries, settings.timeout)
                raise again.make(again.name, text) from again.__cause__
            if again.wait is not None:
                spread = random.uniform(0.0, 1.0 + min(_SPREAD * again.wait, _MAX_SPREAD))
                # Without making a wait too long that is short enough.
                delay += min(spread, (deadline.left() - delay) / 2)
                _log(again, delay)
            name = again.name
        if cancelled.wait(delay):
            raise errors.failed(name, "the read was cancelled")
    raise AssertionError("unreachable")


def asked_wait(status: int, headers: http.client.HTTPMessage) -> tuple[float | None, str]:
    """Returns the seconds that an answer asks to wait, and the limit that was reached.

    They are those of RateLimit if the status is 429 and no request is left, else of Retry-After;
    None without either. The limit is empty if it is not named.

    Args:
        status: of the answer.
        headers: of the answer.
    """
    limit = _LIMIT.search(headers.get("ratelimit") or "")
    if status != 429 or limit is None or int(limit[2]) != 0:
        return retry_after(headers.get("retry-after")), ""
    policy = _POLICY.search(headers.get("ratelimit-policy") or "")
    requests = f" of {policy[1]} requests in {policy[2]} s" if policy else ""
    return float(limit[3]), f"the limit {limit[1]!r}{requests}"


def retry_after(value: str | None) -> float | None:
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


def _advice(delay: float, is_too_long: bool, timeout: float) -> str:
    """Returns the end of an error that says when to try again."""
    limit = f", more than `timeout` leaves of {timeout:g} s" if is_too_long else ""
    then = time.strftime("%Y-%m-%d %H:%M:%S", time.gmtime(min(time.time() + delay, 1e11)))
    return f"; it asks to wait {delay:.0f} s{limit}: try again at {then} UTC"


def _log(again: Again, delay: float) -> None:
    """Logs a long wait, which would look like a load that hangs."""
    global _logged_until
    now = time.monotonic()
    with _logging:
        if delay < _LOGGED or now < _logged_until:
            return
        _logged_until = now + delay
    _logger.warning("%s: %s; waiting for %.0f s", redact(again.name), redact(again.what), delay)
