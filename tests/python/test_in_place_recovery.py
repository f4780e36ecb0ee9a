"""Changes in place that were stopped: the mark, the journal, and what recovery makes of them."""

import errno
import fcntl
import json
import os

import numpy as np
import pytest

import safetensors
from safetensors import SafetensorError, safe_open, update_file
from safetensors import numpy as stn
from support import children
from support.in_place_changes import (
    NEW,
    OLD,
    Steps,
    change,
    make,
    names_in,
    state,
    steps_after_the_mark,
)
from support.replaced_calls import fail

pytestmark = pytest.mark.usefixtures("leases")


def test_a_marked_file_without_a_journal(tmp_path):
    path = make(tmp_path / "a")
    data = bytearray(path.read_bytes())
    data[7] |= 0x80
    path.write_bytes(data)
    with pytest.raises(SafetensorError, match="its journal is gone"):
        change(path)
    with pytest.raises(SafetensorError, match=r"does not open: .* change in place has not ended"):
        safetensors.recover(path)
    assert path.read_bytes() == data


# Forks for each kill, which a process with threads should not.
KILLED = """
    import json, pathlib
    from support import in_place_changes
    print(json.dumps(in_place_changes.kill_at_each(pathlib.Path(sys.argv[1]))))
"""


@pytest.mark.slow
def test_kill_at_each_call(tmp_path):
    """The old file, the new one, or one that all readers refuse; after recovery, old or new."""
    seen = [
        tuple(each) for each in json.loads(children.run(KILLED, tmp_path / "killed", timeout=540))
    ]
    assert {*seen} == {("old", "old"), ("refused", "new"), ("new", "new")}
    words = [after for _, after in seen]
    assert words == sorted(words, reverse=True), "once new, never old again"
    assert seen.count(("refused", "new")) > 10


KILLED_AT_RANDOM = """
    import json, pathlib
    from support import in_place_changes
    seen = in_place_changes.kill_at_random(pathlib.Path(sys.argv[1]), 1000, 20)
    print(json.dumps([[*states, count] for states, count in seen.items()]))
"""


@pytest.mark.exhaustive
def test_1000_kills_at_random_times(tmp_path):
    """As above, also between the calls and within them."""
    out = children.run(KILLED_AT_RANDOM, tmp_path / "killed", timeout=540)
    seen = {(before, after): count for before, after, count in json.loads(out)}
    assert seen.keys() <= {("old", "old"), ("refused", "new"), ("new", "new")}
    assert seen["old", "old"] > 50
    assert seen["refused", "new"] > 50


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EIO])
@pytest.mark.parametrize("to_the_end", [False, True])
def test_fail_at_each_call(tmp_path, number, to_the_end):
    """The old file or one that is refused; recovery gives the new one."""
    seen, numbers = [], set()
    for at in range(1, 1000):
        path = make(tmp_path / str(at))
        steps = Steps(at, fail(number), to_the_end)
        try:
            with steps:
                change(path)
        except OSError as error:
            numbers.add(error.errno)
        else:
            break
        seen.append(state(path))
        safetensors.recover(path)
        assert state(path) == ("new" if seen[-1] == "refused" else seen[-1])
        assert names_in(path) == {path.name}
    assert numbers == {number}
    assert seen[0] == "old"
    assert "refused" in seen
    assert state(path) == "new"


INTERRUPTED = """
    import json, pathlib
    from support import in_place_changes
    print(json.dumps(in_place_changes.interrupt_at_random(pathlib.Path(sys.argv[1]), 60, 20)))
"""


def test_interrupts_at_random_times(tmp_path):
    """Ctrl-C leaves the old file or the new one, never one to recover. (The compiled module looks
    for it before each step that can be undone: tests/cpp/test_in_place.cpp.)"""
    seen = json.loads(children.run(INTERRUPTED, tmp_path / "interrupted"))
    assert seen.keys() <= {"old", "new"}
    assert seen["old"] > 10


