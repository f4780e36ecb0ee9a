"""Ranks of a load send each other data, and fail together."""

import datetime
import os
import signal
import time

import pytest

torch = pytest.importorskip("torch")
dist = pytest.importorskip("torch.distributed")

from safetensors._group.message import Message  # noqa: E402
from support.rank_faults import Ranks, values  # noqa: E402

pytestmark = pytest.mark.slow

SECONDS = 2


@pytest.fixture(autouse=True)
def short_grace(monkeypatch):
    """The ranks are forked from this process, and have its settings."""
    from safetensors._group import board

    monkeypatch.setattr(board, "_GRACE", 1.0)


def joined(timeout=SECONDS):
    from safetensors._group.communicator import communicator

    return communicator(dist.group.WORLD, datetime.timedelta(seconds=timeout))


def collectives(rank, size):
    with joined() as comm:
        assert (comm.rank, comm.size) == (rank, size)
        told = comm.gather("test", Message(["x" * 3000 * rank], [rank]))
        assert [(each.texts, list(each.numbers)) for each in told] == [
            (["x" * 3000 * each], [each]) for each in range(size)
        ]
        shared = comm.share("test", lambda: Message(numbers=[rank], data=b"a" * 100_000))
        assert (list(shared.numbers), shared.data) == ([0], b"a" * 100_000)
        data = torch.full((1000,), rank, dtype=torch.uint8)
        works = [comm.broadcast(data, size - 1), comm.broadcast(data[:0], 0)]
        for work in works:
            comm.wait(work)
        assert data.tolist() == [size - 1] * 1000
        sizes = [each + 1 for each in range(size)]  # for each rank
        source = torch.cat([torch.full((n,), rank, dtype=torch.uint8) for n in sizes])
        to = torch.empty(size * (rank + 1), dtype=torch.uint8)
        comm.wait(comm.all_to_all(to, source, [rank + 1] * size, sizes))
        assert to.tolist() == [each for each in range(size) for _ in range(rank + 1)]
    return True


@pytest.mark.parametrize("size", [2, 3])
def test_collectives(size):
    assert values(size, collectives, size) == [True] * size


def many(rank, count):
    for number in range(count):
        with joined() as comm:
            told = comm.gather("test", Message(numbers=[number]))
            assert [list(each.numbers) for each in told] == [[number]] * comm.size
    return len(os.listdir("/proc/self/fd")), len(os.listdir("/proc/self/task"))


def test_loads_one_after_the_other():
    """Each has connections of its own, and leaves none of them and no thread behind."""
    few, many_loads = values(2, many, 2), values(2, many, 12)
    for before, after in zip(few, many_loads, strict=True):
        assert after[0] <= before[0] + 1
        assert after[1] <= before[1] + 1


def connecting(rank, slow, seconds):
    made = dist.ProcessGroupGloo

    def connect(*args, **keywords):
        connected = made(*args, **keywords)
        time.sleep(seconds)
        return connected

    if rank == slow:
        dist.ProcessGroupGloo = connect
    start = time.monotonic()
    with joined():
        return time.monotonic() - start


def test_no_rank_goes_on_before_all_are_connected():
    """If one failed then, gloo would keep another waiting for five times the time limit."""
    assert min(values(3, connecting, 2, 1.0)) >= 1.0


def refusing(rank):
    from safetensors._group.communicator import communicator

    problem = ValueError("bad argument") if rank == 1 else None
    with communicator(dist.group.WORLD, datetime.timedelta(seconds=20), problem):
        return "connected"


def test_ranks_do_not_wait_for_one_that_was_called_wrongly():
    with Ranks(3, refusing) as ranks:
        found = ranks.outcomes()
    assert found[1].text == "bad argument"
    for rank in (0, 2):
        assert found[rank].text == "rank 1: ValueError: bad argument"
        assert found[rank].seconds < 10


