"""State dicts of torch.distributed.checkpoint, sharded and whole. Ranks import this module."""

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import Replicate, Shard, distribute_tensor
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module


def random(*shape, dtype=torch.float32):
    """A tensor of random bytes; for bool, of 0 and 1."""
    if dtype == torch.bool:
        return torch.randint(0, 2, shape).bool()
    count = torch.Size(shape).numel() * dtype.itemsize
    return torch.randint(0, 256, (count,), dtype=torch.uint8).view(dtype).reshape(shape)


def one_dimension(world):
    """Returns the whole tensors, and how they are placed on a mesh of all ranks (None: plain)."""
    torch.manual_seed(world)
    whole = {
        "rows": (random(4 * world, 6), [Shard(0)]),
        "uneven rows": (random(2 * world + 1, 5, dtype=torch.bfloat16), [Shard(0)]),
        "few rows": (random(1, 3), [Shard(0)]),
        "columns": (random(7, 4 * world), [Shard(1)]),
        "uneven columns": (random(3, 2 * world + 1, dtype=torch.float16), [Shard(1)]),
        "middle": (random(3, 2 * world + 1, 4, dtype=torch.int64), [Shard(1)]),
        "last": (random(3, 2, 2 * world, dtype=torch.float8_e4m3fn), [Shard(2)]),
        "bools": (random(4 * world, dtype=torch.bool), [Shard(0)]),
        "replicated": (random(5, 5, dtype=torch.float64), [Replicate()]),
        "plain": (random(3, 4), None),
        "transposed": (random(400, 3).t(), None),
        "number": (torch.tensor(7), None),
        "empty": (torch.zeros(0, 3), None),
        "empty rows": (torch.zeros(0, 3), [Shard(0)]),
        "\N{SNOWMAN} name": (random(2), None),
    }
    mesh = init_device_mesh("cpu", (world,))
    return _placed(whole, mesh)


def two_dimensions(world):
    """As `one_dimension`, on a mesh of (2, world / 2) ranks."""
    torch.manual_seed(world)
    whole = {
        "both": (random(7, 9), [Shard(0), Shard(1)]),
        "both turned": (random(7, 9), [Shard(1), Shard(0)]),
        "rows twice": (random(11, 3), [Shard(0), Shard(0)]),
        "replicated rows": (random(11, 3), [Replicate(), Shard(0)]),
        "replicated columns": (random(2, 5, 6), [Shard(2), Replicate()]),
    }
    return _placed(whole, init_device_mesh("cpu", (2, world // 2)))


def _placed(whole, mesh):
    state = {}
    for name, (tensor, placements) in whole.items():
        if placements is not None:  # gloo could not send all dtypes: all ranks have the values
            tensor = distribute_tensor(tensor, mesh, placements, src_data_rank=None)
        state[name] = tensor
    return {name: tensor.contiguous() for name, (tensor, _) in whole.items()}, state


class _Mlp(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.up = torch.nn.Linear(6, 20)
        self.down = torch.nn.Linear(20, 6)
        self.register_buffer("steps", torch.tensor(3))

    def forward(self, x):
        return self.down(self.up(x).relu())


def modules(world):
    """A module of FSDP2; with 4 ranks, of FSDP2 and tensor parallelism (_StridedShard)."""
    torch.manual_seed(world)
    module = torch.nn.Sequential(_Mlp(), _Mlp())
    whole = {name: tensor.clone() for name, tensor in module.state_dict().items()}
    mesh = init_device_mesh("cpu", (2, world // 2), mesh_dim_names=("dp", "tp"))
    for each in module:
        if world > 2:
            plan = {"up": ColwiseParallel(), "down": RowwiseParallel()}
            parallelize_module(each, mesh["tp"], plan)
        fully_shard(each, mesh=mesh["dp"])
    fully_shard(module, mesh=mesh["dp"])
    return whole, module.state_dict()


CASES = {
    "one dimension": one_dimension,
    "two dimensions": two_dimensions,
    "modules": modules,
}


def save(state, writer):
    """Saves with a writer. All ranks wait for the end."""
    dcp.save(state, storage_writer=writer)
    dist.barrier()