def stop_after_the_mark(path):
    """Leaves a file that is marked, and its journal."""
    with pytest.raises(OSError, match="No space"), steps_after_the_mark(fail(errno.ENOSPC)):
        change(path)
    assert state(path) == "refused"
    (journal,) = path.parent.glob(f".{path.name}.{'[0-9a-f]' * 16}.journal/journal")
    return journal


def journal_of(path, number=0):
    """Returns where a journal of a file is, in a private folder, which it makes."""
    room = path.parent / f".{path.name}.{number:016x}.journal"
    room.mkdir(0o700)
    return room / "journal"


def test_the_next_change_recovers(tmp_path):
    path = make(tmp_path / "a")
    stop_after_the_mark(path)
    update_file(path, {"b": OLD["b"] + 1}, in_place=True)
    found = stn.load_file(path)
    assert np.array_equal(found["b"], OLD["b"] + 1)
    assert np.array_equal(found["a"], NEW["a"])


def test_recovery_of_a_folder(tmp_path):
    path = make(tmp_path / "a")
    stop_after_the_mark(path)
    assert safetensors.recover(path.parent) == "rolled forward"
    assert safetensors.recover(path.parent) == "clean"
    assert state(path) == "new"


def test_a_file_that_was_replaced_is_left_alone(tmp_path):
    path = make(tmp_path / "a")
    stop_after_the_mark(path)
    stn.save_file({"other": np.ones(9)}, path)
    before = path.read_bytes()
    safetensors.recover(path.parent)
    assert path.read_bytes() == before
    assert names_in(path) == {path.name}


@pytest.mark.parametrize(
    ("metadata", "words"),
    [
        (None, "it is not a journal"),
        ({"format": "safetensors-journal", "version": "2", "files": "{}"}, "it is not a journal"),
        ({"format": "safetensors-journal", "version": "1", "files": "["}, "it is not a journal"),
        ({"format": "safetensors-journal", "version": "1", "files": "{}"}, "it is not a journal"),
        (
            {"format": "safetensors-journal", "version": "1", "files": "[" * 100_000},
            "it is not a journal",
        ),
        *(
            (
                {
                    "format": "safetensors-journal",
                    "version": "1",
                    "files": json.dumps({name: [1, "xxh3-128:00"]}),
                },
                "which is not in its folder",
            )
            for name in ("../m.safetensors", "/etc/passwd", "..", "", "a/b")
        ),
    ],
)
def test_hostile_journals(tmp_path, metadata, words):
    path = make(tmp_path / "a")
    journal = journal_of(path)
    stn.save_file({"r/a": np.zeros(96, "u1")}, journal, metadata=metadata)
    for work in (safetensors.recover, change):
        with pytest.raises(SafetensorError, match=words):
            work(path)
    assert state(path) == "old"


