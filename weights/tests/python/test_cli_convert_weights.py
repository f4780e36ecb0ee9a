"""`safetensors convert` of MLX packs and GGUF files, and safetensors.weights.convert."""

import json
import math
import os
import pathlib
import pickle
import re
import resource
import shutil
import signal
import struct
import subprocess
import sys
import time

import numpy as np
import pytest

import safetensors
from safetensors import SafetensorError, safe_open
from safetensors._cli.main import main
from safetensors.weights import WeightsError, _convert, convert, open_weights
from safetensors.weights._convert_plan import Plan
from safetensors.weights._hf_tables import TABLES
from support import cli
from weights_support import scheme_models
from weights_support.data import DATA, GGUF, MLX, expected, sha_of_values, write_gguf, write_hf

KINDS = {"bf16": "BF16", "f16": "F16", "f32": "F32"}
Q4_K_M = DATA / "gguf" / "llama_q4_k_m.gguf"


def values_of(path):
    """Returns the tensors of a safetensors file or folder as F32, by name."""
    with open_weights(path, bf16="keep") as w:
        return {w[name].source: w[name].numpy("float32") for name in [*w, *w.unmapped]}


def rounded(tensor, kind):
    """Returns the decoded values of a tensor, rounded to a type, as F32."""
    if kind == "bf16":
        bits = tensor.torch(pytest.importorskip("torch").bfloat16)
        return bits.float().numpy()
    return tensor.numpy({"f16": "float16", "f32": "float32"}[kind]).astype(np.float32)


def bytes_of(folder):
    """Returns the files of a folder by name."""
    return {name: (folder / name).read_bytes() for name in sorted(os.listdir(folder))}


CASES = [(name, kind) for name in MLX for kind in ("bf16", "keep")]
CASES += [
    (name, kind) for name in ("llama_q4_g32_f16", "mixtral_hf_f16") for kind in ("f16", "f32")
]


@pytest.mark.parametrize(("name", "kind"), CASES)
def test_mlx(tmp_path, name, kind):
    """Tensors keep their names, quantised ones become plain, and the rest of the model remains."""
    pytest.importorskip("torch")
    source, target = DATA / "mlx" / name, tmp_path / "out"
    convert(source, f"{target}/", dtype=kind)
    with open_weights(source, bf16="keep") as a, open_weights(target, bf16="keep") as b:
        assert list(a) == list(b)
        for each in a:
            x, y = a[each], b[each]
            assert (y.source, y.shape, y.storage) == (x.source, x.shape, "raw")
            plain = x.type_name if x.quant is None else "BF16"
            assert y.type_name == KINDS.get(kind, plain)
            wanted = kind if kind in KINDS else {v: k for k, v in KINDS.items()}[plain]
            np.testing.assert_array_equal(y.numpy("float32"), rounded(x, wanted))
        assert b.config.quantization is None
        assert b.config.dim == a.config.dim
        assert b.metadata["format"] == a.metadata.get("format", "pt")
    config = json.loads((target / "config.json").read_text())
    wanted = json.loads((source / "config.json").read_text())
    for table in (wanted, wanted.get("text_config", {})):
        table.pop("quantization", None)
        table.pop("quantization_config", None)
        for key in table.keys() & {"torch_dtype", "dtype"}:
            table[key] = {"bf16": "bfloat16", "f32": "float32", "f16": "float16"}.get(
                kind, table[key]
            )
    assert config == wanted
    assert list(config) == list(wanted)


@pytest.mark.parametrize("name", GGUF)
def test_gguf(tmp_path, name):
    """Values and names are those of the checkpoint."""
    wanted = expected(DATA / "gguf" / f"{name}.expected.json")
    source = DATA / "gguf" / wanted["files"][0]
    convert(source, tmp_path / "m.safetensors", dtype="f32")
    with open_weights(source, layout="hf") as a, open_weights(tmp_path / "m.safetensors") as b:
        experts = {each for each in a if ".experts." in each}
        assert {each for each in b if ".experts." not in each} == set(a) - experts
        for each in a:
            values = a[each].numpy()
            if each in experts:
                start, end = each.split("experts.")
                names = [f"{start}experts.{i}.{end}" for i in range(len(values))]
                found = np.stack([b[part].numpy() for part in names])
            else:
                found = b[each].numpy()
            np.testing.assert_array_equal(found, values)
            if "sha256_f32_hf" in wanted["tensors"][each]:
                assert sha_of_values(found) == wanted["tensors"][each]["sha256_f32_hf"]
        assert b.unmapped == []


