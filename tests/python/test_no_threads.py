"""Where the system starts no thread, as limits of containers and users do, the caller works."""

import ast
import datetime
import os
import shutil
import tempfile
import threading
from concurrent.futures import Future

import numpy as np
import pytest
from test_import_graph import ROOT

from safetensors import SafetensorError, _workers
from safetensors._workers import Workers
from safetensors.numpy import save_file, save_file_async
from support import children, forked

LIMITED = """
    import os, resource, sys
    import numpy as np
    import numpy.testing
    import torch
    import safetensors, safetensors.sums, safetensors.numpy as st, safetensors.torch as tt
    import torch.distributed.checkpoint as dcp
    import safetensors.dcp
    from support.range_readers import MemoryReader

    folder = sys.argv[1]
    os.chdir(folder)
    torch.set_num_threads(1)
    if os.getuid() == 0:  # which no limit is for
        os.setgid(65534)
        os.setuid(65534)
    resource.setrlimit(resource.RLIMIT_NPROC, (0, 0))
    try:
        import threading
        threading.Thread(target=print).start()
    except RuntimeError:
        pass
    else:
        raise SystemExit("a thread was started")
    tensors = {f"{i}": np.full((1000, 1000 + i), i, "f4") for i in range(6)}  # 24 MB

    def same(found):
        assert {*found} == {*tensors}
        for name, value in found.items():
            np.testing.assert_array_equal(np.asarray(value), tensors[name], name)
"""


@pytest.fixture
def folder():
    """A folder of which another user may make files."""
    path = tempfile.mkdtemp()
    os.chmod(path, 0o777)
    yield path
    shutil.rmtree(path)


CALLS = {
    "save and load": """
        st.save_file(tensors, "a.safetensors", sums=True)
        same(st.load_file("a.safetensors"))
        same(tt.load_file("a.safetensors"))
        same(tt.load_files("a.safetensors", backend="pread", verify=True))
    """,
    "sums": """
        st.save_file(tensors, "a.safetensors")
        safetensors.sums.write("a.safetensors")
        same(tt.load_files("a.safetensors", verify=True))
    """,
    "save_file_async": """
        st.save_file_async(tensors, "a.safetensors", sums=True, budget_bytes=1).result()
        same(tt.load_files("a.safetensors", verify=True))
        other = {name: torch.from_numpy(value) for name, value in tensors.items()}
        saved = tt.save_file_async(other, "b.safetensors")
        assert saved.done() and saved.nbytes_done == sum(each.nbytes for each in tensors.values())
        saved.result()
        same(st.load_file("b.safetensors"))
        assert safetensors._extra._staging_state()[0] == 0
        failed = st.save_file_async(tensors, "absent/a.safetensors")
        assert isinstance(failed.exception(), FileNotFoundError), failed.exception()
    """,
    "stream_files": """
        st.save_file(tensors, "a.safetensors")
        same(dict(tt.stream_files("a.safetensors", backend="pread")))
        same(dict(tt.stream_files("a.safetensors", budget_bytes=1 << 22)))
    """,
    "prefetch": """
        st.save_file(tensors, "a.safetensors")
        for budget in (None, 1 << 22):
            with safetensors.safe_open("a.safetensors", "pt") as file:
                with file.prefetch(budget_bytes=budget) as loader:
                    last = loader.take("5")
                    np.testing.assert_array_equal(last, tensors["5"])
                    same({"5": last, **dict(loader)})
    """,
    "readers": """
        data = st.save(tensors)
        one = {name: tensors[name] for name in "012"}
        two = {name: tensors[name] for name in "345"}
        same(tt.load_files([MemoryReader(st.save(one)), MemoryReader(st.save(two))]))
    """,
    "checkpoints": """
        st.save_file(tensors, "a.safetensors")
        state = {name: torch.zeros(value.shape, dtype=torch.float64)
                 for name, value in tensors.items()}
        dcp.load(state, storage_reader=safetensors.dcp.StorageReader("."), no_dist=True)
        same(state)
    """,
}


