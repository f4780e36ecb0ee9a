"""`show`, `meta`, `hash`, `diff` and `check` of GGUF files and quantised models."""

import hashlib
import json
import math
import os
import re
import shutil
import subprocess
import sys

import numpy as np
import pytest

from safetensors import SafetensorError, delta, summary
from safetensors.numpy import load_file, save_file
from safetensors.weights import open_weights
from support import cli
from support.file_builder import raw
from weights_support.data import DATA, write_gguf

GGUF = DATA / "gguf" / "llama_q4_k_m.gguf"
MLX = DATA / "mlx" / "llama_q4_g64_bf16"
GPTQ = DATA / "schemes" / "gptq"
Q = "layers.0.attention.q.weight"


def decoded(path, name, **options):
    with open_weights(path, bf16="keep", **options) as w:
        return w[name].numpy().astype(np.float64)


@pytest.mark.parametrize(
    ("path", "source", "dtype"),
    [
        (GGUF, "blk.0.attn_q.weight", "Q4_K"),
        (MLX, "model.layers.0.self_attn.q_proj.weight", "mlx_q4 g64"),
    ],
)
def test_show_decodes(path, source, dtype):
    """By either name, and by that of a part; --raw shows what is stored."""
    (shown,) = cli.parsed("show", path, Q)
    assert cli.parsed("show", path, source) == [shown]
    values = decoded(path, Q)
    assert (shown["dtype"], shown["shape"]) == (dtype, list(values.shape))
    found = shown["statistics"]
    assert (found["least"], found["most"]) == (values.min(), values.max())
    assert found["mean"] == pytest.approx(values.mean())
    assert found["deviation"] == pytest.approx(values.std())
    assert sum(shown["histogram"]["counts"]) == values.size
    text = cli.output("show", path, Q, "--bins", "0")
    assert source in text
    assert "4.50 bits per weight" in text
    assert f"{values[0, 0]:.5g}" in text
    assert f"{values[-1, -1]:.5g}" in text


def test_show_of_rows_that_end_within_a_byte(tmp_path):
    path = tmp_path / "m.safetensors"
    header = b'{"a":{"dtype":"F4","shape":[2,3],"data_offsets":[0,3]}}'
    path.write_bytes(len(header).to_bytes(8, "little") + header + b"\x21\x43\x65")
    shown = cli.output("show", "--model", path, "a")
    assert shown == cli.output("show", "--raw", path, "a")
    assert shown.splitlines()[1:3] == ["  0.5  1  1.5", "    2  3    4"]


def test_show_of_parts_and_raw():
    part = "model.layers.0.self_attn.q_proj.scales"
    assert cli.parsed("show", MLX, part)[0]["name"] == Q
    assert cli.parsed("show", MLX, part, "--raw")[0]["name"] == part
    assert "did you mean" in cli.complaint("show", MLX, "layers.0.attention.qq.weight")
    assert len(cli.parsed("show", GGUF, "blk.0.attn_*", "--bins", "0")) == 5


def test_names_are_completed():
    words = [sys.executable, "-m", "safetensors", "--complete-names", str(GGUF)]
    for prefix, wanted in (
        ("layers.0.attention.q", [Q]),
        ("blk.0.attn_q", ["blk.0.attn_q.weight"]),
    ):
        printed = subprocess.run([*words, prefix], capture_output=True, text=True, check=True)
        assert printed.stdout.split() == wanted


def test_a_file_of_a_quantised_folder(tmp_path):
    """One file that is the model opens as the folder does; a shard does not."""
    shutil.copytree(MLX, tmp_path / "m")
    assert cli.parsed("show", tmp_path / "m" / "model.safetensors", Q)[0]["name"] == Q
    (tmp_path / "m" / "model.safetensors").rename(
        tmp_path / "m" / "model-00001-of-00002.safetensors"
    )
    path = tmp_path / "m" / "model-00001-of-00002.safetensors"
    name = "model.layers.0.self_attn.q_proj.weight"
    assert cli.parsed("show", path, name)[0]["dtype"] == "U32"


