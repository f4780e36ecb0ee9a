"""Processor time and memory for opening models of very many tensors."""

import json
import struct

import numpy as np
import pytest

from safetensors.weights import WeightsError, open_weights
from support import children, memory

MB = 1 << 20
MEASURE = """
    import sys, time
    from safetensors.weights import open_weights
    from support import memory

    def open_model():
        begin = time.process_time()
        w = open_weights(sys.argv[1])
        print(time.process_time() - begin, len(w) + len(w.unmapped))

    print(memory.peak_growth(open_model))
"""


def check_costs(path, tensors, seconds, nbytes):
    if not memory.can_measure_peak():
        pytest.skip("the peak cannot be measured")
    used, count, peak = children.run(MEASURE, path).split()
    assert int(count) == tensors
    assert float(used) < seconds
    assert int(peak) < nbytes


def write_gguf(path, count):
    """Writes tensors without elements, which take 60 bytes of header each."""

    def text(value):
        return struct.pack("<Q", len(value)) + value

    parts = [b"GGUF", struct.pack("<IQQ", 3, count, 0)]
    for i in range(count):
        name = b"blk.%d.ffn_gate.%d.weight" % divmod(i, 512)
        parts.append(text(name) + struct.pack("<IQIQ", 1, 0, 0, 0))
    path.write_bytes(b"".join(parts))


@pytest.mark.timed
def test_a_gguf_file_of_as_many_tensors_as_are_allowed(tmp_path):
    path = tmp_path / "many.gguf"
    write_gguf(path, 65_536)
    check_costs(path, 65_536, 0.5, 48 * MB)


def test_a_gguf_file_of_a_million_tensors_is_refused(tmp_path):
    path = tmp_path / "many.gguf"
    write_gguf(path, 1_000_000)
    with pytest.raises(WeightsError, match="claims 1,000,000 tensors, at most 65,536") as caught:
        open_weights(path)
    assert caught.value.code == "limit"


@pytest.mark.timed
@pytest.mark.slow
@pytest.mark.parametrize("part", ["weight", "weight_packed"])
def test_a_quarter_of_a_million_tensors_in_61_shards(part, tmp_path):
    count, shards = 250_000, 61
    places, names = {}, [[] for _ in range(shards)]
    for i in range(count):
        name = f"model.layers.{i % shards}.mlp.experts.{i // shards}.gate_proj.{part}"
        places[name] = f"model-{i % shards + 1:05}-of-{shards:05}.safetensors"
        names[i % shards].append(name)
    for shard in names:
        entry = {"dtype": "BF16", "shape": [0, 2], "data_offsets": [0, 0]}
        header = json.dumps(dict.fromkeys(shard, entry)).encode()
        (tmp_path / places[shard[0]]).write_bytes(struct.pack("<Q", len(header)) + header)
    index = {"metadata": {}, "weight_map": places}
    (tmp_path / "model.safetensors.index.json").write_text(json.dumps(index))
    check_costs(tmp_path, count, 3, 200 * MB)


# What malloc holds is exact and needs no page to be touched, unlike the resident memory.
MEASURE_HELD = """
    import ctypes, sys, time
    from safetensors.weights import open_weights

    class Statistics(ctypes.Structure):
        _fields_ = [(name, ctypes.c_size_t) for name in (
            "arena", "ordblks", "smblks", "hblks", "hblkhd",
            "usmblks", "fsmblks", "uordblks", "fordblks", "keepcost")]

    libc = ctypes.CDLL(None)
    if not hasattr(libc, "mallinfo2"):
        sys.exit("no mallinfo2")
    libc.mallinfo2.restype = Statistics

    def held():
        statistics = libc.mallinfo2()
        return statistics.uordblks + statistics.hblkhd

    before = held()
    begin = time.process_time()
    w = open_weights(sys.argv[1])
    seconds = time.process_time() - begin
    print(seconds, held() - before, len(w), len(w.unmapped), len(w.warnings))
"""


def write_experts(folder):
    """Writes a model of 61 shards as Kimi K2's in packed integers, the matrices as holes of files.

    Returns the numbers of tensors and weights, and the bytes of the headers.
    """
    layers, experts, rows, columns = 61, 384, 64, 256
    kinds = {
        "weight_shape": ("I64", [2], 16),  # first in each file, as of the largest elements
        "weight_packed": ("I32", [rows, columns // 8], rows * columns // 2),
        "weight_scale": ("BF16", [rows, columns // 32], rows * columns // 16),
    }
    places, headers = {}, 0
    for layer in range(layers):
        file = f"model-{layer + 1:05}-of-{layers:05}.safetensors"
        modules = [
            f"model.layers.{layer}.mlp.experts.{expert}.{part}_proj"
            for expert in range(experts)
            for part in ("gate", "up", "down")
        ]
        header, end = {}, 0
        for kind, (dtype, shape, nbytes) in kinds.items():
            for module in modules:
                offsets = [end, end + nbytes]
                entry = {"dtype": dtype, "shape": shape, "data_offsets": offsets}
                header[f"{module}.{kind}"] = entry
                end += nbytes
        places |= dict.fromkeys(header, file)
        text = json.dumps(header).encode()
        headers += len(text)
        with (folder / file).open("wb") as out:
            out.write(struct.pack("<Q", len(text)) + text)
            out.write(np.tile(np.array([rows, columns], "<i8"), len(modules)).tobytes())
            out.truncate(8 + len(text) + end)
    index = {"metadata": {}, "weight_map": places}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index))
    weights = {
        "num_bits": 4,
        "type": "int",
        "symmetric": True,
        "strategy": "group",
        "group_size": 32,
    }
    quantization = {
        "quant_method": "compressed-tensors",
        "format": "pack-quantized",
        "config_groups": {"group_0": {"targets": ["Linear"], "weights": weights}},
    }
    config = {"model_type": "kimi_k2", "quantization_config": quantization}
    (folder / "config.json").write_text(json.dumps(config))
    return len(places), layers * experts * 3, headers


@pytest.mark.slow
def test_two_hundred_thousand_parts_of_packed_experts(tmp_path):
    tensors, weights, headers = write_experts(tmp_path)
    done = children.run_raw(MEASURE_HELD, tmp_path)
    if done.stderr == "no mallinfo2\n":
        pytest.skip("the C library does not say what malloc holds")
    assert done.returncode == 0, done.stderr
    seconds, held, mapped, unmapped, warnings = done.stdout.split()
    assert tensors > 200_000
    assert (int(mapped), int(unmapped), int(warnings)) == (weights, 0, 0)
    assert float(seconds) < 2
    assert 0 < int(held) - headers < 160 * tensors