@pytest.mark.skipif(not hasattr(os, "setuid"), reason="needs POSIX")
@pytest.mark.parametrize("name", CALLS)
def test_without_any_thread(folder, name):
    pytest.importorskip("torch")
    print(
        children.run(
            LIMITED + CALLS[name].replace("\n        ", "\n    "), folder, imports=forked.TORCH
        )
    )


@pytest.fixture
def refused(monkeypatch):
    """Lets no thread start, once its `left` is 0. Has the names of those that were refused."""

    class Refused(list):
        left = 0

    names, start = Refused(), threading.Thread.start

    def limited(thread):
        if names.left == 0:
            names.append(thread.name)
            raise RuntimeError("can't start new thread")
        names.left -= 1
        start(thread)

    monkeypatch.setattr(threading.Thread, "start", limited)
    return names


def test_the_caller_runs_the_calls(refused):
    with Workers(3) as workers:
        futures = [workers.submit(lambda i=i: (i, threading.get_ident())) for i in range(5)]
        assert all(future.done() for future in futures)
    assert [future.result() for future in futures] == [(i, threading.get_ident()) for i in range(5)]
    assert len(refused) == 5


def test_one_thread_runs_all_calls(refused):
    """The caller does not wait for calls that a thread will run."""
    refused.left, gate = 1, threading.Event()
    with Workers(3) as workers:
        first = workers.submit(lambda: gate.wait(10) and threading.get_ident())
        while not first.running():
            pass
        others = [workers.submit(threading.get_ident) for _ in range(5)]
        assert not any(future.done() for future in others)
        gate.set()
        assert {future.result(10) for future in others} == {first.result(10)}
    assert first.result() != threading.get_ident()


def test_errors_are_of_the_futures(refused):
    def fails(kind):
        raise kind("x")

    with Workers(2) as workers:
        assert isinstance(workers.submit(fails, OSError).exception(), OSError)
        with pytest.raises(KeyboardInterrupt):
            workers.submit(fails, KeyboardInterrupt)
        assert workers.try_submit(fails, OSError) is None
        assert workers.submit(int, "7").result() == 7


def test_calls_that_are_cancelled():
    gate, ran = threading.Event(), []
    workers = Workers(1)
    first = workers.submit(gate.wait, 10)
    while not first.running():
        pass
    second = workers.submit(ran.append, 1)
    workers.shutdown(wait=False, cancel_futures=True)
    gate.set()
    workers.shutdown()
    assert first.result()
    assert second.cancelled()
    assert ran == []


def test_each_call_runs_once():
    """Also if threads are refused now and then."""
    done, lock, start = [], threading.Lock(), threading.Thread.start
    count = iter(range(10_000))

    def sometimes(thread):
        if next(count) % 2:
            raise RuntimeError("can't start new thread")
        start(thread)

    def call(number):
        with lock:
            done.append(number)
        return number

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(threading.Thread, "start", sometimes)
        for _ in range(50):
            with Workers(4) as workers:
                futures = [workers.submit(call, number) for number in range(100)]
            assert [future.result(10) for future in futures] == list(range(100))
            assert sorted(done) == list(range(100))
            done.clear()


def test_a_save_waits_for_an_earlier_one_of_a_thread(refused, tmp_path, monkeypatch):
    """The last call for a path wins."""
    from safetensors._saving import save_async

    monkeypatch.setattr(save_async, "_saves", save_async._Saves())
    refused.left, path = 1, tmp_path / "a.safetensors"
    saves = [save_file_async({"a": np.full(1 << 20, i, "f4")}, path) for i in range(4)]
    for save in saves:
        save.result(30)
    assert isinstance(saves[0], Future)
    assert save_file_async({"b": np.zeros(3)}, tmp_path / "b.safetensors").result(30) is None
    with open(path, "rb") as file:
        assert np.frombuffer(file.read()[-4:], "f4") == 3
    save_async._saves.pool.shutdown()