def test_scales_of_activations_are_tensors():
    """`extras` of the weight layer: a comparison does not leave them out."""
    name = "model.layers.0.self_attn.q_proj.input_scale"
    path = DATA / "schemes" / "fp8_blocks"
    (shown,) = cli.parsed("show", path, name)
    assert (shown["dtype"], shown["statistics"]["elements"]) == ("F32", 1)
    assert name in cli.parsed("hash", path)["tensors"]["decoded"]
    assert name not in cli.output("ls", path)


def test_a_configuration_that_is_a_pipe(tmp_path):
    """It is no configuration, and nobody waits for it."""
    save_file({"a": np.ones(2, np.float32)}, tmp_path / "model.safetensors")
    os.mkfifo(tmp_path / "config.json")
    assert cli.parsed("show", tmp_path, "a")[0]["dtype"] == "F32"
    assert "whole" in cli.output("hash", tmp_path)


def test_a_patch_in_a_quantised_folder(tmp_path):
    shutil.copytree(MLX, tmp_path / "m")
    path = tmp_path / "m" / "p.safetensors-patch"
    delta.diff({"a": np.zeros(4, "u1")}, {"a": np.ones(4, "u1")}, path).close()
    assert "units" in cli.output("ls", path)
    assert "a  U8" in cli.output("show", path, "a")
    assert "ok: a patch" in cli.output("check", path)


def test_metadata_of_gguf(tmp_path):
    long = "x" * 200
    values = {"a": 0.1, "n": 3, "b": True, "t": ["x"] * 1000, "i": math.inf, "long": long}
    path = write_gguf(tmp_path / "m.gguf", {"general.architecture": "llama", **values})
    lines = dict(line.split(None, 1) for line in cli.output("meta", path).splitlines())
    assert lines["a"].split() == ["float", "0.1"]
    assert lines["t"].split(None, 1) == ["[1,000]", '"x", "x", "x", "x", ...']
    assert lines["b"].split() == ["bool", "true"]
    assert len(lines["long"]) < 80
    assert cli.output("meta", path, "long") == long + "\n"
    found = cli.parsed("meta", path)
    wanted = {**values, "i": "inf", "general.architecture": "llama"}
    assert {key: found[key] for key in wanted} == wanted
    assert cli.output("meta", path, "a") == "0.1\n"
    assert cli.run("meta", path, "nothing", status=1).stdout == ""
    assert "meta changes safetensors files" in cli.complaint("meta", path, "--set", "a=b")


def test_digests_are_what_the_page_says(tmp_path):
    found = cli.parsed("hash", MLX)
    with open_weights(MLX, bf16="keep", scales="keep") as w:
        stored = hashlib.sha256(b"mlx_q4 g64 [64,64]\n" + w[Q].packed().tobytes())
        values = hashlib.sha256(b"F32 [64,64]\n" + w[Q].numpy().astype("<f4").tobytes())
    assert found["tensors"]["stored"][Q] == stored.hexdigest()
    assert found["tensors"]["decoded"][Q] == values.hexdigest()
    lines = [line.split() for line in cli.output("hash", MLX).splitlines()]
    assert dict(lines) == found["whole"]
    for kind, digests in found["tensors"].items():
        text = "".join(f"{json.dumps(name)} {digests[name]}\n" for name in sorted(digests))
        assert hashlib.sha256(text.encode()).hexdigest() == found["whole"][kind]


def test_decoded_digests_are_those_of_a_decoded_file(tmp_path):
    """The same values have the same digest, whatever holds them; integers stay as they are."""
    path = DATA / "gguf" / "types.gguf"
    found = cli.parsed("hash", path)["tensors"]["decoded"]
    with open_weights(path, bf16="keep") as w:
        arrays = {
            name: w[name].numpy(w[name].type_name.lower().replace("i", "int"))
            if w[name].type_name in ("I8", "I16", "I32", "I64")
            else w[name].numpy()
            for name in w.unmapped
            if w[name].type_name != "F64"
        }
    save_file(arrays, tmp_path / "f32.safetensors")
    plain = cli.parsed("hash", tmp_path / "f32.safetensors")["tensors"]
    assert plain.items() <= found.items()
    assert len(plain) == len(found) - 1
    assert "are hashed by sha256" in cli.complaint("hash", path, "--algorithm", "xxh3-128")