def test_architectures_in_the_documentation():
    """They are those of the table."""
    text = (pathlib.Path(__file__).parents[3] / "docs" / "names.md").read_text()
    (listed,) = re.findall(r"if the architecture is one of\n([^.]+)\.", text)
    assert re.split(r",\s+", listed) == sorted({key.split(":")[0] for key in TABLES} - {"clip"})
    (towers,) = re.findall(r"`clip.projector_type` is one of\s([^`]+?)\. Split", text)
    kinds = re.split(r",\s+|\sand\s", towers)
    assert {f"clip:{kind}" for kind in kinds} == {key for key in TABLES if key.startswith("clip:")}


def test_types_of_gguf(tmp_path):
    """Every storage type is decoded; integers are kept, and so are plain floats on request."""
    expected_values = np.load(DATA / "gguf" / "types_expected.npz")
    convert(DATA / "gguf" / "types.gguf", tmp_path / "all.safetensors", dtype="f32")
    convert(DATA / "gguf" / "types.gguf", tmp_path / "keep.safetensors")
    found, kept = values_of(tmp_path / "all.safetensors"), values_of(tmp_path / "keep.safetensors")
    assert len(found) > 30
    with open_weights(DATA / "gguf" / "types.gguf") as w:
        assert set(found) == set(w.unmapped)
        for name in w.unmapped:
            np.testing.assert_array_equal(found[name], w[name].numpy("float32"))
            wanted = expected_values[w[name].type_name].astype(np.float32)
            np.testing.assert_array_equal(found[name], wanted.reshape(3, 512))
    with safe_open(tmp_path / "keep.safetensors", "np") as f:
        for name in f.keys():  # noqa: SIM118
            stored = name.split(".")[1].upper()
            plain = stored in ("F16", "F32", "F64", "I8", "I16", "I32", "I64")
            assert f.get_slice(name).get_dtype() == (stored if plain else "BF16")
    np.testing.assert_array_equal(kept["t.i32.weight"], found["t.i32.weight"])


def test_shards(tmp_path):
    """A folder gets shards, an index and the small files, with the bytes of the one file."""
    source = tmp_path / "in"
    shutil.copytree(DATA / "mlx" / "llama_sharded", source)
    small = {"tokenizer.json": "{}", "generation_config.json": "{}", "chat_template.jinja": "x"}
    others = {"quantize_config.json": "{}", "notes.bin": "x", ".hidden.json": "{}"}
    for name, data in {**small, **others}.items():
        (source / name).write_text(data)
    os.mkfifo(source / "pipe.json")
    words = ["convert", source, tmp_path / "out", "--dtype", "f16", "--max-shard-size", "20kB"]
    said = cli.output(*words)
    assert "shards" in said
    names = [name for name in os.listdir(tmp_path / "out") if not name.endswith(".safetensors")]
    index = "model.safetensors.index.json"
    assert sorted(names) == sorted(["config.json", "expected.json", index, *small])
    cli.run("convert", source, tmp_path / "one.safetensors", "--dtype", "f16")
    assert sorted(os.listdir(tmp_path)) == ["in", "one.safetensors", "out"]
    assert "0 changed, 0 only in A" in cli.output(
        "diff", tmp_path / "out", tmp_path / "one.safetensors"
    )
    assert "exist; --force" in cli.complaint(
        "convert", source, f"{tmp_path}/out/", "--dtype", "f16"
    )
    words[-1] = "30kB"
    words += ["--force", "--verify"]
    assert "two models in one folder" in cli.complaint(*words)
    words[-3] = "20kB"
    assert cli.output(*words, "-q") == ""


