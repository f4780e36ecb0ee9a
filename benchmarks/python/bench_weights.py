"""Times the weight layer against mlx and gguf-py: decoding packs and blocks, opening a GGUF file.

    python benchmarks/python/bench_weights.py [--size 4096] [--repeats 7] [--schemes]

Runs in an environment with this package and, to compare with them, `mlx[cpu]` and `gguf`; with
--schemes, on one processor, `transformers`, `compressed_tensors`, `bitsandbytes`, `awq` and
`gptqmodel`. All take turns at every repeat; the best time of each counts. Prints a Markdown table.
"""

import argparse
import json
import os
import struct
import tempfile
import time
import warnings
from collections.abc import Callable
from pathlib import Path

import numpy as np
import schemes

from safetensors.weights import QuantParams, open_weights

try:
    import mlx.core as mx

    mx.set_default_device(mx.cpu)
except ImportError:
    mx = None
try:
    import gguf
except ImportError:
    gguf = None

# Type, its number, values and bytes of a block, and where in a block its F16 scales are.
BLOCKS = [
    ("Q4_0", 2, 32, 18, (0,)),
    ("Q8_0", 8, 32, 34, (0,)),
    ("Q4_K", 12, 256, 144, (0, 2)),
    ("Q6_K", 14, 256, 210, (208,)),
    ("Q5_0", 6, 32, 22, (0,)),
    ("Q2_K", 10, 256, 84, (80, 82)),
    ("Q3_K", 11, 256, 110, (108,)),
    ("IQ4_XS", 23, 256, 136, (0,)),
]


def best(
    calls: dict[str, Callable[[], object]],
    repeats: int,
    clock: Callable[[], float] = time.perf_counter,
) -> dict[str, float]:
    """Seconds of the fastest turn of each."""
    for call in calls.values():
        call()
    times: dict[str, float] = dict.fromkeys(calls, float("inf"))
    for _ in range(repeats):
        for name, call in calls.items():
            begin = clock()
            call()
            times[name] = min(times[name], clock() - begin)
    return times


def write_safetensors(path: Path, tensors: dict[str, tuple[str, list[int], bytes]]) -> None:
    header, begin = {}, 0
    for name, (dtype, shape, data) in tensors.items():
        header[name] = {"dtype": dtype, "shape": shape, "data_offsets": [begin, begin + len(data)]}
        begin += len(data)
    text = json.dumps(header).encode()
    with open(path, "wb") as file:
        file.write(struct.pack("<Q", len(text)) + text)
        for _, _, data in tensors.values():
            file.write(data)


def gguf_string(text: str) -> bytes:
    return struct.pack("<Q", len(text.encode())) + text.encode()


def write_gguf(path: Path, metadata: bytes, count: int, tensors: list[tuple]) -> None:
    """tensors: name, type, rows, columns, bytes."""
    infos, body = b"", b""
    for name, kind, rows, columns, data in tensors:
        infos += gguf_string(name) + struct.pack("<IQQIQ", 2, columns, rows, kind, len(body))
        body += data + b"\0" * (-len(data) % 32)
    head = b"GGUF" + struct.pack("<IQQ", 3, len(tensors), count) + metadata + infos
    path.write_bytes(head + b"\0" * (-len(head) % 32) + body)


def row(name: str, nbytes: int, times: dict[str, float]) -> str:
    ours = times["ours"]
    cells = [name, f"{ours * 1e3:.2f} ms", f"{nbytes / ours / 1e9:.1f}" if nbytes else ""]
    for peer in ("mlx", "gguf-py", "copy"):
        cells.append(f"{times[peer] / ours:.1f}x" if peer in times else "")
    return "| " + " | ".join(cells) + " |"