def test_ctrl_c_while_the_caller_saves(refused, tmp_path, monkeypatch):
    from safetensors import _extra
    from safetensors._saving import save_async

    torch = pytest.importorskip("torch")
    from safetensors.torch import save_file_async as save_torch_async

    monkeypatch.setattr(save_async, "_saves", save_async._Saves())
    monkeypatch.setattr(_extra, "_StagedSave", _interrupted(_extra._StagedSave))
    with pytest.raises(KeyboardInterrupt):
        save_torch_async({"a": torch.zeros(3)}, tmp_path / "a.safetensors")
    assert list(tmp_path.iterdir()) == []
    assert not save_async._saves.running


def _interrupted(cls):
    class Interrupted:
        def __init__(self, *args):
            self._save = cls(*args)

        def write_here(self, *args):
            raise KeyboardInterrupt

        def __getattr__(self, name):
            return getattr(self._save, name)

    return Interrupted


def joins(rank, path):
    import torch.distributed as dist

    from safetensors.torch import load_files

    if rank == 1:
        start = threading.Thread.start

        def limited(thread):
            if thread.name == "safetensors-group":
                raise RuntimeError("can't start new thread")
            start(thread)

        threading.Thread.start = limited
    load_files(path, group=dist.group.WORLD, timeout=datetime.timedelta(seconds=20))


@pytest.mark.slow
def test_ranks_fail_together(tmp_path):
    pytest.importorskip("torch")
    from support.rank_faults import Ranks

    save_file({"a": np.zeros(3, "f4")}, tmp_path / "a.safetensors")
    with Ranks(2, joins, tmp_path / "a.safetensors") as ranks:
        found = ranks.outcomes()
    for each in found:
        assert each.kind.startswith("SafetensorError ")
        assert each.text == f"rank 1: {_workers.NO_THREAD}, and a load by a group needs one"
        assert each.seconds < 10
        assert each.works


def reads(rank, path):
    import torch.distributed as dist

    from safetensors.torch import load_files

    start = threading.Thread.start

    def limited(thread):
        if thread.name.startswith("safetensors-group_") or "-own" in thread.name:
            raise RuntimeError("can't start new thread")
        start(thread)

    threading.Thread.start = limited
    found = load_files(path, group=dist.group.WORLD, timeout=datetime.timedelta(seconds=20))
    return {name: float(tensor.sum()) for name, tensor in found.items()}


@pytest.mark.slow
def test_ranks_read_on_their_own_thread(tmp_path):
    pytest.importorskip("torch")
    from support.rank_faults import values

    tensors = {f"{i}": np.full(1 << 20, i, "f4") for i in range(9)}
    save_file(tensors, tmp_path / "a.safetensors")
    expected = {name: float(value.sum()) for name, value in tensors.items()}
    assert values(2, reads, tmp_path / "a.safetensors") == [expected] * 2


def test_obstore_needs_a_thread(refused, monkeypatch):
    from safetensors._remote import loop

    monkeypatch.setattr(loop, "_loop", None)
    with pytest.raises(SafetensorError, match=f"{_workers.NO_THREAD}, and obstore needs some"):
        loop._of_process()


STARTED = {
    "_workers.py": "calls run on the calling thread",
    "weights/_shared_work.py": "the calling thread does the work of helpers",
    "_group/board.py": "all ranks raise an error that says so",
    "_remote/loop.py": "raises an error that says so",
}


def test_threads_are_started_where_their_absence_is_handled():
    found = set()
    for path in ROOT.rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Call):
                name = getattr(node.func, "attr", getattr(node.func, "id", ""))
                if name in ("Thread", "ThreadPoolExecutor", "to_thread", "Timer", "Process"):
                    found.add(path.relative_to(ROOT).as_posix())
    assert found == set(STARTED)
