"""The same work by other packages, each in its own environment."""

from __future__ import annotations

import gc
from pathlib import Path
from typing import Any

from operations import Args
from work import Work, fresh, page_sum, page_sum_of_arrays


def finish(tensors: dict[str, Any], args: Args) -> tuple[Any, int]:
    """The tensors, and the sum over their pages if they are to be touched."""
    return tensors, page_sum(tensors) if args.get("touch") else len(tensors)


def second(result: tuple[Any, int]) -> int:
    """What finish counted."""
    return result[1]


def fastsafetensors(args: Args) -> Work:
    """All tensors by fastsafetensors, into CPU memory."""
    from fastsafetensors import SafeTensorsFileLoader, SingleGroup

    path = args["path"]

    def run() -> tuple[Any, ...]:
        loader = SafeTensorsFileLoader(SingleGroup(), device="cpu", nogds=True)
        loader.add_filenames({0: [path]})
        buffer = loader.copy_files_to_device()
        tensors = {name: buffer.get_tensor(name) for name in buffer.key_to_rank_lidx}
        return (loader, buffer, *finish(tensors, args))

    return Work(run, check=lambda result: result[3])


def runai(args: Args) -> Work:
    """All tensors by runai-model-streamer."""
    from runai_model_streamer import SafetensorsStreamer

    path = args["path"]

    def run() -> tuple[Any, int]:
        with SafetensorsStreamer() as streamer:
            streamer.stream_file(path)
            tensors = dict(streamer.get_tensors())
            return finish(tensors, args)

    return Work(run, check=second)


def own_tensors(path: str) -> dict[str, Any]:
    """The tensors of a safetensors file, read by hand: peers' environments lack our package."""
    import json
    import struct

    import torch

    types = {"F32": torch.float32, "BF16": torch.bfloat16}
    data = bytearray(Path(path).stat().st_size)
    with open(path, "rb") as file:
        file.readinto(data)
    (length,) = struct.unpack_from("<Q", data)
    tensors = {}
    for name, entry in json.loads(data[8 : 8 + length]).items():
        begin, end = (8 + length + offset for offset in entry["data_offsets"])
        view = torch.frombuffer(memoryview(data)[begin:end], dtype=types[entry["dtype"]])
        tensors[name] = view.reshape(entry["shape"]).clone()
    return tensors


def converted(args: Args, suffix: str, write: Any) -> str:
    """The file in a peer's own format, made once."""
    path = Path(args["path"]).with_suffix(suffix)
    if not path.exists() or path.stat().st_mtime < Path(args["path"]).stat().st_mtime:
        part = path.with_suffix(".part")
        write(own_tensors(args["path"]), part)
        part.replace(path)
        gc.collect()
    return str(path)


def write_tensorizer(tensors: dict[str, Any], path: Path) -> None:
    """Write tensorizer's format."""
    from tensorizer import TensorSerializer

    serializer = TensorSerializer(str(path))
    serializer.write_state_dict(tensors)
    serializer.close()


def tensorizer(args: Args) -> Work:
    """All tensors by tensorizer, from its own format."""
    from tensorizer import TensorDeserializer

    path = converted(args, ".tensors", write_tensorizer)

    def run() -> tuple[Any, ...]:
        deserializer = TensorDeserializer(path, device="cpu")
        return (deserializer, *finish(dict(deserializer.items()), args))

    return Work(run, check=lambda result: result[2])


def write_torch(tensors: dict[str, Any], path: Path) -> None:
    """Write torch's own format."""
    import torch

    torch.save(tensors, path)


def torch_mmap(args: Args) -> Work:
    """torch.load(mmap=True), from torch's own format."""
    import torch

    path = converted(args, ".pt", write_torch)
    return Work(lambda: finish(torch.load(path, mmap=True), args), check=second)


def mlx(args: Args) -> Work:
    """mlx.core.load, which is lazy; evaluated if the pages are to be touched."""
    import mlx.core as mx
    import numpy as np

    mx.set_default_device(mx.cpu)
    path = args["path"]

    def run() -> tuple[Any, int]:
        arrays = mx.load(path)
        if not args.get("touch"):
            return arrays, len(arrays)
        mx.eval(list(arrays.values()))
        views = {name: np.array(array, copy=False) for name, array in arrays.items()}
        return arrays, page_sum_of_arrays(views)

    return Work(run, check=second)


def save_torch(args: Args) -> Work:
    """torch.save."""
    tensors, out = own_tensors(args["path"]), Path(args["out"])
    return Work(lambda: write_torch(tensors, out), before=fresh(out))


def save_tensorizer(args: Args) -> Work:
    """tensorizer's serializer."""
    tensors, out = own_tensors(args["path"]), Path(args["out"])
    return Work(lambda: write_tensorizer(tensors, out), before=fresh(out))


def save_mlx(args: Args) -> Work:
    """mlx.core.save_safetensors."""
    import mlx.core as mx

    mx.set_default_device(mx.cpu)
    arrays = mx.load(args["path"])
    mx.eval(list(arrays.values()))
    out = Path(args["out"])
    return Work(lambda: mx.save_safetensors(str(out), arrays), before=fresh(out))
