"""One writer in several threads: who completes it, who discards it, and what the others get."""

import functools
import io
import itertools
import json
import os
import re
import signal
import sys
import threading

import numpy as np
import pytest

from safetensors import SafetensorError, recover, safe_create
from safetensors import numpy as stn
from support import children, libc_calls, model_saves, writer_races
from support.writer_races import ENDS, PAIRS, SPECS, Race, Rivals, Target, values

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="models are not saved on Windows")

KINDS = ["file", "model"]
ROUNDS = 12
MANY = 10_000

ALLOWED = {
    "the writer is closed",
    "the writer is being closed",
    "the writer was aborted: nothing was saved",
    "another thread is still writing a tensor: wait for it before the file is closed",
    "1 of 4 tensors was not written: `d`",
}


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("calls", PAIRS, ids=" and ".join)
def test_two_calls_at_once(tmp_path, kind, calls):
    race = Race(tmp_path, kind, calls, 0)
    race.run(ROUNDS)
    check_texts(race)


@pytest.mark.exhaustive
@pytest.mark.timeout(7200)
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("calls", PAIRS, ids=" and ".join)
def test_two_calls_at_once_many_times(tmp_path, kind, calls):
    race = Race(tmp_path, kind, calls, 1)
    race.run(MANY)
    check_texts(race)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(
    ("calls", "rounds"),
    [
        (("close", "write"), ROUNDS),
        (("abort", "write"), ROUNDS),
        pytest.param(("close", "write"), MANY, marks=pytest.mark.exhaustive),
        pytest.param(("abort", "write"), MANY, marks=pytest.mark.exhaustive),
    ],
)
@pytest.mark.timeout(7200)
def test_a_tensor_that_is_added_as_the_writer_ends(tmp_path, kind, calls, rounds):
    """Without specs, close() saves the model with the tensor or without it."""
    race = Race(tmp_path, kind, calls, 2, has_specs=False)
    race.run(rounds)
    check_texts(race)


def check_texts(race):
    assert race.rounds >= ROUNDS
    said = {text.partition(": ")[2] for text in race.outcomes} - {"returned"}
    texts = {re.sub(r" \(in .*\)$", "", text) for text in said}
    assert texts <= ALLOWED
    print(json.dumps(race.outcomes, indent=1, sort_keys=True))


