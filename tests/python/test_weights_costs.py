"""Processor time and memory for opening models of very many tensors."""

import json
import struct

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
