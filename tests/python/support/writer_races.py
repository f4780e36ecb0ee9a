"""Rounds in which two threads call methods of one writer at the same time."""

import contextlib
import functools
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

    def found(self, names=tuple(SPECS)):
        """Returns what all tensors have. Fails for a mixture, and unless they have these names."""
        if self.is_model:
            arrays = model_saves.load(self.folder)
        else:
            arrays = stn.load_file(os.path.join(self.folder, "f"))
        assert arrays.keys() == set(names), "tensors are missing"
        (value,) = {each for array in arrays.values() for each in array.tobytes()}
        return value


class Rivals:
    """Two threads that live through all rounds, and in each make one call each at the same time.

    The calls of many rounds are made one after the other, before what became of them is checked:
    where other programs use all processors, a thread that waits for another one waits for long.
    """

    def __init__(self, calls, seed):
        self.calls = calls
        self._random = random.Random(seed)
        self._barrier = threading.Barrier(2)
        self._pool = ThreadPoolExecutor(2)
        self._interval = sys.getswitchinterval()

    def __enter__(self):
        sys.setswitchinterval(1e-5)
        return self

    def __exit__(self, *_):
        sys.setswitchinterval(self._interval)
        self._pool.shutdown()

    def meet(self, acts):
        """Calls each of `acts` with both calls at once. Returns the texts of the errors, or None
        for a call that returned, of each pair."""
        pauses = [0, 0, 0, 0.0001, 0.0003, 0.001]
        work = [
            self._pool.submit(self._act, acts, call, self._random.choices(pauses, k=len(acts)))
            for call in self.calls
        ]
        # A descriptor that is closed twice may be one of these by then.
        while not all(each.done() for each in work):
            bystanders = [os.open(os.devnull, os.O_RDONLY | os.O_CLOEXEC) for _ in range(4)]
            time.sleep(0.0001)
            for fd in bystanders:
                os.close(fd)  # raises if another thread has closed it
        return list(zip(*(each.result() for each in work), strict=True))

    def _act(self, acts, call, pauses):
        results = []
        try:
            for act, pause in zip(acts, pauses, strict=True):
                self._barrier.wait(600)
                if pause:
                    time.sleep(pause)
                try:
                    act(call)
                    results.append(None)
                except SafetensorError as error:
                    results.append(str(error).removeprefix("Error while serializing: "))
        except BaseException:
            self._barrier.abort()
            raise
        return results


class Race:
    """Two calls of a writer, made by two threads in many rounds: those of a batch are of as many
    targets."""

    BATCH = 20

    def __init__(self, folder, kind, calls, seed, has_specs=True):
        self.calls = calls
        self.seed = seed
        self.targets = [
            Target(os.path.join(folder, str(i)), kind, has_specs) for i in range(self.BATCH)
        ]
        self.rounds = 0
        self.outcomes = {}
        """How often each text came."""

    def run(self, rounds):
        with Rivals(self.calls, self.seed) as rivals, contextlib.ExitStack() as stack:
            # Each round writes other values, which a copy would not have: it gets its own file.
            source = None
            if "copy" in self.calls:
                source = stack.enter_context(safe_open(self.targets[0].source, "np"))
            while self.rounds < rounds:
                self._run_batch(rivals, self.targets[: rounds - self.rounds], source)

    def _run_batch(self, rivals, targets, source):
        batch = []
        for target in targets:
            # What is copied is always the same.
            number = 0 if source is not None else (target.number + 1) % 251
            if source is not None and target.number == 0:
                with target.make(1) as writer:
                    writer.write(LAST, values(1))
                target.number = 1
            writer = target.make(number)
            if not any(call in WRITES for call in self.calls):
                writer.write(LAST, values(number))
            batch.append((target, writer, number))
        acts = [
            functools.partial(make_call, writer, number=number, source=source)
            for _, writer, number in batch
        ]
        for each, errors in zip(batch, rivals.meet(acts), strict=True):
            self._check(*each, errors)
            self.rounds += 1

    def _check(self, target, writer, number, errors):
        results = list(zip(self.calls, errors, strict=True))
        is_saved = any(error is None and call in ("close", "leave") for call, error in results)
        has_last = target.has_specs or ("write", None) in results
        if not writer.closed:
            assert not is_saved
            if None in errors:  # the last tensor was written during a close(), which failed
                writer.close()
                is_saved = True
            writer.abort()
        if is_saved and not has_last:  # close() came first, and needs no tensor without specs
            assert target.found(NAMES) == number, results
            with target.make(number) as again:
                again.write(LAST, values(number))
        if is_saved:
            target.number = number
        assert target.found() == target.number, results
        assert {*os.listdir(target.folder)} == target.files
        for call, error in results:
            text = f"{call}: {error or 'returned'}"
            self.outcomes[text] = self.outcomes.get(text, 0) + 1


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