KILLS = [*itertools.combinations_with_replacement(ENDS[:3], 2), ("close", "write")]


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(
    "rounds", [4, pytest.param(MANY // len(KILLS), marks=pytest.mark.exhaustive)]
)
@pytest.mark.timeout(7200)
def test_a_kill_while_two_threads_end_a_writer(tmp_path, kind, rounds):
    """After recovery, the old model or the new one is whole, and nothing else is left."""
    code = """
        from support import writer_races
        for number, calls in enumerate(json.loads(sys.argv[4])):
            folder = f"{sys.argv[1]}/{number}"
            print(calls, writer_races.run_killed(folder, sys.argv[2], calls, int(sys.argv[3])))
    """
    code = "import json\n" + "\n".join(line[8:] for line in code.splitlines())
    print(children.run(code, tmp_path, kind, rounds, json.dumps(KILLS), timeout=7000))


@pytest.mark.parametrize("kind", KINDS)
def test_what_comes_after_the_end(tmp_path, kind):
    target = Target(tmp_path / "m", kind)
    writer = target.make(2)
    writer.abort()
    writer.abort()
    with pytest.raises(SafetensorError, match="the writer was aborted: nothing was saved$"):
        writer.close()
    with pytest.raises(SafetensorError, match="the writer is closed$"):
        writer.write("d", values(2))
    with pytest.raises(SafetensorError, match="the writer is closed$"):
        _ = writer.missing
    assert writer.closed
    assert writer.nbytes_written == 192
    assert list(writer.specs) == list(SPECS)
    assert target.found() == 1

    writer = target.make(2)
    writer.write("d", values(2))
    writer.close()
    writer.close()
    writer.abort()
    assert writer.nbytes_written == 256
    assert target.found() == 2


@pytest.mark.parametrize("kind", KINDS)
def test_the_end_of_a_block_whose_writer_was_aborted(tmp_path, kind):
    """By the block itself, it does nothing. By another thread, the block must not seem to have
    saved."""
    target = Target(tmp_path / "m", kind)
    with target.make(2) as writer:
        writer.abort()
    with target.make(2) as writer:
        writer.write("d", values(2))
        writer.close()
    assert target.found() == 2
    writer = target.make(3)
    writer.write("d", values(3))
    watchdog = threading.Thread(target=writer.abort)
    watchdog.start()
    watchdog.join()
    with pytest.raises(SafetensorError, match="was aborted: nothing was saved"), writer:
        pass
    assert target.found() == 2


CALLS = {
    "close": lambda writer: writer.close(),
    "abort": lambda writer: writer.abort(),
    "write": lambda writer: writer.write("a", values(5)),
    "missing": lambda writer: writer.missing,
    "leave": lambda writer: writer.__exit__(None, None, None),
}


@pytest.mark.parametrize("kind", [*KINDS, "function", "object"])
@pytest.mark.parametrize("when", ["write", "close"])
@pytest.mark.parametrize("call", ["close", "abort", "write", "missing", "leave"])
def test_a_callback_that_calls_its_writer(tmp_path, kind, when, call):
    """It gets an error, not a deadlock, and the writer goes on."""
    errors, counts = [], []

    def called(*_):
        if when == "write" or is_closing:
            counts.append(writer.nbytes_written)
            with pytest.raises(SafetensorError, match="it must raise an exception instead") as got:
                CALLS[call](writer)
            # Only the text: frames of the traceback keep the memory that a target was given.
            errors.append(str(got.value))

    class Object(io.RawIOBase):
        def writable(self):
            return True

        def write(self, data):
            called()
            return len(data)

    specs = {"a": ("U8", [64]), "big": ("U8", [300_000])}
    writer, is_closing = None, False
    if kind == "model":
        made = safe_create(tmp_path / "m", specs, max_shard_size=1_000_000, progress=called)
    elif kind == "file":
        made = safe_create(tmp_path / "f", specs, progress=called)
    else:
        made = safe_create(called if kind == "function" else Object(), specs)
    if when == "close":
        writer = made
        made.write("a", values(7))
        is_closing = True
        made.write_slice("big", slice(0, 40_000), bytearray_of(40_000))
        made.write_slice("big", slice(40_000, 80_000), bytearray_of(40_000))
        for begin in range(80_000, 300_000, 55_000):
            made.write_slice("big", slice(begin, begin + 55_000), bytearray_of(55_000))
    else:
        writer = made
        made.write("big", np.zeros(300_000, "u1"))
        made.write("a", values(7))
    made.close()
    assert errors
    assert all(count > 0 for count in counts)
    if kind in KINDS:
        path = tmp_path / ("f" if kind == "file" else "m/model.safetensors")
        assert stn.load_file(path)["a"].tolist() == [7] * 64


def bytearray_of(nbytes):
    return np.ones(nbytes, "u1")


def test_a_callback_of_a_writer_without_specs(tmp_path):
    """A file of the model is completed when the next tensor comes, and reports progress."""
    errors = []

    def progress(*_):
        for call in (lambda: writer.write("x", values(1)), lambda: writer.missing, writer.close):
            with pytest.raises(SafetensorError, match="it must raise an exception instead") as got:
                call()
            errors.append(got.value)

    writer = safe_create(tmp_path / "m", max_shard_size=100, progress=progress)
    for name in "abc":
        writer.write(name, values(3))
    writer.close()
    assert errors
    assert sorted(model_saves.load(tmp_path / "m")) == ["a", "b", "c"]


@pytest.mark.parametrize("kind", KINDS)
def test_a_signal_handler_that_aborts(tmp_path, kind):
    """Its exception ends the call that it interrupts, and the writer has failed."""

    def handler(*_):
        with pytest.raises(SafetensorError, match="signal handler"):
            writer.close()
        writer.abort()

    def progress(*_):
        signal.raise_signal(signal.SIGUSR1)

    options = {"max_shard_size": 1_000_000} if kind == "model" else {}
    path = tmp_path / kind
    before = signal.signal(signal.SIGUSR1, handler)
    try:
        writer = safe_create(path, {"a": ("U8", [100_000])}, progress=progress, **options)
        with pytest.raises(SafetensorError, match="signal handler"), writer:
            writer.write("a", np.zeros(100_000, "u1"))
    finally:
        signal.signal(signal.SIGUSR1, before)
    assert writer.closed
    assert os.listdir(tmp_path) == []


class Blocked(io.BytesIO):
    """Blocks within the first large write."""

    def __init__(self):
        super().__init__(b"old")
        self.seek(0)
        self.is_blocked = threading.Event()
        self.may_go_on = threading.Event()

    def write(self, data):
        if len(data) > 1000 and not self.is_blocked.is_set():
            self.is_blocked.set()
            assert self.may_go_on.wait(10)
        return super().write(data)


def test_abort_does_not_wait_for_a_write_that_hangs():
    """The write ends with an error, and the object gets its old length."""
    target = Blocked()
    writer = safe_create(target, {"big": ("U8", [1 << 20])})
    errors = []

    def write():
        with pytest.raises(SafetensorError, match="the writer is closed$") as got:
            writer.write("big", np.ones(1 << 20, "u1"))
        errors.append(got.value)

    thread = threading.Thread(target=write)
    thread.start()
    try:
        assert target.is_blocked.wait(10)
        with pytest.raises(SafetensorError, match="another thread is still writing"):
            writer.close()
        assert not writer.closed
        writer.abort()
        assert writer.closed
    finally:
        target.may_go_on.set()
        thread.join(10)
    assert len(errors) == 1
    assert errors[0].code == "writer_closed"
    assert len(target.getvalue()) == 3
    assert target.tell() == 0


@pytest.mark.parametrize("call", ["close", "abort", "write", "leave"])
def test_a_call_that_comes_while_another_thread_closes(tmp_path, call):
    """Writing is refused at once. The others wait, and then do nothing."""
    may_go_on, is_closing = threading.Event(), threading.Event()

    def progress(*_):
        is_closing.set()
        assert may_go_on.wait(10)

    writer = safe_create(tmp_path / "f", SPECS, progress=progress)
    for name in SPECS:
        writer.write(name, values(1))
    closing = threading.Thread(target=writer.close)
    closing.start()
    assert is_closing.wait(10)
    if call == "write":
        with pytest.raises(SafetensorError, match="the writer is being closed$"):
            writer.write("d", values(2))
        with pytest.raises(SafetensorError, match="the writer is being closed$"):
            _ = writer.missing
        assert writer.nbytes_written == 256
    else:
        other = threading.Thread(target=writer_races.make_call, args=(writer, call, 1))
        other.start()
        other.join(0.1)
        assert other.is_alive()
    may_go_on.set()
    closing.join(10)
    if call != "write":
        other.join(10)
        assert not other.is_alive()
    assert set(stn.load_file(tmp_path / "f")) == set(SPECS)


@pytest.mark.parametrize("kind", KINDS)
def test_a_forked_child_cannot_end_the_writer_of_its_parent(tmp_path, kind):
    code = """
        import os
        from support.writer_races import Target, values
        target = Target(sys.argv[1], sys.argv[2])
        writer = target.make(2)
        writer.write("d", values(2))
        child = os.fork()
        if child == 0:
            writer.abort()
            try:
                writer.close()
            except Exception as error:
                print(type(error).__name__, "belongs to the process" in str(error), flush=True)
            del writer
            os._exit(0)
        assert os.waitpid(child, 0)[1] == 0
        writer.close()
        print(target.found())
    """
    assert children.run(code, tmp_path / "m", kind).split() == ["SafetensorError", "True", "2"]


def refuse(*_):
    raise OSError(5, "Input/output error")


def test_closing_that_fails_before_the_first_rename(tmp_path):
    target = Target(tmp_path / "m", "model")
    writer = target.make(2)
    writer.write("d", values(2))
    with (
        libc_calls.replaced({"fsync": refuse}),
        pytest.raises(OSError, match="Input/output error"),
    ):
        writer.close()
    assert writer.closed
    with pytest.raises(SafetensorError, match="the writer failed when it was closed before$"):
        writer.close()
    assert target.found() == 1
    assert {*os.listdir(tmp_path / "m")} == target.files


def test_closing_that_fails_after_the_first_rename(tmp_path):
    """Only the new model can become whole, so the writer counts as closed."""
    target = Target(tmp_path / "m", "model")
    writer = target.make(2)
    writer.write("d", values(2))
    done = []

    def move(function, args):
        if done:
            refuse()
        done.append(args)
        return function(*args)

    with (
        libc_calls.replaced({"renameat": move}),
        pytest.raises(SafetensorError, match="`safetensors recover` completes it"),
    ):
        writer.close()
    assert writer.closed
    writer.close()
    writer.abort()
    assert recover(tmp_path / "m") == "rolled forward"
    assert target.found() == 2
    assert {*os.listdir(tmp_path / "m")} == target.files


@pytest.mark.parametrize("rounds", [60, pytest.param(MANY, marks=pytest.mark.exhaustive)])
@pytest.mark.timeout(7200)
def test_files_of_ranks_that_are_completed_and_removed_at_once(tmp_path, rounds):
    """What safetensors.dcp writes."""
    from safetensors._dcp.model import FullSizeModel, Options

    rows = [(name, "U8", [64]) for name in "abcd"]
    current = dict.fromkeys(tmp_path / str(i) for i in range(Race.BATCH))

    def act(call, model):
        if call == "commit":
            assert len(model.commit(dict.fromkeys("abcd", 64))) == 2
        else:
            model.abort()

    with Rivals(("commit", "abort"), 3) as rivals:
        for number in range(rounds // Race.BATCH):
            models = [
                FullSizeModel(folder, rows, Options(150, "model", False, None))
                for folder in current
            ]
            for model in models:
                for place in model.places.values():
                    with open(model.open(place.file), "r+b") as file:
                        file.seek(place.begin)
                        file.write(values(number).tobytes())
            acts = [functools.partial(act, model=model) for model in models]
            for folder, (error, _) in zip(current, rivals.meet(acts), strict=True):
                if error is None:
                    current[folder] = number % 251
                else:
                    assert error == "the writer was aborted: nothing was saved"
                if current[folder] is None:
                    assert not folder.exists()
                    continue
                found = model_saves.load(folder)
                assert {each for array in found.values() for each in array} == {current[folder]}
                assert {*os.listdir(folder)} == writer_races.MODEL_FILES
