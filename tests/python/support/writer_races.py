"""Rounds in which two threads call methods of one writer at the same time."""

import contextlib
import itertools
import os
import random
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor

import numpy as np

from safetensors import SafetensorError, recover, safe_create, safe_open
from safetensors import numpy as stn
from support import model_saves

NAMES = ["a", "b", "c"]
LAST = "d"
"""The tensor that a call of a round writes."""
SPECS = {name: ("U8", [64]) for name in [*NAMES, LAST]}
SHARD_SIZE = 150  # two files
MODEL_FILES = {
    "model-00001-of-00002.safetensors",
    "model-00002-of-00002.safetensors",
    "model.safetensors.index.json",
}

ENDS = ["close", "abort", "leave", "leave with an error"]
WRITES = ["write", "write_slice", "copy", "stream"]
PAIRS = [
    *itertools.combinations_with_replacement(ENDS, 2),
    *itertools.product(ENDS, [*WRITES, "look"]),
]
"""Calls that may end a writer, with all that may come at the same time."""


def values(number):
    return np.full(64, number % 251, "u1")


class Target:
    """A file, or a model of two files, that is replaced again and again by one of other values."""

    def __init__(self, folder, kind, has_specs=True):
        self.folder = str(folder)
        self.is_model = kind == "model"
        self.has_specs = has_specs
        self.number = 0
        """What the tensors of the target have, all of them."""
        stn.save_file({LAST: values(0)}, self.source)
        with self.make(1) as writer:
            writer.write(LAST, values(1))
        self.number = 1

    @property
    def source(self):
        """A file beside the folder with the last tensor, for `copy`."""
        return self.folder + ".source"

    @property
    def files(self):
        return MODEL_FILES if self.is_model else {"f"}

    def make(self, number, **options):
        """Returns a writer that has all tensors but the last one."""
        os.makedirs(self.folder, exist_ok=True)
        specs = SPECS if self.has_specs else None
        if self.is_model:
            writer = safe_create(self.folder, specs, max_shard_size=SHARD_SIZE, **options)
        else:
            writer = safe_create(os.path.join(self.folder, "f"), specs, **options)
        for name in NAMES:
            writer.write(name, values(number))
        return writer

    def found(self):
        """Returns what all tensors have. Fails for a mixture."""
        if self.is_model:
            arrays = model_saves.load(self.folder)
        else:
            arrays = stn.load_file(os.path.join(self.folder, "f"))
        assert arrays.keys() == SPECS.keys(), "tensors are missing"
        (value,) = {int(each) for array in arrays.values() for each in np.unique(array)}
        return value


class Race:
    """Two calls of a writer, made by two threads in many rounds."""

    def __init__(self, target, calls, seed):
        self.target = target
        self.calls = calls
        self.random = random.Random(seed)
        self.barrier = threading.Barrier(3)
        self.outcomes = {}
        """How often each text came."""

    def run(self, rounds):
        interval = sys.getswitchinterval()
        sys.setswitchinterval(1e-5)
        try:
            with ThreadPoolExecutor(2) as pool, contextlib.ExitStack() as stack:
                # Each round writes other values, which a copy would not have: it gets its own file.
                source = None
                if "copy" in self.calls:
                    source = stack.enter_context(safe_open(self.target.source, "np"))
                for _ in range(rounds):
                    self._round(pool, source)
        finally:
            sys.setswitchinterval(interval)

    def _round(self, pool, source):
        target = self.target
        # What is copied is always the same.
        number = 0 if source is not None else (target.number + 1) % 251
        if source is not None and target.number == 0:
            with target.make(1) as writer:
                writer.write(LAST, values(1))
            target.number = 1
        writer = target.make(number)
        writes = any(call in WRITES for call in self.calls)
        if not writes:
            writer.write(LAST, values(number))
        pauses = [self.random.choice([0, 0, 0, 0.0001, 0.0003, 0.001]) for _ in self.calls]
        ended = [
            pool.submit(self._act, writer, call, pause, number, source)
            for call, pause in zip(self.calls, pauses, strict=True)
        ]
        self.barrier.wait()
        bystanders = [os.open(os.devnull, os.O_RDONLY | os.O_CLOEXEC) for _ in range(4)]
        errors = [each.result() for each in ended]
        for fd in bystanders:
            os.close(fd)  # raises if another thread has closed it
        is_saved = any(
            error is None and call in ("close", "leave")
            for call, error in zip(self.calls, errors, strict=True)
        )
        if not writer.closed:
            assert not is_saved
            if None in errors:  # the last tensor was written during a close(), which failed
                writer.close()
                is_saved = True
            writer.abort()
        if is_saved:
            target.number = number
        assert target.found() == target.number, (self.calls, errors)
        assert {*os.listdir(target.folder)} == target.files
        for call, error in zip(self.calls, errors, strict=True):
            text = f"{call}: {error or 'returned'}"
            self.outcomes[text] = self.outcomes.get(text, 0) + 1

    def _act(self, writer, call, pause, number, source):
        """Makes a call. Returns its SafetensorError, if it raises one."""
        self.barrier.wait()
        if pause:
            time.sleep(pause)
        try:
            make_call(writer, call, number, source)
        except SafetensorError as error:
            return str(error).removeprefix("Error while serializing: ")
        return None


