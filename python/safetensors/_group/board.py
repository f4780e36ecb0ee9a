"""The notices of ranks about a load that fails, in the store of their group."""

from __future__ import annotations

import contextlib
import threading
import time
from typing import TYPE_CHECKING, Any

from .._errors import failure
from .._workers import NO_THREAD

if TYPE_CHECKING:
    from torch.distributed.distributed_c10d import Store

BUSY = "made no progress"
"""Begins the note of a rank that did not wait for others."""

_POLL = 0.2
# Between two looks for ranks that are awaited: at first, and as a part of the time waited.
_FIRST_LOOK, _LOOK_PART = 0.001, 0.125
# How long ranks that lost others wait for the notes of these.
_GRACE = 5.0
# How long a rank waits beyond that for others to read the verdict.
_LINGER = 1.0
# How long a rank waits for the store itself.
_STORE = 3.0
# Of a text that other ranks raise.
_MAX_NBYTES = 1 << 20
_UNREACHABLE = (
    "the store of the process group does not answer: the process that hosts it, usually rank 0, "
    "has ended or hangs"
)


class Board:
    """How the ranks of one load agree on why it fails.

    A rank that fails proposes its own error as the verdict, which all ranks raise. The first
    proposal is taken. A rank that merely lost the others, because a connection broke or nothing
    happened for too long, leaves a note. If there is no verdict after 5 seconds, it becomes the
    ranks that have left no note.

        STAGE/RANK  the rank has reached the stage
        beats       rises when a rank makes progress
        alarm       there is a verdict or a note
        notes/RANK  what a rank has seen that has no error of its own
        verdict     the text that all ranks raise
        read/RANK   the rank has read the verdict

    A thread makes all calls of the store, because they block while its host hangs. No call waits
    for a key: TCPStore logs a warning whenever such a wait runs out of time.

    The store may end with the process of any rank. So a rank that fails stays until the others have
    read the verdict, and one that loses the store goes on for 5 seconds: its load may end by then.
    """

    def __init__(self, store: Store, rank: int, size: int) -> None:
        """Takes part in the next load of a group.

        Args:
            store: the group's. Each rank counts its loads in it, so that all find the same board.
            rank: this rank in the group.
            size: the ranks of the group.
        """
        self._parent: Any = store
        self._rank, self._size = rank, size
        self._stage = ""
        self._arrived = threading.Event()
        self._arrived.set()
        self._wake = threading.Event()
        self._decided = threading.Event()
        self._cause: str | None = None
        self._note: str | None = None
        self._is_closed = False
        self._progress = 0
        self._verdict = ""
        self._reported_at = 0.0
        self.store: Any = None
        """The store of this load, once all ranks take part."""
        self.is_alarmed = False
        """Whether a rank has failed."""
        self.is_cut_off = False
        """Whether the store has ended. The connections between the ranks may still work."""
        self.last_beat = time.monotonic()
        """When a rank was last seen to make progress."""
        self._thread = threading.Thread(target=self._run, name="safetensors-group", daemon=True)
        try:
            self._thread.start()
        except RuntimeError as error:
            self.report(f"rank {rank}: {NO_THREAD}, and a load by a group needs one")
            self._run()  # tells the others, and returns at once
            raise failure("io", self._verdict) from error

    def beat(self) -> None:
        """Says that this rank makes progress."""
        self._progress += 1

    def enter(self, stage: str) -> None:
        """Says that this rank has reached a stage.

        Requires: all ranks have reached the stage before, if there was one.
        """
        self._stage = stage
        self._arrived.clear()
        self._wake.set()

    def wait_for_all(self, seconds: float) -> bool:
        """Waits for at most `seconds` until all ranks have reached this rank's stage.

        Returns whether they have.
        """
        return self._arrived.wait(seconds)

    def report(self, cause: str | None, note: str = "") -> None:
        """Says that this rank fails.

        Args:
            cause: its own error; None if it lost other ranks.
            note: what it has seen then.
        """
        self._reported_at = time.monotonic()
        self._cause, self._note = None if cause is None else _cut(cause), _cut(note)
        self._wake.set()

    def decide(self) -> str:
        """Returns the verdict. Requires: report() was called."""
        if self._decided.wait(_GRACE + _STORE):
            return self._verdict
        return self._cause or _UNREACHABLE

    def close(self) -> None:
        """Ends the thread, unless the store hangs. After a failure, waits for the other ranks."""
        self._is_closed = True
        self._wake.set()
        self._thread.join(_STORE if self._note is None else _GRACE + _STORE)

    def _run(self) -> None:
        try:
            self._take_part()
            self._watch()
            if self._note is not None:
                self._verdict = (
                    self._judged() if self._cause is None else self._propose(self._cause)
                )
        except Exception:  # the host of the store has ended
            self.is_cut_off = True
            self._wait_for_the_end()
            self._verdict = self._cause or _UNREACHABLE
        self.is_alarmed = True
        self._decided.set()
        if self._note is not None and not self.is_cut_off:
            with contextlib.suppress(Exception):  # the host of the store has ended
                self._linger()

    def _wait_for_the_end(self) -> None:
        """Returns when this rank fails or the load is over, at the latest after 5 seconds."""
        end = time.monotonic() + _GRACE
        while not self._is_closed and self._note is None and time.monotonic() < end:
            self._wake.wait(_POLL)
            self._wake.clear()

    def _linger(self) -> None:
        """Waits until the other ranks have read the verdict, as far as they answer."""
        self.store.set(f"read/{self._rank}", "")
        end = self._reported_at + _GRACE
        last = max(end, time.monotonic()) + _LINGER
        ranks = list(range(self._size))
        while not self.store.check([f"read/{rank}" for rank in ranks]):
            now = time.monotonic()
            if now > last:
                return
            if now > end:  # the others have ended or hang
                ranks = [rank for rank in ranks if self.store.check([f"notes/{rank}"])]
            time.sleep(_POLL / 4)

    def _take_part(self) -> None:
        from torch.distributed.distributed_c10d import PrefixStore

        number = self._parent.add(f"safetensors/loads/{self._rank}", 1)
        self.store = PrefixStore(f"safetensors/load/{number}", self._parent)

    def _watch(self) -> None:
        """Returns when this rank fails or the load is over."""
        beaten = beats = 0
        stage, since = "", 0.0
        while not self._is_closed and self._note is None:
            if self.store.check(["alarm"]):
                self.is_alarmed = True
            progress, found = self._progress, self.store.add("beats", int(self._progress != beaten))
            if found != beats:
                self.last_beat = time.monotonic()
            beaten, beats = progress, found
            pause = _POLL
            if not self._arrived.is_set():
                if stage != self._stage:
                    stage, since = self._stage, time.monotonic()
                    self.store.set(f"{stage}/{self._rank}", "")
                if self.store.check([f"{stage}/{rank}" for rank in range(self._size)]):
                    self._arrived.set()
                    continue
                pause = min(pause, _FIRST_LOOK + _LOOK_PART * (time.monotonic() - since))
            self._wake.wait(pause)
            self._wake.clear()

    def _judged(self) -> str:
        """Leaves a note, and returns the verdict once there is one."""
        self.store.set(f"notes/{self._rank}", self._note)
        self.store.set("alarm", "")
        everyone = [f"notes/{rank}" for rank in range(self._size)]
        end = time.monotonic() + _GRACE
        while not self.store.check(["verdict"]):
            if self.store.check(everyone) or time.monotonic() > end:
                return self._propose(self._sentence())
            time.sleep(_POLL / 4)
        return self._text("verdict")

    def _sentence(self) -> str:
        """Returns what the notes of the ranks amount to."""
        absent = [r for r in range(self._size) if not self.store.check([f"notes/{r}"])]
        if absent:
            ranks = ", ".join(map(str, absent))
            if len(absent) == 1:
                return f"rank {ranks} does not answer: it has ended or hangs"
            return f"ranks {ranks} do not answer: they have ended or hang"
        notes = [self._text(f"notes/{rank}") for rank in range(self._size)]
        # A rank that was busy has kept the others waiting.
        blamed = next((rank for rank, note in enumerate(notes) if note.startswith(BUSY)), 0)
        return f"rank {blamed} {notes[blamed]}"

    def _propose(self, verdict: str) -> str:
        """Returns the verdict: the first that a rank has proposed."""
        found: bytes = self.store.compare_set("verdict", "", verdict)
        self.store.set("alarm", "")
        return _text_of(found)

    def _text(self, key: str) -> str:
        return _text_of(self.store.get(key))


def _cut(text: str) -> str:
    return _text_of(text.encode(errors="replace"))


def _text_of(found: bytes) -> str:
    """Returns a text from the store, where any rank may have written anything."""
    text = found[:_MAX_NBYTES].decode(errors="replace")
    return text if len(found) <= _MAX_NBYTES else text + "..."