def failing(rank, culprit, how, phase):
    with joined() as comm:
        if phase == "gather":
            fault(rank == culprit, how)
            comm.gather("test")
        data = torch.zeros(1 << 20, dtype=torch.uint8)
        works = []
        for step in range(8):
            if phase == "data" and step == 5:
                fault(rank == culprit, how)
            works.append(comm.broadcast(data, step % comm.size))
            if len(works) == 2:
                comm.wait(works.pop(0))
        for work in works:
            comm.wait(work)
        if phase == "end":
            fault(rank == culprit, how)
    return "returned"


def fault(is_mine, how):
    if not is_mine:
        return
    if how == "error":
        raise OSError("disk on fire")
    if how == "sleep":
        time.sleep(SECONDS + 2)
    else:
        os.kill(os.getpid(), getattr(signal, how))


CASES = [
    pytest.param(
        size, culprit, marks=[] if (size, culprit) in ((2, 0), (3, 1)) else pytest.mark.exhaustive
    )
    for size in (2, 3)
    for culprit in range(size)
]


# What the ranks say, and how the classes of the failed one begin (None: it is dead).
FAULTS = {
    "error": ("rank {}: OSError: disk on fire", "SafetensorOSError SafetensorError "),
    "SIGINT": ("rank {}: KeyboardInterrupt", "KeyboardInterrupt "),
    "SIGKILL": ("rank {} does not answer: it has ended or hangs", None),
}


@pytest.mark.parametrize("how", FAULTS)
@pytest.mark.parametrize("phase", ["gather", "data", "end"])
@pytest.mark.parametrize(("size", "culprit"), CASES)
def test_all_ranks_fail(size, culprit, phase, how):
    text, own = FAULTS[how]
    with Ranks(size, failing, culprit, how, phase, works=own is not None) as ranks:
        found = ranks.outcomes()
    assert found[culprit].is_dead == (own is None)
    for rank, each in enumerate(found):
        if not each.is_dead:
            assert each.kind.startswith(own if rank == culprit else "SafetensorError ")
            assert each.text == text.format(culprit)
            is_caused = rank == culprit and how == "error"
            assert each.cause == ("OSError" if is_caused else "NoneType")
            assert each.seconds < SECONDS + 5
            assert each.works or own is None


@pytest.mark.exhaustive
@pytest.mark.parametrize("phase", ["gather", "data", "end"])
@pytest.mark.parametrize(("size", "culprit"), [(2, 1)])
def test_a_stopped_rank_is_named(size, culprit, phase):
    """Once it goes on, it raises the same."""
    with Ranks(size, failing, culprit, "SIGSTOP", phase) as ranks:
        text = f"rank {culprit} does not answer: it has ended or hangs"
        _wait_until_stopped(ranks.processes[culprit].pid)
        time.sleep(SECONDS + 2)
        os.kill(ranks.processes[culprit].pid, signal.SIGCONT)
        for rank, each in enumerate(ranks.outcomes()):
            assert each.text == text
            assert each.seconds < SECONDS + (8 if rank == culprit else 5)
            assert each.works


def _wait_until_stopped(pid):
    end = time.monotonic() + 10
    while time.monotonic() < end:
        with open(f"/proc/{pid}/stat") as file:
            if file.read().rpartition(")")[2].split()[0] == "T":
                return
        time.sleep(0.01)
    raise AssertionError("the rank was not stopped")


def test_a_busy_rank_is_named():
    with Ranks(2, failing, 1, "sleep", "data") as ranks:
        found = ranks.outcomes()
    assert {each.text for each in found} == {"rank 1 does not answer: it has ended or hangs"}
    assert all(each.works for each in found)


def steady(rank, seconds):
    with joined() as comm:
        end = time.monotonic() + seconds
        while rank == 0 and time.monotonic() < end:
            time.sleep(0.1)
            comm.progressed()
    return True


def test_progress_extends_the_time_limit():
    assert values(2, steady, SECONDS + 1) == [True, True]


def absent(rank):
    if rank == 1:
        time.sleep(SECONDS + 2)
        return "came late"
    with joined():
        return "met"


def test_a_rank_that_does_not_come():
    with Ranks(2, absent) as ranks:
        found = ranks.outcomes()
    assert found[0].text == "rank 1 does not answer: it has ended or hangs"
    assert found[0].seconds < SECONDS + 5