def make_call(writer, call, number, source=None):
    if call == "close":
        writer.close()
    elif call == "abort":
        writer.abort()
    elif call == "leave":
        with writer:
            pass
    elif call == "leave with an error":
        with contextlib.suppress(ZeroDivisionError), writer:
            raise ZeroDivisionError
    elif call == "write":
        writer.write(LAST, values(number))
    elif call == "write_slice":
        writer.write_slice(LAST, slice(0, 64), values(number))
    elif call == "copy":
        writer.copy(source, LAST)
    elif call == "stream":
        stream = writer.open(LAST)
        try:
            stream.write(values(number).tobytes())
            stream.flush()
        finally:
            with contextlib.suppress(SafetensorError):
                stream.close()
    else:
        assert call == "look"
        assert 192 <= writer.nbytes_written <= 256
        assert writer.closed in (True, False)
        assert len(writer.specs) >= 3
        assert set(writer.missing) <= set(SPECS)


def killed_round(folder, kind, calls, number, delay):
    """Makes two calls in threads, and kills this process a moment later."""
    target = Target.__new__(Target)
    target.folder, target.is_model, target.has_specs = folder, kind == "model", True
    writer = target.make(number)
    if not any(call in WRITES for call in calls):
        writer.write(LAST, values(number))
    barrier = threading.Barrier(len(calls) + 1)

    def act(call):
        barrier.wait()
        with contextlib.suppress(SafetensorError):
            make_call(writer, call, number)

    for call in calls:
        threading.Thread(target=act, args=(call,), daemon=True).start()
    barrier.wait()
    time.sleep(delay)
    os.kill(os.getpid(), 9)


def run_killed(folder, kind, calls, rounds):
    """Forks a child for each round, which is killed within its calls. The process needs to have no
    other threads. Returns how often the old and the new target were found."""
    choose = random.Random(str((kind, calls)))
    target = Target(folder, kind)
    found = {"old": 0, "new": 0}
    for _ in range(rounds):
        number = (target.number + 1) % 251
        child = os.fork()
        if child == 0:
            try:
                killed_round(target.folder, kind, calls, number, choose.random() ** 2 * 0.003)
            finally:
                os._exit(1)
        choose.random()  # as the child did
        assert os.WTERMSIG(os.waitpid(child, 0)[1]) == 9
        recover(target.folder)
        value = target.found()
        assert value in (target.number, number), (calls, value)
        found["new" if value == number else "old"] += 1
        target.number = value
        left = {*os.listdir(target.folder)} - target.files
        # The temporary file of one file may be another process's: it stays for a while.
        assert not target.is_model or not left, left
        for each in left:
            os.unlink(os.path.join(target.folder, each))
    return found