def test_small_files_are_not_overwritten(tmp_path):
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "config.json").write_text("mine")
    words = ["convert", DATA / "mlx" / "llama_bf16", tmp_path / "out", "--dtype", "bf16"]
    assert "config.json exists; --force" in cli.complaint(*words)
    assert bytes_of(tmp_path / "out") == {"config.json": b"mine"}
    cli.run(*words, "--force")
    assert json.loads((tmp_path / "out" / "config.json").read_text())["model_type"] == "llama"


def big_pack(folder, layers=4, rows=3000, columns=1024):
    """Writes an MLX model of several megabytes, with a stack of experts."""
    rng = np.random.default_rng(0)
    tensors = {}
    for i in range(layers):
        shape = (3, rows // 3) if i == 0 else (rows,)
        name = f"model.layers.{i}.mlp." + ("switch_mlp.up_proj" if i == 0 else "up_proj")
        tensors[f"{name}.weight"] = rng.integers(0, 2**32, (*shape, columns // 8), dtype=np.uint32)
        for part in ("scales", "biases"):
            tensors[f"{name}.{part}"] = rng.normal(size=(*shape, columns // 64)).astype(np.float16)
        tensors[f"model.layers.{i}.input_layernorm.weight"] = rng.normal(size=columns).astype("f2")
    quant = {"group_size": 64, "bits": 4}
    config = {"model_type": "llama", "hidden_size": columns, "quantization": quant}
    return write_hf(folder, config, tensors)


def test_threads_do_not_change_the_bytes(tmp_path):
    """Nor do the limit of memory and the size of shards change values."""
    source = big_pack(tmp_path / "in")
    for threads in (1, 2, 7):
        convert(source, f"{tmp_path / str(threads)}/", dtype="bf16", threads=threads, verify=True)
    one = bytes_of(tmp_path / "1")
    assert len(one["model.safetensors"]) > 4 * 3000 * 1024 * 2
    assert bytes_of(tmp_path / "2") == one
    assert bytes_of(tmp_path / "7") == one
    with open_weights(source) as w:
        found = values_of(tmp_path / "7")
        name = "model.layers.0.mlp.switch_mlp.up_proj.weight"
        tensor = w["layers.0.ffn.experts.up.weight"]
        assert found[name].shape == (3, 1000, 1024)
        np.testing.assert_array_equal(found[name], rounded(tensor, "bf16"))


def sparse_gguf(path, architecture, name, shape):
    """Writes a model of one F64 tensor, whose zeros take no disk space."""

    def text(value):
        return struct.pack("<Q", len(value)) + value.encode()

    header = b"GGUF" + struct.pack("<IQQ", 3, 1, 1)
    header += text("general.architecture") + struct.pack("<I", 8) + text(architecture)
    header += text(name) + struct.pack(f"<I{len(shape)}QIQ", len(shape), *shape[::-1], 28, 0)
    header += bytes(-len(header) % 32)
    with open(path, "wb") as file:
        file.write(header)
        file.truncate(len(header) + math.prod(shape) * 8)
    return path


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "shape"),
    [
        pytest.param("token_embd", (3 << 16, 2048), id="one tensor of 3 GiB"),
        pytest.param("blk.0.ffn_up_exps", (6, 1 << 13, 2048), id="a stack of 768 MiB"),
        pytest.param("token_embd", (3, 1 << 25), id="the longest rows"),
    ],
)
def test_memory_is_bounded(tmp_path, name, shape):
    source = sparse_gguf(tmp_path / "m.gguf", "qwen3moe", f"{name}.weight", shape)
    target = tmp_path / "m.safetensors"
    status, most = cli.peak_memory("convert", source, target, "--dtype", "bf16")
    assert status == 0
    assert os.path.getsize(target) > math.prod(shape) * 2
    assert most < (640e6 if shape[-1] == 1 << 25 else 200e6)
    target.unlink()


def test_rows_that_are_too_long(tmp_path):
    """They would have to be in memory as a whole."""
    source = sparse_gguf(tmp_path / "m.gguf", "llama", "token_embd.weight", (2, (1 << 25) + 1))
    said = cli.complaint("convert", source, tmp_path / "m.safetensors", "--dtype", "bf16")
    assert "tensor `token_embedding.weight`: a row of 33,554,433 values; rows of up to" in said
    assert os.listdir(tmp_path) == ["m.gguf"]


def test_progress(tmp_path):
    """It counts the bytes of the result's tensors, also of several files, with one total."""
    source = big_pack(tmp_path / "in")
    with Plan(source, "keep") as plan:
        total = sum(plan.sizes().values())
    for target, most in (("m.safetensors", None), ("m/", 4_000_000)):
        check_progress(source, f"{tmp_path}/{target}", most, total)


def check_progress(source, target, most, total):
    seen = []
    convert(source, target, max_shard_size=most, progress=lambda *each: seen.append(each))
    assert seen[-1] == (total, total)
    assert {each for _, each in seen} == {total}
    assert [done for done, _ in seen] == sorted(done for done, _ in seen)
    assert len(seen) > 10


def test_dry_run(tmp_path):
    words = ["convert", Q4_K_M, f"{tmp_path}/out/", "--dry-run", "--verify"]
    said = cli.output(*words)
    assert "model.safetensors: 12 tensors" in said
    assert "nothing was written" in said
    assert os.listdir(tmp_path) == []


def test_verify_finds_a_flipped_bit(tmp_path):
    """In decoded, copied and stored tensors, and in the header."""
    sources = {
        "f16": big_pack(tmp_path / "in"),
        "keep": big_pack(tmp_path / "in"),
        "f32": DATA / "gguf" / "types.gguf",
    }
    for dtype, source in sources.items():
        target = tmp_path / "m.safetensors"
        with Plan(source, dtype) as plan:
            convert(source, target, dtype=dtype, verify=True)
            good = target.read_bytes()
            assert all(each.how in ("decode", "copy", "stored") for each in plan.outputs)
            with safe_open(target, "np") as f:
                ends = {name: f.get_tensor_meta(name).data_offsets for name in f.offset_keys()}
            data = len(good) - max(end for _, end in ends.values())
            for how in {each.how for each in plan.outputs}:
                name = next(each.name for each in reversed(plan.outputs) if each.how == how)
                bad = bytearray(good)
                bad[data + ends[name][1] - 1] ^= 0x10
                target.write_bytes(bad)
                with pytest.raises(WeightsError, match=f"`{name}`: byte .* not written correctly"):
                    _convert.compare(plan, target)
            target.write_bytes(good.replace(b'"F16"', b'"I16"').replace(b'"F32"', b'"I32"'))
            with pytest.raises(WeightsError, match="I16|I32"):
                _convert.compare(plan, target)
            target.write_bytes(good)
            _convert.compare(plan, target)


def test_values_that_are_too_large_or_not_finite(tmp_path):
    """Rounding never makes a value infinite; infinities of plain tensors are kept."""
    values = np.ones((40, 64), np.float32)
    values[3, 5] = values[39, 0] = 1e5
    values[7, 7] = -np.inf
    source = write_hf(tmp_path / "in", {"model_type": "llama"}, {"model.norm.weight": values})
    words = ["convert", source, tmp_path / "m.safetensors", "--dtype"]
    said = cli.complaint(*words, "f16")
    assert "tensor `model.norm.weight`: 2 of 2,560 values are too large for F16" in said
    assert os.listdir(tmp_path) == ["in"]
    cli.run(*words, "bf16", "--verify")
    assert values_of(tmp_path / "m.safetensors")["model.norm.weight"][7, 7] == -np.inf
    pack = big_pack(tmp_path / "pack")
    tensors = {}
    with safe_open(pack / "model.safetensors", "np") as f:
        tensors = {name: f.get_tensor(name).copy() for name in f.keys()}  # noqa: SIM118
    tensors["model.layers.2.mlp.up_proj.scales"][1234, 3] = np.nan
    safetensors.numpy.save_file(tensors, pack / "model.safetensors")
    (tmp_path / "m.safetensors").unlink()
    said = cli.complaint("convert", pack, tmp_path / "m.safetensors", "--dtype", "f32")
    assert "tensor `model.layers.2.mlp.up_proj.weight`: the value at [1234, 192] is nan" in said
    assert sorted(os.listdir(tmp_path)) == ["in", "pack"]


def test_a_scheme(tmp_path):
    """Scales vanish, those of activations with a note; the configuration forgets the scheme."""
    rng = np.random.default_rng(0)
    module = "model.layers.0.mlp.down_proj"
    tensors = {
        f"{module}.weight": ("F8_E4M3", rng.integers(0, 126, (200, 384), np.uint8)),
        f"{module}.weight_scale_inv": rng.random((2, 3), np.float32),
        f"{module}.input_scale": np.ones((), np.float32),
        "model.norm.weight": rng.random(200, np.float32),
        "model.norm.steps": np.arange(3),
    }
    quant = {"quant_method": "fp8", "weight_block_size": [128, 128]}
    config = {"quantization_config": quant, "model_type": "llama"}
    source = scheme_models.write_model(tmp_path / "in", tensors, config, shards=2)
    (source / "hf_quant_config.json").write_text("{}")
    done = cli.run(
        "convert", source, tmp_path / "out", "--dtype", "keep", "--max-shard-size", "1GB"
    )
    assert f"`{module}.input_scale`: left out" in done.stderr
    out = tmp_path / "out"
    assert sorted(os.listdir(out)) == ["config.json", "model.safetensors"]
    assert json.loads((out / "config.json").read_text()) == {"model_type": "llama"}
    with safe_open(out / "model.safetensors", "np") as f:
        types = {name: f.get_slice(name).get_dtype() for name in f.keys()}  # noqa: SIM118
    wanted = {f"{module}.weight": "BF16", "model.norm.weight": "F32", "model.norm.steps": "I64"}
    assert types == wanted
    with open_weights(source) as a, open_weights(out, bf16="keep") as b:
        name = "layers.0.ffn.down.weight"
        bits = scheme_models.bf16_bits(a[name].numpy())
        np.testing.assert_array_equal(scheme_models.bf16_values(bits), b[name].numpy())


@pytest.mark.parametrize("name", ["fp8_blocks", "fp8_rows", "mxfp4"])
def test_stored_schemes(tmp_path, name):
    """Values that other programs wrote survive; those that are not finite are refused."""
    source = DATA / "schemes" / name
    with open_weights(source) as w:
        finite = all(np.isfinite(w[each].numpy("float32")).all() for each in w)
        if not finite:
            with pytest.raises(WeightsError, match="the value at") as caught:
                convert(source, tmp_path / "m.safetensors", dtype="f32")
            assert caught.value.code == "non_finite"
            return
        convert(source, tmp_path / "m.safetensors", dtype="f32", verify=True)
        found = values_of(tmp_path / "m.safetensors")
        joined = [each for each in w if ".experts." in each and name == "mxfp4"]
        assert len(found) == len([*w, *w.unmapped]) - len(joined) + 4 * bool(joined)
        for each in set(w) - set(joined):
            np.testing.assert_array_equal(found[w[each].source], w[each].numpy("float32"))


def test_column_schemes(tmp_path):
    """Their units are larger, and cover all rows."""
    rng = np.random.default_rng(0)
    rows, columns = 5120, 1024
    module = "model.layers.0.mlp.down_proj"
    tensors = {
        f"{module}.qweight": rng.integers(-(2**31), 2**31, (columns // 8, rows), np.int32),
        f"{module}.qzeros": rng.integers(-(2**31), 2**31, (8, rows // 8), np.int32),
        f"{module}.scales": rng.random((8, rows)).astype(np.float16),
    }
    quant = {"quant_method": "gptq", "bits": 4, "group_size": 128, "sym": False, "desc_act": False}
    config = {"model_type": "llama", "quantization_config": quant}
    source = scheme_models.write_model(tmp_path / "in", tensors, config)
    for threads in (1, 3):
        convert(source, f"{tmp_path}/{threads}/", dtype="f32", threads=threads, verify=True)
    assert bytes_of(tmp_path / "1") == bytes_of(tmp_path / "3")
    with open_weights(source) as w:
        wanted = w["layers.0.ffn.down.weight"].numpy()
    np.testing.assert_array_equal(values_of(tmp_path / "1")[f"{module}.weight"], wanted)


def test_a_scheme_that_is_not_decoded(tmp_path):
    """The error names it before anything is written."""
    name = "model.layers.0.mlp.up_proj"
    tensors = {
        f"{name}.codes": np.zeros((8, 8, 1), np.int16),
        "model.norm.weight": np.zeros(8, np.float32),
    }
    config = {"model_type": "llama", "quantization_config": {"quant_method": "aqlm"}}
    source = write_hf(tmp_path / "in", config, tensors)
    for more in ([], ["--dry-run"]):
        said = cli.complaint("convert", source, f"{tmp_path}/out/", "--dtype", "bf16", *more)
        assert "aqlm" in said
        assert name in said
        assert os.listdir(tmp_path) == ["in"]


@pytest.mark.parametrize("kind", ["bf16", "keep"])
def test_hostile_sources(tmp_path, kind, capsys):
    """Each gives a model, or one line and no file."""
    from safetensors._cli.main import main

    refused = 0
    for source in sorted((DATA / "bad").iterdir()):
        if source.suffix == ".json":
            continue
        status = main(["convert", str(source), f"{tmp_path / 'out'}/", "--dtype", kind])
        said = capsys.readouterr().err
        if status:
            refused += 1
            assert status == 2
            assert said.count("\n") == 1, said
            assert "internal error" not in said
            assert not os.listdir(tmp_path)
        else:
            shutil.rmtree(tmp_path / "out")
    assert refused > 20


def test_a_full_disk_leaves_nothing(tmp_path):
    """Neither files, nor the folder that was made."""
    source = big_pack(tmp_path / "in")
    for target in (tmp_path / "m.safetensors", f"{tmp_path}/out/"):
        said = cli.complaint(
            "convert", source, target, "--dtype", "bf16",
            preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (5 << 20, 5 << 20)),
        )  # fmt: skip
        assert "File too large" in said
        assert os.listdir(tmp_path) == ["in"]


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGKILL])
def test_a_kill_leaves_no_model(tmp_path, number):
    """The small files appear with the model, too."""
    source = big_pack(tmp_path / "in", layers=24)
    target = tmp_path / "out"
    command = [
        sys.executable,
        "-m",
        "safetensors",
        "convert",
        source,
        f"{target}/",
        "--dtype",
        "f32",
    ]
    cut = 0
    for wait in (0, 0.02, 0.05):
        process = subprocess.Popen(list(map(str, command)), stderr=subprocess.PIPE)
        end = time.monotonic() + 60
        while not (target.is_dir() and any(target.iterdir())) and time.monotonic() < end:
            assert process.poll() is None
            time.sleep(0.001)
        time.sleep(wait)
        process.send_signal(number)
        _, said = process.communicate(timeout=60)
        status = process.returncode
        if status == 0:  # the machine was slow to send the signal
            shutil.rmtree(target)
            continue
        cut += 1
        if number == signal.SIGINT:
            assert status in (130, -signal.SIGINT), said
            assert os.listdir(tmp_path) == ["in"], (os.listdir(target), said)
        else:
            assert all(name.startswith(".") for name in os.listdir(target))
            cli.run("recover", target)
            assert os.listdir(target) == []
    assert cut


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["in", "m.safetensors", "--dtype", "bf16", "--key", "k"], "apply to PyTorch files only"),
        (["in", "m.safetensors", "--verify"], "--verify needs --dtype, or a GGUF file"),
        (["in", "m.safetensors", "--to", "gguf"], "invalid choice"),
        (["in", "m.safetensors", "--dtype", "q4_0"], "q4_0 is none of bf16, f16, f32, keep"),
        (["x.npz", "m.safetensors", "--dtype", "bf16"], "--dtype applies to safetensors and GGUF"),
        (["x.bin", "m.safetensors", "--dtype", "bf16"], "--dtype applies to safetensors and GGUF"),
        (["none", "m.safetensors", "--dtype", "bf16"], "No such file or directory"),
        (["text", "m.safetensors", "--dtype", "bf16"], "text"),
    ],
)
def test_errors(tmp_path, words, said):
    shutil.copytree(DATA / "mlx" / "llama_bf16", tmp_path / "in")
    (tmp_path / "text").write_text("plain words, nothing more")
    np.savez(tmp_path / "x.npz", a=np.ones(2))
    (tmp_path / "x.bin").write_bytes(pickle.dumps({}, 2))
    assert said in cli.complaint("convert", *words, cwd=tmp_path)
    assert sorted(os.listdir(tmp_path)) == ["in", "text", "x.bin", "x.npz"]


def test_types_in_any_case(tmp_path):
    """All commands take both, and their help shows one."""
    source = DATA / "mlx" / "llama_bf16"
    for number, words in enumerate((["F16"], ["f16"])):
        cli.run("convert", source, tmp_path / f"c{number}.safetensors", "--dtype", *words)
        cli.run("merge", source, tmp_path / f"m{number}.safetensors", "--dtype", *words)
    for each in "cm":
        one, other = ((tmp_path / f"{each}{i}.safetensors").read_bytes() for i in range(2))
        assert one == other
        assert b'"F16"' in one
    assert "{f64,f32,bf16,f16,f8_e4m3,f8_e5m2}" in cli.output("merge", "--help")


def test_without_the_option_packs_are_copied(tmp_path):
    """As before: only --dtype decodes the packs of safetensors files."""
    source = DATA / "mlx" / "llama_q4_g64_bf16"
    done = cli.run("convert", source, tmp_path / "m.safetensors", "--to", "safetensors")
    assert "quantised tensors are copied: --dtype bf16 would decode them\n" in done.stderr
    assert "0 changed, 0 only in A, 0 only in B" in cli.output(
        "diff", "--raw", source, tmp_path / "m.safetensors"
    )
    cli.run("convert", Q4_K_M, tmp_path / "g.safetensors")
    assert "model.layers.0.self_attn.q_proj.weight" in values_of(tmp_path / "g.safetensors")


def test_unknown_architectures_keep_their_names(tmp_path):
    """One line says so."""
    tensors = {"token_embd.weight": np.ones((4, 8), np.float32), "x": np.ones(3, np.float32)}
    for architecture in ("falcon-h1", "llada"):
        metadata = {"general.architecture": architecture}
        source = write_gguf(tmp_path / "x.gguf", metadata, tensors)
        done = cli.run("convert", source, tmp_path / "m.safetensors", "--force")
        (line,) = [line for line in done.stderr.splitlines() if "canonical name" in line]
        assert "of 2 tensors, 1 has a canonical name, 1 has its name in the file" in line
        assert f"`{architecture}`" in line
        assert set(values_of(tmp_path / "m.safetensors")) == {"token_embedding.weight", "x"}


def test_a_python_error_while_writing(tmp_path):
    """An error in the progress ends the conversion and leaves nothing."""

    def stop(done, total):
        raise RuntimeError("stop")

    source = big_pack(tmp_path / "in")
    for target in ("m.safetensors", "out/"):
        with pytest.raises((RuntimeError, SafetensorError), match="stop"):
            convert(source, f"{tmp_path}/{target}", progress=stop)
        assert os.listdir(tmp_path) == ["in"]
    with pytest.raises(ValueError, match="dtype is 'q8'"):
        convert(source, tmp_path / "m.safetensors", dtype="q8")


def test_a_model_that_is_written_to_meanwhile(tmp_path, monkeypatch, capsys):
    """The values would be a mixture of both."""
    path = shutil.copy(Q4_K_M, tmp_path / "m.gguf")
    check = _convert._check_finite

    def change(*arguments):
        os.utime(path, ns=(0, 0))
        return check(*arguments)

    monkeypatch.setattr(_convert, "_check_finite", change)
    assert main(["convert", str(path), str(tmp_path / "out.safetensors")]) == 2
    assert f"{path} was replaced or written to while it was read" in capsys.readouterr().err
    assert os.listdir(tmp_path) == ["m.gguf"]