def test_a_journal_with_damaged_records_writes_nothing(tmp_path):
    path = make(tmp_path / "a")
    journal = stop_after_the_mark(path)
    before = path.read_bytes()
    tensors = stn.load_file(journal)
    with safe_open(journal, framework="np") as file:
        metadata = file.metadata()
    for name in tensors:
        for at in (0, len(tensors[name]) // 2, -1):
            damaged = {**tensors, name: tensors[name].copy()}
            damaged[name][at] ^= 1
            stn.save_file(damaged, journal, metadata=metadata)
            with pytest.raises(SafetensorError):
                safetensors.recover(path)
            assert path.read_bytes() == before
    stn.save_file(tensors, journal, metadata=metadata)
    assert safetensors.recover(path) == "rolled forward"
    assert state(path) == "new"


@pytest.mark.skipif(os.getuid() != 0, reason="only root can give files away")
def test_another_users_journal(tmp_path):
    """Its folder is left alone; a journal in one's own folder is refused."""
    path = make(tmp_path / "a")
    journal = stop_after_the_mark(path)
    os.chown(journal.parent, 65534, 65534)
    with (
        pytest.warns(UserWarning, match=r"\.journal was left alone"),
        pytest.raises(SafetensorError, match=r"does not open: .* change in place has not ended"),
    ):
        safetensors.recover(path)
    with (
        pytest.warns(UserWarning, match=r"\.journal was left alone"),
        pytest.raises(SafetensorError, match="its journal is gone"),
    ):
        change(path)
    assert state(path) == "refused"
    os.chown(journal.parent, 0, 0)
    os.chown(journal, 65534, 65534)
    with pytest.raises(SafetensorError, match="it belongs to another user"):
        safetensors.recover(path)
    os.chown(journal, 0, 0)
    assert safetensors.recover(path) == "rolled forward"


def test_names_of_journals_are_in_nobodys_way(tmp_path):
    """Nobody can make one unusable in advance: what is no private folder is left alone, with one
    warning for all."""
    path = make(tmp_path / "a")
    name = f".{path.name}.{'0' * 15}"
    os.symlink(tmp_path, path.parent / f"{name}0.journal")
    os.mkfifo(path.parent / f"{name}1.journal")
    (path.parent / f"{name}2.journal").write_text("{}")
    (path.parent / f"{name}3.journal").mkdir()
    (path.parent / f"{name}3.journal").chmod(0o777)
    before = names_in(path)
    with pytest.warns(UserWarning, match="was left alone: it is not a private folder") as seen:
        change(path)
    assert len(seen) == 1
    assert seen[0].filename.endswith("in_place_changes.py")
    assert state(path) == "new"
    with pytest.warns(UserWarning, match="was left alone: it is not a private folder") as seen:
        assert safetensors.recover(path.parent) == "clean"
    assert len(seen) == 1
    assert names_in(path) == before


def test_a_folder_of_a_journal_that_is_not_complete(tmp_path):
    """It is removed unless a process has it, or the file in it, locked."""
    path = make(tmp_path / "a")
    room = journal_of(path).parent
    (room / "new").write_bytes(b"half")
    for locked in (room, room / "new"):
        fd = os.open(locked, os.O_RDONLY)
        fcntl.flock(fd, fcntl.LOCK_EX)
        assert safetensors.recover(path) == "clean"
        os.close(fd)
    assert room.exists()
    assert safetensors.recover(path) == "rolled back"
    assert names_in(path) == {path.name}


SECOND = """
    import pathlib, safetensors
    from support.in_place_changes import change
    {}(pathlib.Path(sys.argv[1]))
"""


def test_two_at_once(tmp_path):
    """A second process is refused while the first one changes the file."""
    path = make(tmp_path / "a")
    begun, answer = [], []

    def during(name, function, args):
        if not begun:
            begun.append(name)
            for work in ("change", "safetensors.recover"):
                done = children.run_raw(SECOND.format(work), path)
                answer.append(done.stderr)
        return function(*args)

    with steps_after_the_mark(during):
        change(path)
    assert all("another process is changing it" in text for text in answer), answer
    assert state(path) == "new"


def test_upstream_refuses_a_marked_file(tmp_path, upstream):
    path = make(tmp_path / "a")
    assert upstream.run("keys_by_file", path).failure is None
    stop_after_the_mark(path)
    assert "header too large" in upstream.run("keys_by_file", path).failure.text


def test_a_journal_of_another_program(tmp_path):
    """A file that is named as the journal of another file is in nobody's way."""
    path = make(tmp_path / "a")
    other = path.parent / ".app.journal"
    other.write_text("its own")
    foreign = journal_of(tmp_path / "a" / "app")
    foreign.write_text("its own")
    change(path)
    assert safetensors.recover(path) == "clean"
    assert state(path) == "new"
    assert other.read_text() == foreign.read_text() == "its own"


def test_others_cannot_read_the_journal(tmp_path):
    """Whatever rights the first file has: other files may have less."""
    path = make(tmp_path / "a")
    path.chmod(0o666)
    before = os.umask(0)
    try:
        journal = stop_after_the_mark(path)
    finally:
        os.umask(before)
    assert journal.parent.stat().st_mode & 0o777 == 0o700
