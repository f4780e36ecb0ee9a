"""Times the weight layer against mlx and gguf-py: decoding packs and blocks, opening a GGUF file.

    python weights/benchmarks/bench_weights.py [--size 4096] [--repeats 7] [--schemes [WORD]]

Runs in an environment with this package, `ml_dtypes` and, to compare with them, `mlx[cpu]` and
`gguf`; with --schemes, on one processor, `transformers`, `compressed_tensors`, `bitsandbytes`,
`awq` and `gptqmodel`. All take turns at every repeat; the best time of each counts, with
--schemes the median. Prints a Markdown table.
"""

import argparse
import itertools
import json
import os
import statistics
import struct
import tempfile
import time
import warnings
from collections.abc import Callable
from pathlib import Path

import ml_dtypes
import more_schemes
import numpy as np
import schemes

from safetensors.weights import QuantParams, WeightTensor, open_weights

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


def turns(
    calls: dict[str, Callable[[], object]],
    repeats: int,
    clock: Callable[[], float] = time.perf_counter,
) -> dict[str, list[float]]:
    """Seconds of each turn of each, after one that does not count."""
    times: dict[str, list[float]] = {name: [] for name in calls}
    for i in range(repeats + 1):
        for name, call in calls.items():
            begin = clock()
            call()
            if i != 0:
                times[name].append(clock() - begin)
    return times


def best(calls: dict[str, Callable[[], object]], repeats: int) -> dict[str, float]:
    """Seconds of the fastest turn of each."""
    return {name: min(times) for name, times in turns(calls, repeats).items()}


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
    """tensors: name, type, shape, bytes."""
    infos, body = b"", b""
    for name, kind, shape, data in tensors:
        axes = struct.pack(f"<I{len(shape)}Q", len(shape), *reversed(shape))
        infos += gguf_string(name) + axes + struct.pack("<IQ", kind, len(body))
        body += data + b"\0" * (-len(data) % 32)
    head = b"GGUF" + struct.pack("<IQQ", 3, len(tensors), count) + metadata + infos
    path.write_bytes(head + b"\0" * (-len(head) % 32) + body)