def test_check(tmp_path):
    assert cli.output("check", GGUF) == f"{GGUF}: ok: 12 tensors, 257.4 kB, F32, Q4_K, Q6_K\n"
    assert "ok: 12 tensors" in cli.output("check", "--read", GGUF)
    lines = cli.output("check", GPTQ).splitlines()
    assert lines[1].startswith(f"{GPTQ}: ok: 2 tensors")
    assert "gptq_q4" in lines[1]
    assert len(cli.output("check", GPTQ, "--raw").splitlines()) == 1
    bad = DATA / "bad" / "mlx_scales_shape"
    (_, verdict) = cli.parsed("check", bad, status=1)
    assert verdict["kind"] == "model"
    assert "scales must have" in verdict["message"]
    (verdict,) = cli.parsed("check", DATA / "bad" / "dims_huge.gguf", status=1)
    assert verdict["kind"] == "model"
    cut = tmp_path / "cut.gguf"
    cut.write_bytes(GGUF.read_bytes()[:-100_000])
    assert cli.parsed("check", cut, status=1)[0]["kind"] == "model"


def test_a_refused_model_names_raw():
    path = DATA / "bad" / "mlx_bits_7"
    assert cli.complaint("ls", path).endswith("; --raw shows what is stored")
    assert "--raw" not in cli.complaint("ls", path, "--model")
    assert "q_proj.scales" in cli.output("ls", path, "--raw")


def test_ls_names_types_parameters_and_bits():
    text = cli.output("ls", DATA / "mlx" / "llama_bf16", "--model")
    assert "F16" not in text.replace("BF16", "")
    rows = [line.split() for line in cli.output("ls", "--totals", GGUF).splitlines()]
    assert ["parameters", "378", "k"] in rows
    assert ["bits", "per", "weight", "5.41"] in rows
    assert ["norm_eps", "1e-05"] in rows


def stats(a, b, *words, status=1):
    found = cli.parsed("diff", "--stats", a, b, *words, status=status)
    return found["equal"], {each["name"]: each for each in found["tensors"]}


def check_difference(found, a, b):
    d = a - b
    assert found["largest"] == np.abs(d).max()
    assert found["mean"] == pytest.approx(np.abs(d).mean(), rel=1e-12)
    assert found["rms"] == pytest.approx(np.sqrt((d * d).mean()), rel=1e-12)
    assert found["relative"] == pytest.approx(np.sqrt((d * d).sum() / (a * a).sum()), rel=1e-12)
    cosine = (a * b).sum() / np.sqrt((a * a).sum() * (b * b).sum())
    assert found["cosine"] == pytest.approx(cosine, rel=1e-12)
    assert found["differ"] == np.count_nonzero(d)


def test_differences_of_gguf_types():
    a, b = (DATA / "gguf" / f"llama_{kind}.gguf" for kind in ("f32", "q4_0"))
    equal, rows = stats(a, b)
    assert (equal, len(rows)) == (5, 16)
    relative = [row["relative"] for row in rows.values()]
    assert relative == sorted(relative, reverse=True)
    for name, row in rows.items():
        check_difference(row, decoded(a, name), decoded(b, name))
    stats(a, b, "--tolerance", "9%", status=0)
    stats(a, b, "--tolerance", "0.089")


def test_differences_across_formats():
    """Rows that llama.cpp reorders are compared in the order of the checkpoint."""
    b = DATA / "gguf" / "llama_f32.gguf"
    _, rows = stats(b, MLX, "--tolerance", "1", status=0)
    check_difference(rows[Q], decoded(b, Q, layout="hf"), decoded(MLX, Q))
    assert rows[Q]["relative"] < 0.1
    assert stats(MLX, b)[1][Q]["relative"] < 0.1
    assert "GGUF" in cli.complaint("diff", "--stats", "--raw", b, MLX)


