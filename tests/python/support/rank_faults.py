"""Runs ranks that end in different ways, and collects what each of them raises.

    with Ranks(3, function, folder) as ranks:
        outcomes = ranks.outcomes()

Each rank is a forked process. The store of the process group is a file, so that a rank that ends or
hangs does not take it along.
"""

import datetime
import faulthandler
import multiprocessing
import os
import signal
import tempfile
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
    it is a file.
    """

    def __init__(self, size, function, *args, works=True, host=None):
        self.size = size
        self._folder = tempfile.TemporaryDirectory()
        where = os.path.join(self._folder.name, "store") if host is None else _free_port()
        context = multiprocessing.get_context("fork")
        self._pipes, self.processes = [], []
        for rank in range(size):
            ours, theirs = context.Pipe(duplex=False)
            store = (where, size, rank == host)
            process = context.Process(
                target=_rank, args=(theirs, rank, store, works, function, args)
            )
            process.start()
            theirs.close()
            self._pipes.append(ours)
            self.processes.append(process)

    def __enter__(self):
        return self

    def __exit__(self, *_):
        for process in self.processes:
            if process.is_alive():
                process.kill()
            process.join()
        self._folder.cleanup()

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


def _rank(pipe, rank, place, works, function, args):
    import torch
    import torch.distributed as dist

    faulthandler.dump_traceback_later(SECONDS - 5, exit=True)  # says where a rank hangs
    torch.set_num_threads(1)
    warnings.simplefilter("ignore")
    signal.signal(signal.SIGINT, signal.default_int_handler)
    limit = datetime.timedelta(seconds=SECONDS)
    where, size, is_host = place
    if isinstance(where, str):
        store = dist.FileStore(where, size)
    else:
        store = dist.TCPStore("127.0.0.1", where, size if is_host else None, is_host, limit, False)
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


def _free_port():
    import socket

    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        return found.getsockname()[1]
