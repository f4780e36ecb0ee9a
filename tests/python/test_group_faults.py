"""A rank of a group fails while it loads: all ranks raise the same, and nothing is returned."""

import contextlib
import datetime
import json
import os
import signal
import time

import pytest

torch = pytest.importorskip("torch")
dist = pytest.importorskip("torch.distributed")

from safetensors.plan import Shard  # noqa: E402
from safetensors.torch import load_files, load_into, save_files  # noqa: E402
from support.rank_faults import Ranks, values  # noqa: E402

pytestmark = pytest.mark.slow

SECONDS = 3
LIMIT = datetime.timedelta(seconds=SECONDS)
PHASES = ["open", "agree", "first", "middle", "last"]


@pytest.fixture(autouse=True)
def short_grace(monkeypatch):
    """The ranks are forked from this process, and have its settings."""
    from safetensors._group import board

    monkeypatch.setattr(board, "_GRACE", 1.0)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A model of about 30 steps: broadcasts and exchanges."""
    path = tmp_path_factory.mktemp("model")
    tensors = {f"{i}.weight": torch.randn(1100, 1000) for i in range(12)}
    tensors |= {f"{i}.rows": torch.randn(300, 1000) for i in range(6)}
    save_files(tensors, path, max_shard_size=20 << 20)
    return path


def plan_of(rank, size):
    return {"*.rows": Shard(1, rank, size), "*": None}


def inject(phase, act):
    """Calls `act` in this process when its load comes to a phase."""
    from safetensors import _load_arguments
    from safetensors._group import communicator, load

    def before(module, name):
        original = getattr(module, name)

        def called(*args, **kwargs):
            act()
            return original(*args, **kwargs)

        setattr(module, name, called)

    if phase == "open":
        return before(_load_arguments, "find_shards")
    if phase == "agree":
        return before(load, "pack")
    original = load.schedule

    def scheduled(*args):
        found = original(*args)
        count = sum(type(step).__name__ != "Own" for step in found.steps)
        assert count > 8
        at = {"first": 0, "middle": count // 2, "last": count - 1}[phase]
        made = iter(range(count))
        for name in ("broadcast", "all_to_all"):
            _before_step(communicator.Communicator, name, made, at, act)
        return found

    load.schedule = scheduled
    return None


def _before_step(cls, name, made, at, act):
    original = getattr(cls, name)

    def called(*args):
        if next(made, None) == at:
            act()
        return original(*args)

    setattr(cls, name, called)


def raise_error():
    raise OSError("the disk is on fire")


def send(name):
    os.kill(os.getpid(), getattr(signal, name))


def loads(rank, size, culprit, phase, act, folder):
    if rank == culprit:
        inject(phase, act)
    return load_files(folder, plan=plan_of(rank, size), group=dist.group.WORLD, timeout=LIMIT)


QUICK = [(2, 0), (3, 1)]
ALL = [(size, culprit) for size in (2, 3) for culprit in range(size)]
CASES = [
    pytest.param(*each, phase, marks=[] if each in QUICK else pytest.mark.exhaustive)
    for each in ALL
    for phase in PHASES
]


def check(found, culprit, text, kind="SafetensorError"):
    for rank, each in enumerate(found):
        if each.is_dead:
            assert rank == culprit
            continue
        if rank == culprit:
            assert kind in each.kind.split()
        else:
            assert each.kind.split()[0] == "SafetensorError"
        assert each.text == text
        assert each.value.startswith("Traceback")  # not a dict
        assert each.seconds < SECONDS + 5 or rank == culprit
        assert each.works is not False


@pytest.mark.parametrize(("size", "culprit", "phase"), CASES)
def test_an_error(folder, size, culprit, phase):
    with Ranks(size, loads, size, culprit, phase, raise_error, folder) as ranks:
        found = ranks.outcomes()
    check(found, culprit, f"rank {culprit}: OSError: the disk is on fire")
    assert found[culprit].cause == "OSError"
    assert {"SafetensorError", "OSError"} < {*found[culprit].kind.split()}


@pytest.mark.parametrize(("size", "culprit", "phase"), CASES)
def test_ctrl_c(folder, size, culprit, phase):
    with Ranks(size, loads, size, culprit, phase, lambda: send("SIGINT"), folder) as ranks:
        found = ranks.outcomes()
    check(found, culprit, f"rank {culprit}: KeyboardInterrupt", "KeyboardInterrupt")


@pytest.mark.parametrize(("size", "culprit", "phase"), CASES)
def test_kill(folder, size, culprit, phase):
    kill = Ranks(size, loads, size, culprit, phase, lambda: send("SIGKILL"), folder, works=False)
    with kill as ranks:
        found = ranks.outcomes()
    assert found[culprit].is_dead
    text = f"rank {culprit} does not answer: it has ended or hangs"
    check(found, culprit, text)


def stop(size, culprit, phase, folder):
    """Starts ranks of which one stops in a phase."""
    return Ranks(size, loads, size, culprit, phase, lambda: send("SIGSTOP"), folder)


def check_stopped(cases, folder):
    """The cases run at once, because all of them wait."""
    with contextlib.ExitStack() as stack:
        started = [(case, stack.enter_context(stop(*case, folder))) for case in cases]
        time.sleep(SECONDS + 3)
        for (_, culprit, _), ranks in started:
            os.kill(ranks.processes[culprit].pid, signal.SIGCONT)
        for (_, culprit, _), ranks in started:
            text = f"rank {culprit} does not answer: it has ended or hangs"
            check(ranks.outcomes(), culprit, text)


def test_stop(folder):
    check_stopped([(3, 2, "middle")], folder)


@pytest.mark.exhaustive
@pytest.mark.parametrize("phase", PHASES)
def test_stop_anywhere(folder, phase):
    check_stopped([(2, 0, phase), (2, 1, phase)], folder)
    check_stopped([(3, 0, phase), (3, 1, phase), (3, 2, phase)], folder)


def fails_to_read(rank, size, culprit, at, folder):
    from safetensors._group import load

    reads = iter(range(1000))
    original = load._Read.__call__

    def called(self, requests):
        if next(reads) == at:
            raise_error()
        return original(self, requests)

    if rank == culprit:
        load._Read.__call__ = called
    return load_files(folder, plan=plan_of(rank, size), group=dist.group.WORLD, timeout=LIMIT)


@pytest.mark.parametrize("at", [0, 3, 8])
@pytest.mark.parametrize(("size", "culprit"), [(2, 0), (3, 2)])
def test_a_read_fails(folder, size, culprit, at):
    with Ranks(size, fails_to_read, size, culprit, at, folder) as ranks:
        found = ranks.outcomes()
    check(found, culprit, f"rank {culprit}: OSError: the disk is on fire")
    assert found[culprit].cause == "OSError"


def fails_in_progress(rank, size, culprit, at, folder):
    def progress(done, total):
        if rank == culprit and done >= at * total:
            raise ValueError(f"enough at {at}")

    return load_files(
        folder,
        plan=plan_of(rank, size),
        group=dist.group.WORLD,
        timeout=LIMIT,
        progress=progress,
    )


@pytest.mark.parametrize("at", [0, 0.5, 1])
@pytest.mark.parametrize(("size", "culprit"), [(2, 1), (3, 0)])
def test_progress_raises(folder, size, culprit, at):
    with Ranks(size, fails_in_progress, size, culprit, at, folder) as ranks:
        found = ranks.outcomes()
    check(found, culprit, f"rank {culprit}: ValueError: enough at {at}")
    assert found[culprit].cause == "ValueError"


def loads_other(rank, culprit, folder, what):
    from safetensors._group import opening

    given = {"group": dist.group.WORLD, "timeout": LIMIT}
    if rank != culprit:
        return load_files(folder, **given)
    if what == "version":
        opening._core = type("Core", (), {"__version__": "9.9", "__getattr__": None})
    if what == "plan":
        return load_files(folder, plan={"no such tensor": None}, **given)
    if what == "missing":
        return load_files(folder / "nowhere", **given)
    if what == "file":
        return load_files(folder.parent / "other", **given)
    return load_files(folder.parent / "fewer", **given)


@pytest.mark.parametrize("what", ["version", "plan", "missing", "file", "fewer"])
@pytest.mark.parametrize(("size", "culprit"), [(2, 1), (3, 2)])
def test_ranks_that_load_something_else(folder, size, culprit, what):
    others = {f"{i}.weight": torch.randn(10, 10) for i in range(18)}
    save_files(others, folder.parent / "other", max_shard_size=1300)
    save_files({"0.weight": torch.ones(3)}, folder.parent / "fewer")
    with Ranks(size, loads_other, culprit, folder, what) as ranks:
        found = ranks.outcomes()
    assert len({each.text for each in found}) == 1
    text = found[0].text
    absent = folder / "nowhere"
    expected = {
        "version": f"the ranks load different files: rank {culprit} has version 9.9 of safetensors",
        "plan": f"rank {culprit}: The files do not contain tensor 'no such tensor'",
        "missing": f"rank {culprit}: FileNotFoundError: No such file or directory: {absent}",
        "file": f"the ranks load different files: rank {culprit} has ",
        "fewer": f"the ranks load different files: rank {culprit} has ",
    }
    assert text.startswith(expected[what])
    check(found, culprit, text)
    assert ("FileNotFoundError" in found[culprit].kind.split()) == (what == "missing")


def misses_its_folder(rank, folders, load):
    with pytest.raises(FileNotFoundError) as caught:
        load(folders[rank], group=dist.group.WORLD, timeout=LIMIT)
    return str(caught.value), caught.value.filename, caught.value.errno, caught.value.code


def into_nothing(folder, **given):
    load_into({}, folder, **given)


def streams(folder, **given):
    from safetensors._group.files import stream
    from safetensors._load_arguments import LoadArguments

    for _ in stream(options=LoadArguments(folder), **given):
        raise AssertionError("nothing is there")


@pytest.mark.parametrize("load", [load_files, into_nothing, streams])
def test_every_rank_misses_its_folder(tmp_path, load):
    """Each raises its own error, with the text of the first one."""
    folders = [str(tmp_path / f"of_rank_{rank}") for rank in range(2)]
    first, second = values(2, misses_its_folder, folders, load)
    assert first[0] == second[0]
    assert first[0] in [
        f"rank {rank}: FileNotFoundError: No such file or directory: {folders[rank]}"
        for rank in range(2)
    ]
    assert [first[1:], second[1:]] == [(folder, 2, "io") for folder in folders]


def test_files_of_an_index_that_nobody_takes_may_be_absent(folder, tmp_path):
    for path in folder.iterdir():
        (tmp_path / path.name).symlink_to(path)
    index = (tmp_path / "model.safetensors.index.json").read_text()
    absent = json.loads(index)["weight_map"]["0.weight"]
    (tmp_path / absent).unlink()
    assert values(2, takes_the_others, tmp_path, absent) == [True, True]


def takes_the_others(rank, folder, absent):
    index = json.loads((folder / "model.safetensors.index.json").read_text())
    names = [name for name, file in index["weight_map"].items() if file != absent]
    return {*load_files(folder, keys=names, group=dist.group.WORLD)} == {*names}


def goes_on_after(rank, folder):
    """Loads again after a failure, with the group that it has."""
    with pytest.raises(Exception, match="rank 1: ValueError: no"):
        load_files(folder, group=dist.group.WORLD, timeout=LIMIT, progress=refuse if rank else None)
    return len(load_files(folder, group=dist.group.WORLD, timeout=LIMIT))


def refuse(*_):
    raise ValueError("no")


def test_a_later_load_works(folder):
    assert values(2, goes_on_after, folder) == [18, 18]


def fails_into(rank, folder):
    tensors = {name: torch.zeros_like(each) for name, each in load_files(folder).items()}
    versions = {name: each._version for name, each in tensors.items()}

    def progress(done, total):
        if rank == 0 and done > total / 3:
            raise ValueError("no")

    with pytest.raises(Exception, match="rank 0: ValueError: no"):
        load_into(tensors, folder, group=dist.group.WORLD, timeout=LIMIT, progress=progress)
    assert all(each._version > versions[name] for name, each in tensors.items())
    before = {name: each.clone() for name, each in tensors.items()}
    time.sleep(0.5)
    return all(torch.equal(each, before[name]) for name, each in tensors.items())


def test_nothing_is_written_after_an_error(folder):
    assert values(2, fails_into, folder) == [True, True]
