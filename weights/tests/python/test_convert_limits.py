"""Values, shapes and threads at the limits of a conversion to safetensors."""

import math
import os
import signal
import struct
import threading
import time

import numpy as np
import pytest

from safetensors import safe_open
from safetensors._cli.main import main
from safetensors.weights import WeightsError, _convert, convert
from safetensors.weights._convert_plan import Plan
from safetensors.weights._shared_work import share
from weights_support.data import write_gguf, write_hf


def gguf_of(path, architecture, name, shape, code, data=b""):
    """Writes a model of one tensor of a GGUF type."""

    def text(value):
        return struct.pack("<Q", len(value)) + value.encode()

    header = b"GGUF" + struct.pack("<IQQ", 3, 1, 1)
    header += text("general.architecture") + struct.pack("<I", 8) + text(architecture)
    header += text(name) + struct.pack(f"<I{len(shape)}QIQ", len(shape), *shape[::-1], code, 0)
    path.write_bytes(header + bytes(-len(header) % 32) + bytes(data))
    return path


@pytest.mark.parametrize("kind", ["f32", "bf16", "f16"])
def test_f64_values_that_are_too_large(tmp_path, kind):
    """They are counted once; infinities of the source are kept."""
    values = np.ones((3000, 512))
    values[0, 0] = -math.inf
    config = {"model_type": "llama"}
    source = write_hf(tmp_path / "in", config, {"model.norm.weight": values})
    convert(source, tmp_path / "m.safetensors", dtype=kind, verify=True)
    (tmp_path / "m.safetensors").unlink()
    values[5, 7] = values[2999, 0] = 1e300
    write_hf(source, config, {"model.norm.weight": values})
    gguf = gguf_of(tmp_path / "m.gguf", "llama", "token_embd.weight", (3000, 512), 28, values)
    for each in (source, gguf):
        with pytest.raises(WeightsError, match="2 of 1,536,000 values are too large"):
            convert(each, tmp_path / "m.safetensors", dtype=kind)
    assert sorted(os.listdir(tmp_path)) == ["in", "m.gguf"]


def test_an_overflow_is_counted_once(tmp_path, monkeypatch):
    """Not by each thread that finds it."""
    tensors = {"model.norm.weight": np.full((64, 1 << 16), 1e6, np.float32)}
    source = write_hf(tmp_path / "in", {"model_type": "llama"}, tensors)
    decoded, decode = [], Plan.decode

    def counted(plan, unit, values):
        decoded.append(unit)
        decode(plan, unit, values)
        time.sleep(0.05)

    monkeypatch.setattr(Plan, "decode", counted)
    with pytest.raises(WeightsError, match="4,194,304 of 4,194,304 values are too large"):
        convert(source, tmp_path / "m.safetensors", dtype="f16", threads=8)
    assert 8 < len(decoded) <= 8 + 8


@pytest.mark.parametrize("shape", [(1 << 40, 0, 4), (0, 2, 4), (2, 4, 0), ((1 << 16) + 1, 1, 1)])
@pytest.mark.parametrize("kind", ["f32", "keep"])
def test_stacks_without_bounds(tmp_path, capsys, shape, kind):
    """A tiny file must not make a tensor for each of its experts."""
    data = bytes(4 * math.prod(shape))
    source = gguf_of(tmp_path / "m.gguf", "qwen3moe", "blk.0.ffn_up_exps.weight", shape, 0, data)
    words = ["convert", str(source), f"{tmp_path}/out/", "--dtype", kind]
    assert main(words) == 2
    said = capsys.readouterr().err
    assert said.count("\n") == 1
    assert "ffn.experts.up.weight" in said
    assert "internal error" not in said
    assert os.listdir(tmp_path) == ["m.gguf"]


def test_the_gate_of_a_shared_expert(tmp_path):
    """A vector in GGUF files, and a matrix of one row in checkpoints."""
    values = np.arange(8, dtype=np.float32)
    for name in ("qwen2moe", "qwen35moe"):
        tensors = {"blk.0.ffn_gate_inp_shexp.weight": values, "output_norm.weight": values}
        source = write_gguf(tmp_path / "m.gguf", {"general.architecture": name}, tensors)
        convert(source, tmp_path / "m.safetensors", verify=True)
        with safe_open(tmp_path / "m.safetensors", "np") as f:
            gate = f.get_tensor("model.layers.0.mlp.shared_expert_gate.weight")
            np.testing.assert_array_equal(gate, values[None])
            assert f.get_slice("model.norm.weight").get_shape() == [8]