def write_pack(folder: Path, size: int, mode: str, bits: int, group: int) -> Path:
    """Writes an MLX pack, `m.weight`."""
    rng = np.random.default_rng(1)
    words = rng.integers(0, 2**32, (size, size * bits // 32), dtype=np.uint32)
    parts = {"m.weight": ("U32", list(words.shape), words.tobytes())}
    shape = (size, size // group)
    if mode == "affine":
        for part in ("scales", "biases"):
            values = rng.uniform(0.001, 0.02, shape).astype(np.float16)
            parts[f"m.{part}"] = ("F16", list(shape), values.tobytes())
    else:  # scales of one byte: E8M0 or E4M3, all near 1
        codes = rng.integers(48, 64, shape, dtype=np.uint8) + (0 if mode == "nvfp4" else 70)
        parts["m.scales"] = ("U8", list(shape), codes.astype(np.uint8).tobytes())
    path = folder / "pack.safetensors"
    write_safetensors(path, parts)
    return path


def write_scaled_nvfp4(folder: Path, size: int) -> Path:
    """Writes a GGUF file with a matrix of NVFP4, and the scale of the matrix."""
    blocks = np.random.default_rng(2).integers(0, 256, (size * size // 64, 36), dtype=np.uint8)
    blocks[:, :4] &= 0x3F
    metadata = gguf_string("general.architecture") + struct.pack("<I", 8) + gguf_string("llama")
    path = folder / "blocks.gguf"
    write_gguf(
        path,
        metadata,
        1,
        [
            ("blk.0.ffn_down.weight", 40, (size, size), blocks.tobytes()),
            ("blk.0.ffn_down.scale", 0, (1,), struct.pack("<f", 0.5)),
        ],
    )
    return path


def row(name: str, nbytes: int, times: dict[str, float]) -> str:
    ours = times["ours"]
    cells = [name, f"{ours * 1e3:.2f} ms", f"{nbytes / ours / 1e9:.1f}" if nbytes else ""]
    for peer in ("mlx", "gguf-py", "copy"):
        cells.append(f"{times[peer] / ours:.1f}x" if peer in times else "")
    return "| " + " | ".join(cells) + " |"


def time_packs(folder: Path, size: int, repeats: int) -> None:
    for bits in (2, 3, 4, 5, 6, 8):
        path = write_pack(folder, size, "affine", bits, 64)
        out = np.empty((size, size), np.float32)
        with open_weights(path, quant=QuantParams("affine", bits, 64)) as w:
            tensor = w["m.weight"]
            calls: dict[str, Callable[[], object]] = {
                "ours": lambda t=tensor, o=out: t.numpy(out=o)
            }
            if mx is not None:
                words, *scales = tensor.sections()
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
        write_gguf(path, metadata, 1, [("m.weight", kind, (size, size), blocks.tobytes())])
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
    """Returns the call of the reference package, or nothing if there is none."""
    if case.reference is None:
        return None
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


def time_tensor(
    name: str,
    tensor: WeightTensor,
    repeats: int,
    reference: Callable[[], object] | None = None,
) -> None:
    """Prints a row: decoding to F32 and BF16, beside copies of as many bytes."""
    cells = [name, " x ".join(map(str, tensor.shape))]
    seconds = 0.0
    for kind in ("float32", "bfloat16"):
        out = np.empty(tensor.shape, ml_dtypes.bfloat16 if kind == "bfloat16" else kind)
        room = out.view(np.uint8)
        source = np.ones_like(room)
        calls: dict[str, Callable[[], object]] = {
            "ours": lambda k=kind, o=out: tensor.numpy(k, out=o),
            "copy": lambda r=room, s=source: np.copyto(r, s),
        }
        if reference is not None and kind == "float32":
            calls["reference"] = reference
        # The time that other processes take on this processor is not part of it.
        times = turns(calls, repeats, time.process_time)
        ours = statistics.median(times["ours"])
        cells += [f"{ours * 1e3:.1f} ms", f"{statistics.median(times['copy']) / ours:.2f}"]
        if "reference" in times:
            seconds = statistics.median(times["reference"]) / ours
    cells.append(f"{seconds:.0f}x" if seconds else "")
    print("| " + " | ".join(cells) + " |", flush=True)


def time_case(case: schemes.Case, folder: Path, repeats: int) -> None:
    experts = ".experts" if len(case.shape) == 3 else ""
    module = f"model.layers.0.mlp{experts}.down_proj"
    tensors = {
        module + name: (dtype, list(values.shape), values.tobytes())
        for name, (dtype, values) in case.tensors.items()
    }
    path = folder / "model.safetensors"
    write_safetensors(path, tensors)
    config: dict[str, object] = {"model_type": "llama"}
    if case.config:
        config["quantization_config"] = case.config
    (folder / "config.json").write_text(json.dumps(config))
    with open_weights(folder) as w:
        (tensor,) = (w[name] for name in w if name.endswith("down.weight"))
        assert tensor.shape == case.shape, (case.name, tensor.shape)
        time_tensor(case.name, tensor, repeats, reference_of(case, module, path))


def time_schemes(folder: Path, word: str, repeats: int) -> None:
    print("| what | shape | F32 | of a copy | BF16 | of a copy | the reference takes |")
    print("|---|---|---|---|---|---|---|")
    for case in itertools.chain(schemes.cases(), more_schemes.more_cases()):
        if word in case.name:
            time_case(case, folder, repeats)
    size = more_schemes.SIZE
    (folder / "config.json").unlink(missing_ok=True)  # the last case's is not about these files
    for mode, bits, group in (
        ("affine", 4, 64),
        ("mxfp4", 4, 32),
        ("nvfp4", 4, 16),
        ("mxfp8", 8, 32),
    ):
        if word in (name := f"MLX, {mode}"):
            path = write_pack(folder, size, mode, bits, group)
            with open_weights(path, quant=QuantParams(mode, bits, group)) as w:
                time_tensor(name, w["m.weight"], repeats)
    if word in (name := "GGUF, NVFP4 with a scale"):
        with open_weights(write_scaled_nvfp4(folder, size)) as w:
            time_tensor(name, w["layers.0.ffn.down.weight"], repeats)


def time_opening(folder: Path, repeats: int) -> None:
    path = folder / "tokens.gguf"
    tokens = b"".join(gguf_string(f"token{i}") for i in range(151_936))
    metadata = gguf_string("general.architecture") + struct.pack("<I", 8) + gguf_string("llama")
    metadata += gguf_string("tokenizer.ggml.tokens") + struct.pack("<IIQ", 9, 8, 151_936) + tokens
    write_gguf(path, metadata, 2, [("m.weight", 0, (8, 8), bytes(256))])
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
        "--schemes",
        nargs="?",
        const="",
        metavar="WORD",
        help="time the quantisation schemes with this word in their name, on one processor",
    )
    arguments = parser.parse_args()
    if arguments.schemes is not None:
        os.sched_setaffinity(0, {max(os.sched_getaffinity(0))})
        with tempfile.TemporaryDirectory() as name:
            time_schemes(Path(name), arguments.schemes, arguments.repeats)
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
