"""Tensors, rules for parts of them, and the parts: for the tests of plans and of load_into."""

import torch

from safetensors.plan import Shard

TENSORS = {
    "rows": torch.arange(60.0).reshape(10, 6),
    "qkv": torch.arange(96, dtype=torch.int16).reshape(12, 8),
    "cube": torch.arange(120, dtype=torch.uint8).reshape(4, 5, 6),
    "vector": torch.arange(7, dtype=torch.int64),
    "scalar": torch.tensor(3.5),
}
RULES = {
    "rows": Shard(0, 2, 4),
    "qkv": Shard(0, 1, 2, blocks=(8, 2, 2)),
    "cube": (slice(1, 3), ..., [slice(4, 6), 0, -2]),
    "vector": [6, slice(0, 2), 6],
    "scalar": None,
}
PARTS = {
    "rows": TENSORS["rows"][6:9],
    "qkv": TENSORS["qkv"][[4, 5, 6, 7, 9, 11]],
    "cube": TENSORS["cube"][1:3][..., [4, 5, 0, 4]],
    "vector": TENSORS["vector"][[6, 0, 1, 6]],
    "scalar": TENSORS["scalar"],
}