def test_differences_of_plain_files(tmp_path):
    """Types, NaN, infinities, zeros and shapes, without a model."""
    rng = np.random.default_rng(0)
    x = rng.normal(size=(1100, 1000)).astype(np.float32)  # more than one piece
    nan = np.array([np.nan, np.inf, 1], np.float32)
    a = {"x": x, "nan": nan, "inf": nan, "zero": np.zeros(3), "shape": np.zeros(3), "i": x[:3]}
    b = {
        "x": x.astype(np.float16),
        "nan": nan.astype(np.float16),
        "inf": np.array([np.nan, -np.inf, 1], np.float32),
        "zero": np.ones(3),
        "shape": np.zeros(4),
        "new": np.zeros(1),
        "i": x[:3].astype(np.int64),
    }
    save_file(a, tmp_path / "a.safetensors")
    save_file(b, tmp_path / "b.safetensors")
    equal, rows = stats(tmp_path / "a.safetensors", tmp_path / "b.safetensors")
    assert equal == 1
    check_difference(rows["x"], x.astype(np.float64), b["x"].astype(np.float64))
    check_difference(rows["i"], x[:3].astype(np.float64), b["i"].astype(np.float64))
    assert rows["nan"]["differ"] == 0
    assert (rows["inf"]["largest"], rows["inf"]["differ"]) == ("inf", 1)
    assert rows["inf"]["relative"] == "inf"
    assert rows["zero"]["relative"] is None
    assert rows["shape"]["why"] == "[3] -> [4]"
    assert rows["new"]["why"] == "only in B"
    text = cli.output("diff", "--stats", *(tmp_path / f"{n}.safetensors" for n in "ab"), status=1)
    assert text.splitlines()[-1] == "6 changed, 1 equal, 1 of these in another type"
    (one, two) = (tmp_path / f"{n}.safetensors" for n in ("one", "two"))
    save_file({"n": nan}, one)
    save_file({"n": nan.astype(np.float16)}, two)
    stats(one, two)
    stats(one, two, "--tolerance", "0", status=0)
    save_file({"n": np.array([1, np.inf, 1], np.float32)}, two)
    stats(one, two, "--tolerance", "100")


def test_differences_of_large_integers(tmp_path):
    """Two integers of 64 bits that are one float are different."""
    one, two = (tmp_path / f"{n}.safetensors" for n in ("one", "two"))
    save_file({"i": np.array([2**53 + 1, 4])}, one)
    save_file({"i": np.array([2**53, 4])}, two)
    equal, rows = stats(one, two)
    assert (equal, rows["i"]["differ"], rows["i"]["largest"]) == (0, 1, 1.0)
    stats(one, two, "--tolerance", "0")


def test_hash_says_that_it_needs_numpy():
    said = cli.complaint("hash", GGUF, without=["numpy"])
    assert said == "hash of decoded values needs NumPy: pip install numpy"


def test_options_that_do_not_fit():
    assert "needs --stats" in cli.complaint("diff", GGUF, GGUF, "--tolerance", "1%")
    for words in (["--no-data"], ["--patch", "x.safetensors-patch"]):
        assert "--stats goes with neither" in cli.complaint("diff", GGUF, GGUF, "--stats", *words)
    for given in ("-1", "x", "nan", "inf", "1%%", ""):
        words = ["--stats", f"--tolerance={given}"]
        assert "--tolerance takes a share" in cli.complaint("diff", GGUF, GGUF, *words)
    assert "add --raw" in cli.complaint("diff", MLX, MLX, "--patch", "x.safetensors-patch")


def test_diff_of_codes(tmp_path):
    """Weights of equal types are compared as they are stored."""
    assert "12 same, 0 changed" in cli.output("diff", GGUF, GGUF)
    copy = tmp_path / "m.gguf"
    data = bytearray(GGUF.read_bytes())
    data[-1] ^= 1
    copy.write_bytes(data)
    text = cli.output("diff", GGUF, copy, status=1)
    assert "! " in text
    assert " 1 stored byte changed" in text


