"""Runs ranks that end in different ways, and collects what each of them raises.

    with Ranks(3, function, folder) as ranks:
        outcomes = ranks.outcomes()

Each rank is a forked process. The store of the process group has a process of its own, so that a
rank that ends or hangs does not take it along. A file would not do: if a rank is killed while it
writes there, torch's FileStore waits for ever for the rest of what it wrote.
"""

import datetime
import faulthandler
import multiprocessing
import os
import signal
import time
import traceback
import warnings
from typing import Any, NamedTuple

SECONDS = 25
"""After which a rank that has not ended is killed."""


class Outcome(NamedTuple):
    """How a rank ended."""

    value: Any = None
    """What the function returned."""
    kind: str = ""
    """The class of what it raised, with its bases; empty if it returned."""
    text: str = ""
    cause: str = ""
    """The class of the `__cause__`."""
    seconds: float = 0.0
    is_dead: bool = False
    """It was killed by a signal."""
    works: Any = None
    """Whether the group could be used then."""


class Ranks:
    """Processes that call `function(rank, *args)` with torch.distributed initialised.

    `works`: whether all ranks use the group afterwards. `host`: the rank that has the store; None:
    a process that is no rank.
    """

    def __init__(self, size, function, *args, works=True, host=None):
        self.size = size
        context = multiprocessing.get_context("fork")
        self._pipes, self.processes, self._host = [], [], None
        if host is None:
            ours, theirs = context.Pipe(duplex=False)
            self._host = context.Process(target=_serve, args=(theirs,), daemon=True)
            self._host.start()
            theirs.close()
            port = ours.recv()
        else:
            port = _free_port()
        for rank in range(size):
            ours, theirs = context.Pipe(duplex=False)
            place = (rank, size, port, rank == host)
            process = context.Process(target=_rank, args=(theirs, place, works, function, args))
            process.start()
            theirs.close()
            self._pipes.append(ours)
            self.processes.append(process)

    def __enter__(self):
        return self

    def __exit__(self, *_):
        for process in filter(None, [*self.processes, self._host]):
            if process.is_alive():
                process.kill()
            process.join()

    def outcome(self, rank):
        """Waits for one rank."""
        pipe = self._pipes[rank]
        if not pipe.poll(SECONDS):
            self.processes[rank].kill()
            raise AssertionError(f"rank {rank} hangs")
        try:
            found = pipe.recv()
        except EOFError:
            self.processes[rank].join()
            assert self.processes[rank].exitcode == -signal.SIGKILL, "a rank has crashed"
            return Outcome(is_dead=True)
        return found

    def outcomes(self):
        """Waits for all ranks, and makes sure that their processes end."""
        found = [self.outcome(rank) for rank in range(self.size)]
        for rank, process in enumerate(self.processes):
            process.join(10)
            assert process.exitcode is not None, f"rank {rank} does not exit"
            assert process.exitcode == (-signal.SIGKILL if found[rank].is_dead else 0)
        return found


def values(size, function, *args):
    """Returns what the function returns on each rank. Raises if one raises."""
    with Ranks(size, function, *args) as ranks:
        found = ranks.outcomes()
    for rank, outcome in enumerate(found):
        assert not outcome.kind, f"rank {rank}: {outcome.kind}: {outcome.text}\n{outcome.value}"
    return [outcome.value for outcome in found]


def _rank(pipe, place, works, function, args):
    import torch
    import torch.distributed as dist

    faulthandler.dump_traceback_later(SECONDS - 5, exit=True)  # says where a rank hangs
    torch.set_num_threads(1)
    warnings.simplefilter("ignore")
    signal.signal(signal.SIGINT, signal.default_int_handler)
    rank, size, port, is_host = place
    store, limit = _store(port, is_host), datetime.timedelta(seconds=SECONDS)
    dist.init_process_group("gloo", store=store, rank=rank, world_size=size, timeout=limit)
    dist.barrier()
    start = time.monotonic()
    try:
        found = Outcome(function(rank, *args))
    except BaseException as error:
        bases = " ".join(base.__name__ for base in type(error).__mro__)
        found = Outcome(traceback.format_exc(), bases, str(error), type(error.__cause__).__name__)
    found = found._replace(seconds=time.monotonic() - start)
    if works:
        total = torch.ones(1)
        dist.all_reduce(total)
        found = found._replace(works=int(total) == size)
    pipe.send(found)
    pipe.close()
    if works:
        dist.barrier()
    dist.destroy_process_group()
    os._exit(0)


def _store(port, is_host):
    import torch.distributed as dist

    limit = datetime.timedelta(seconds=SECONDS)
    return dist.TCPStore("127.0.0.1", port, None, is_host, limit, wait_for_workers=False)


def _serve(pipe):
    store = _store(0, is_host=True)
    pipe.send(store.port)
    signal.pause()


def _free_port():
    import socket

    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        return found.getsockname()[1]