def time_packs(folder: Path, size: int, repeats: int) -> None:
    rng = np.random.default_rng(1)
    for bits in (2, 3, 4, 5, 6, 8):
        words = rng.integers(0, 2**32, (size, size * bits // 32), dtype=np.uint32)
        scales = rng.uniform(0.001, 0.02, (2, size, size // 64)).astype(np.float16)
        path = folder / "pack.safetensors"
        parts = {
            "m.weight": ("U32", list(words.shape), words.tobytes()),
            "m.scales": ("F16", list(scales.shape[1:]), scales[0].tobytes()),
            "m.biases": ("F16", list(scales.shape[1:]), scales[1].tobytes()),
        }
        write_safetensors(path, parts)
        out = np.empty((size, size), np.float32)
        with open_weights(path, quant=QuantParams("affine", bits, 64)) as w:
            tensor = w["m.weight"]
            calls: dict[str, Callable[[], object]] = {
                "ours": lambda t=tensor, o=out: t.numpy(out=o)
            }
            if mx is not None:
                pack = [mx.array(words), *(mx.array(s.astype(np.float32)) for s in scales)]
                mx.eval(pack)
                calls["mlx"] = lambda p=pack, b=bits: mx.eval(mx.dequantize(*p, 64, b))
            source = np.ones_like(out)
            calls["copy"] = lambda o=out, s=source: np.copyto(o, s)
            print(row(f"affine, {bits} bits", out.nbytes, best(calls, repeats)), flush=True)


def time_blocks(folder: Path, size: int, repeats: int) -> None:
    rng = np.random.default_rng(2)
    for name, kind, values, nbytes, scales in BLOCKS:
        blocks = rng.integers(0, 256, (size * size // values, nbytes), dtype=np.uint8)
        for at in scales:
            half = rng.uniform(0.001, 0.02, len(blocks)).astype("<f2")
            blocks[:, at : at + 2] = half.view(np.uint8).reshape(-1, 2)
        path = folder / "blocks.gguf"
        metadata = gguf_string("general.architecture") + struct.pack("<I", 8) + gguf_string("llama")
        write_gguf(path, metadata, 1, [("m.weight", kind, size, size, blocks.tobytes())])
        out = np.empty((size, size), np.float32)
        with open_weights(path) as w:
            tensor = w["m.weight"]
            calls: dict[str, Callable[[], object]] = {
                "ours": lambda t=tensor, o=out: t.numpy(out=o)
            }
            if gguf is not None:
                type_ = gguf.GGMLQuantizationType(kind)
                raw = blocks.reshape(size, -1)
                calls["gguf-py"] = lambda r=raw, t=type_: gguf.quants.dequantize(r, t)
            source = np.ones_like(out)
            calls["copy"] = lambda o=out, s=source: np.copyto(o, s)
            print(row(name, out.nbytes, best(calls, repeats)), flush=True)


def reference_of(case: schemes.Case, module: str, path: Path) -> Callable[[], object] | None:
    """Returns the call of the reference package, or nothing if it is not installed."""
    try:
        import torch

        from safetensors.torch import load_file

        torch.set_num_threads(1)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            return case.reference(
                {name.removeprefix(module): tensor for name, tensor in load_file(path).items()}
            )
    except ImportError as error:
        print(f"no reference for {case.name}: {error}")
        return None


def time_schemes(folder: Path, repeats: int) -> None:
    print("| what | shape | ours | GB/s out | of the speed of a copy | the reference takes |")
    print("|---|---|---|---|---|---|")
    for case in schemes.cases():
        experts = ".experts" if len(case.shape) == 3 else ""
        module = f"model.layers.0.mlp{experts}.down_proj"
        tensors = {
            module + name: (dtype, list(values.shape), values.tobytes())
            for name, (dtype, values) in case.tensors.items()
        }
        path = folder / "model.safetensors"
        write_safetensors(path, tensors)
        config = {"model_type": "llama", "quantization_config": case.config}
        (folder / "config.json").write_text(json.dumps(config))
        out = np.empty(case.shape, np.float32)
        source = np.ones_like(out)
        with open_weights(folder) as w:
            (tensor,) = (w[name] for name in w if name.endswith("down.weight"))
            assert tensor.shape == case.shape, (case.name, tensor.shape)
            calls: dict[str, Callable[[], object]] = {
                "ours": lambda t=tensor, o=out: t.numpy(out=o),
                "copy": lambda o=out, s=source: np.copyto(o, s),
            }
            if reference := reference_of(case, module, path):
                calls["reference"] = reference
            # The time that other processes take on this processor is not part of it.
            times = best(calls, repeats, time.process_time)
        ours = times["ours"]
        cells = [case.name, " x ".join(map(str, case.shape)), f"{ours * 1e3:.1f} ms"]
        cells += [f"{out.nbytes / ours / 1e9:.1f}", f"{times['copy'] / ours:.2f}"]
        cells.append(f"{times['reference'] / ours:.0f}x" if "reference" in times else "")
        print("| " + " | ".join(cells) + " |", flush=True)


def time_opening(folder: Path, repeats: int) -> None:
    path = folder / "tokens.gguf"
    tokens = b"".join(gguf_string(f"token{i}") for i in range(151_936))
    metadata = gguf_string("general.architecture") + struct.pack("<I", 8) + gguf_string("llama")
    metadata += gguf_string("tokenizer.ggml.tokens") + struct.pack("<IIQ", 9, 8, 151_936) + tokens
    write_gguf(path, metadata, 2, [("m.weight", 0, 8, 8, bytes(256))])
    calls: dict[str, Callable[[], object]] = {"ours": lambda: open_weights(path).close()}
    if mx is not None:
        calls["mlx"] = lambda: mx.load(str(path), return_metadata=True)
    if gguf is not None:
        calls["gguf-py"] = lambda: gguf.GGUFReader(path)
    print(row("open, 151,936 tokens", 0, best(calls, min(repeats, 3))))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--size", type=int, default=4096, help="rows and columns of the matrices")
    parser.add_argument("--repeats", type=int, default=7)
    parser.add_argument(
        "--schemes", action="store_true", help="time the quantisation schemes, on one processor"
    )
    arguments = parser.parse_args()
    if arguments.schemes:
        os.sched_setaffinity(0, {max(os.sched_getaffinity(0))})
        with tempfile.TemporaryDirectory() as name:
            time_schemes(Path(name), arguments.repeats)
        return
    print(f"{os.cpu_count()} processors, {arguments.size} x {arguments.size} to a warm F32 array\n")
    print("| what | ours | GB/s out | mlx takes | gguf-py takes | copying takes |")
    print("|---|---|---|---|---|---|")
    with tempfile.TemporaryDirectory() as name:
        time_packs(Path(name), arguments.size, arguments.repeats)
        time_blocks(Path(name), arguments.size, arguments.repeats)
        time_opening(Path(name), arguments.repeats)


if __name__ == "__main__":
    main()
