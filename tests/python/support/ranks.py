"""Runs a function in several processes that form a group of torch.distributed."""

import os
import sys
import tempfile
import warnings

SECONDS = 60
"""After which a rank that waits for another one fails."""


def run(function, world, *args, start_method="fork"):
    """Calls `function(rank, *args)` in each process. The first error is raised here.

    Requires: "fork": torch runs no threads in this process. "spawn": `function` has a module.
    """
    import torch.multiprocessing

    with tempfile.TemporaryDirectory() as folder:
        store = os.path.join(folder, "store")
        torch.multiprocessing.start_processes(
            _rank, args=(world, store, function, args), nprocs=world, start_method=start_method
        )


def _rank(rank, world, store, function, args):
    import datetime

    import torch
    import torch.distributed as dist

    torch.set_num_threads(1)
    warnings.simplefilter("ignore")
    dist.init_process_group(
        "gloo",
        init_method=f"file://{store}",
        rank=rank,
        world_size=world,
        timeout=datetime.timedelta(seconds=SECONDS),
    )
    try:
        function(rank, *args)
    finally:
        dist.destroy_process_group()
    # Not by the interpreter's end: before Python 3.14 it stops a thread of gloo that drops a tensor
    # just then, which aborts the process.
    sys.stdout.flush()
    os._exit(0)