def retried(rank):
    texts = []
    for attempt in range(3):
        try:
            with joined() as comm:
                if attempt < 2 and rank == attempt:
                    raise OSError(f"attempt {attempt}")
                comm.gather("test")
        except Exception as error:
            texts.append(str(error))
        else:
            texts.append("loaded")
    return texts


def test_a_load_after_a_failure_works():
    expected = ["rank 0: OSError: attempt 0", "rank 1: OSError: attempt 1", "loaded"]
    assert values(2, retried) == [expected, expected]


@pytest.mark.parametrize("how", ["SIGKILL", pytest.param("SIGSTOP", marks=pytest.mark.exhaustive)])
def test_the_host_of_the_store_may_be_the_one(how):
    with Ranks(3, failing, 0, how, "data", works=False, host=0) as ranks:
        found = [ranks.outcome(rank) for rank in (1, 2)]
    assert len({each.text for each in found}) == 1
    assert found[0].text.startswith("the store of the process group does not answer: ")
    assert all(each.seconds < SECONDS + 10 for each in found)


LEAVING = [
    ("SIGKILL", 1, "here"),
    ("SIGKILL", 3, "gather"),
    ("SIGKILL", 1, "data"),
    ("SIGKILL", 2, "end"),
    ("error", 0, "gather"),
    ("error", 0, "data"),
    ("error", 0, "end"),
]


@pytest.mark.parametrize(("how", "culprit", "phase"), LEAVING)
def test_the_host_of_the_store_ends_after_its_error(how, culprit, phase):
    """It has the verdict first, and takes the store along when its program ends."""
    with Ranks(4, leaving, culprit, how, phase, works=False, host=0) as ranks:
        found = ranks.outcomes()
    text = f"rank {culprit}: OSError: disk on fire"
    if how == "SIGKILL":
        text = f"rank {culprit} does not answer: it has ended or hangs"
        assert found.pop(culprit).is_dead
    assert {each.text for each in found} == {text}
    assert all(each.seconds < SECONDS + 5 for each in found)


def leaving(rank, culprit, how, phase):
    from safetensors._group import board

    if rank != 0:
        board._POLL = 0.6  # the host is the first to look again
    if phase == "here":
        fault(rank == culprit, how)
    return failing(rank, culprit, how, phase)


def finishes(rank, seconds):
    with joined() as comm:
        comm.gather("test")
        if rank != 0:
            wait = comm.wait
            comm.wait = lambda work: (time.sleep(seconds), wait(work))
    return "loaded"


def test_the_host_of_the_store_ends_after_its_load():
    """The others have not ended theirs. What the store was for is no failure."""
    with Ranks(3, finishes, 0.8, works=False, host=0) as ranks:
        assert [each.value for each in ranks.outcomes()] == ["loaded"] * 3


def waits_for(rank, size, how, log):
    with open(log.format(rank), "wb") as file:
        os.dup2(file.fileno(), 2)
    if how == "come" and rank == size - 1:
        time.sleep(1.5)
    with joined(10) as comm:
        if how == "send" and rank == size - 1:
            time.sleep(1.5)
        comm.gather("test")
        if how == "end" and rank == size - 1:
            time.sleep(1.5)
    return "loaded"


@pytest.mark.parametrize("size", [2, 3])
@pytest.mark.parametrize("how", ["come", "send", "end"])
def test_a_rank_that_waits_logs_nothing(tmp_path, size, how):
    """TCPStore, the usual store, logs several lines for every wait that runs out of time."""
    log = str(tmp_path / "{}.log")
    with Ranks(size, waits_for, size, how, log, works=False, host=0) as ranks:
        assert [each.value for each in ranks.outcomes()] == ["loaded"] * size
    # What the end of the host makes the others log is not about a wait.
    assert (tmp_path / "0.log").read_text() == ""


def test_what_is_no_group_is_refused():
    from safetensors._group.communicator import communicator

    with pytest.raises(TypeError, match="group is a ProcessGroup of torch.distributed, not str"):
        communicator("world", None).__enter__()
    with pytest.raises(ValueError, match="this rank is not in the group"):
        communicator(dist.GroupMember.NON_GROUP_MEMBER, None).__enter__()