def test_a_stored_stack_is_read_once(tmp_path, monkeypatch):
    """For all of its experts, when it is written, and when it is verified."""
    data = np.arange(6 * 4 * 8, dtype="<i4")
    name = "blk.0.ffn_up_exps.weight"
    source = gguf_of(tmp_path / "m.gguf", "qwen3moe", name, (6, 4, 8), 26, data)
    with Plan(source) as plan:
        read = []
        get = type(plan.weights).get_tensor
        monkeypatch.setattr(
            type(plan.weights), "get_tensor", lambda *each: read.append(1) or get(*each)
        )
        assert {each.how for each in plan.outputs} == {"stored"}
        monkeypatch.setattr(_convert, "_PIECE_NBYTES", 48)
        convert(source, tmp_path / "m.safetensors", verify=True)
        assert len(read) == 2
        with safe_open(tmp_path / "m.safetensors", "np") as f:
            found = [f.get_tensor(each.name) for each in plan.outputs]
        np.testing.assert_array_equal(np.stack(found).reshape(-1), data)


def test_files_of_the_source_are_opened_one_by_one(tmp_path, monkeypatch):
    """A model may have more of them than a process may open."""
    most, opened = [], _convert._opened
    monkeypatch.setattr(_convert, "_opened", lambda paths: most.append(len(paths)) or opened(paths))
    tensors = {f"x.{i}": np.ones(4, np.float32) for i in range(5)}
    source = write_hf(tmp_path / "in", {"model_type": "llama"}, tensors)
    convert(source, f"{tmp_path}/shards/", max_shard_size=16)
    convert(tmp_path / "shards", tmp_path / "m.safetensors", verify=True)
    assert len(most) > 5
    assert set(most) == {1}


def test_arguments(tmp_path):
    source = write_hf(tmp_path / "in", {"model_type": "llama"})
    with pytest.raises(ValueError, match="shard size of 0 is too small"):
        convert(source, tmp_path / "out", max_shard_size=0)
    with pytest.raises(ValueError, match="threads is -1"):
        convert(source, tmp_path / "out", threads=-1)
    assert os.listdir(tmp_path) == ["in"]


def workers():
    return [each for each in threading.enumerate() if each.name == "safetensors-convert"]


def test_an_interrupt_ends_the_work():
    """Also while the calling thread waits for its helpers."""
    ready, first, sent = threading.Barrier(3), threading.main_thread(), threading.Lock()

    def work(item):
        ready.wait(10)
        if threading.current_thread() is not first:
            time.sleep(0.2)
            if sent.acquire(blocking=False):
                signal.pthread_kill(first.ident, signal.SIGINT)
            time.sleep(0.5)

    with pytest.raises(KeyboardInterrupt):
        share(iter(range(3)), lambda: work, 3)
    assert workers() == []


def test_a_thread_that_does_not_start(monkeypatch):
    """The others do its work."""
    done, start = [], threading.Thread.start

    def refused(thread):
        if len(workers()) == 2:
            raise RuntimeError("can't start new thread")
        start(thread)

    def work(item):
        done.append(item)
        time.sleep(0.001)

    monkeypatch.setattr(threading.Thread, "start", refused)
    share(iter(range(300)), lambda: work, 8)
    assert sorted(done) == list(range(300))
    assert workers() == []


def test_progress_of_the_comparison(tmp_path):
    """Writing is the first half of one total, and reading back the second."""
    seen = []
    source = write_hf(tmp_path / "in", {"model_type": "llama"})
    convert(
        source,
        tmp_path / "m.safetensors",
        verify=True,
        progress=lambda *each: seen.append(each),
    )
    assert seen == [(16, 32), (32, 32)]


def test_errors_name_no_options_of_open_weights(tmp_path):
    """A conversion does not have them."""
    name = "model.layers.0.mlp.up_proj"
    tensors = {f"{name}.weight": np.zeros((8, 8), np.uint32)}
    tensors |= {f"{name}.{part}": np.zeros((8, 2), np.float16) for part in ("scales", "biases")}
    source = write_hf(tmp_path / "in", {"model_type": "llama"}, tensors)
    with pytest.raises(WeightsError, match=r"group size are not known: state them in config\.json"):
        convert(source, tmp_path / "m.safetensors", dtype="f32")