def test_diff_of_scales_of_other_types(tmp_path):
    folder = tmp_path / "m"
    shutil.copytree(MLX, folder)
    (folder / "model.safetensors.index.json").unlink()
    tensors = load_file(folder / "model.safetensors")
    for name in tensors:
        if name.endswith((".scales", ".biases")):
            tensors[name] = tensors[name].astype(np.float32)
    save_file(tensors, folder / "model.safetensors")
    changed = cli.parsed("diff", MLX, folder, status=1)["changed"]
    assert changed[Q]["a"]["dtype"] == changed[Q]["b"]["dtype"] == "mlx_q4 g64"
    assert changed[Q]["a"]["nbytes"] < changed[Q]["b"]["nbytes"]
    text = cli.output("diff", "--no-data", MLX, folder, status=1)
    assert re.search(rf"! {Q}  mlx_q4 g64 \[.*\], [0-9,]+ bytes -> mlx_q4 g64 ", text)


@pytest.mark.parametrize(
    "words",
    [
        ["merge", "in", "out.safetensors"],
        ["shard", "in", "out/", "--max-shard-size", "1GB"],
        ["extract", "in", "out.safetensors", "--keep", "*"],
        ["rename", "in", "out.safetensors", "--prefix", "model.=x."],
    ],
)
def test_codes_are_not_cast(tmp_path, words):
    """`convert` decodes them; without a configuration, the scales beside them tell."""
    codes = {"model.a.weight": raw("F8_E4M3", (4, 4)), "model.a.weight_scale": raw("F32", ())}
    (tmp_path / "in").mkdir()
    cli.write(tmp_path / "in" / "model.safetensors", codes)
    said = cli.complaint(*words, "--dtype", "bf16", status=2, cwd=tmp_path)
    assert "`model.a.weight` has scales, and its codes would be cast, not decoded" in said
    config = {"model_type": "llama", "quantization_config": {"quant_method": "fp8"}}
    (tmp_path / "in" / "config.json").write_text(json.dumps(config))
    said = cli.complaint(*words, "--dtype", "bf16", status=2, cwd=tmp_path)
    assert "in is quantised, and its codes would be cast, not decoded" in said
    cli.run(*words, cwd=tmp_path)


@pytest.mark.parametrize(
    "text",
    [b"", b"{,}", b"\xef\xbb\xbf{}", b"[1]", b'{"a": 1, "a": 2}', "{}".encode("utf-16")],
)
def test_a_configuration_that_cannot_be_read(tmp_path, text):
    """It may say that the model is quantised, so that nothing is shown as if it were not."""
    save_file({"a": np.ones(3, "f4")}, tmp_path / "model.safetensors")
    (tmp_path / "config.json").write_bytes(text)
    why = "config.json does not say whether the model is quantised: "
    for command in ("ls", "hash", "show", "meta"):
        names = ["a"] if command == "show" else []
        assert why in cli.complaint(command, tmp_path, *names, status=2)
        cli.run(command, tmp_path, *names, "--raw")
    assert why in cli.output("check", tmp_path, status=1)
    with pytest.raises(SafetensorError, match="does not say whether"):
        summary(tmp_path)


def test_check_of_several_gguf_models(tmp_path):
    """Such as a model and its projector for images."""
    shutil.copy(GGUF, tmp_path / "m.gguf")
    tensors = {"v.a.weight": np.ones(3, "f4")}
    write_gguf(tmp_path / "mmproj-m.gguf", {"general.architecture": "clip"}, tensors)
    for part in (2, 3):
        name = f"llama_split_q4_0-0000{part}-of-00003.gguf"
        shutil.copy(DATA / "gguf" / name, tmp_path / name)
    lines = cli.output("check", tmp_path, status=1).splitlines()
    found = [line.split(": ")[:2] for line in lines[:3]]
    assert [[os.path.basename(path), kind] for path, kind in found] == [
        ["llama_split_q4_0-00002-of-00003.gguf", "model"],
        ["m.gguf", "ok"],
        ["mmproj-m.gguf", "ok"],
    ]
