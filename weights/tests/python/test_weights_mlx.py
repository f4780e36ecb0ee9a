"""Models in safetensors files: directories of MLX and Hugging Face."""

import json

import numpy as np
import pytest

from safetensors.weights import QuantParams, WeightsError, detect_format, open_weights
from weights_support.data import (
    DATA,
    MLX,
    check_config,
    expected,
    sha_of_bytes,
    sha_of_values,
    write_hf,
)


@pytest.fixture(params=MLX)
def model(request):
    path = DATA / "mlx" / request.param
    return path, expected(path / "expected.json")


def test_config(model):
    path, wanted = model
    with open_weights(path) as w:
        check_config(w.get_config(), wanted["config"])
        assert w.unmapped == []
        # v has 8 bits in that one, which config.json does not say
        assert len(w.warnings) == (path.name == "llama_unnamed_override")


def test_names_shapes_and_types(model):
    path, wanted = model
    with open_weights(path) as w:
        assert set(w) == set(wanted["tensors"])
        for name, tensor in wanted["tensors"].items():
            t = w[name]
            assert t.source == tensor["source"]
            assert list(t.shape) == tensor["shape"]
            assert t.code == w.get_dtype(name) == tensor["dtype_code"]
            if tensor["kind"] == "raw":
                assert t.storage == "raw"
                assert t.quant is None
            else:
                assert t.storage == "mlx_pack"
                assert t.quant == QuantParams(tensor["kind"], tensor["bits"], tensor["group_size"])


@pytest.mark.parametrize("mmap", [True, False])
def test_values(model, mmap):
    path, wanted = model
    with open_weights(path, mmap=mmap) as w:
        for name, tensor in wanted["tensors"].items():
            values = w[name].numpy()
            assert values.shape == tuple(tensor["shape"])
            assert sha_of_values(values) == tensor["sha256_f32"], name


@pytest.mark.parametrize("mmap", [True, False])
def test_packed_buffers(model, mmap):
    path, wanted = model
    with open_weights(path, mmap=mmap) as w:
        for name, tensor in wanted["tensors"].items():
            packed = w[name].packed()
            assert not packed.flags.writeable
            assert sha_of_bytes(packed) == tensor["sha256_pack"], name
            if "pack_sections" in tensor:
                assert [part.nbytes for part in w[name].sections()] == tensor["pack_sections"]
                assert packed.ctypes.data % 64 == 0


def test_fused_buffers(model):
    path, wanted = model
    with open_weights(path) as w:
        for names, fused in wanted["fused"].items():
            names = names.split("+")
            if "error" in fused:
                with pytest.raises(WeightsError, match="cannot be fused with") as caught:
                    w.fuse_weights(*names)
                assert caught.value.code == "mixed_types"
            else:
                assert sha_of_bytes(w.fuse_weights(*names)) == fused["sha256"]
                parts = [w[name].sections() for name in names]
                whole = b"".join(part[i].tobytes() for i in range(3) for part in parts)
                assert w.fuse_weights(*names).tobytes() == whole


def test_rows_are_a_slice_of_the_whole(model):
    path, wanted = model
    rng = np.random.default_rng(1)
    with open_weights(path) as w:
        for name in wanted["tensors"]:
            t = w[name]
            whole = t.numpy()
            flat = whole.reshape(-1, whole.shape[-1])
            start, stop = sorted(rng.integers(0, len(flat) + 1, 2))
            part = t.numpy(rows=slice(start, stop))
            np.testing.assert_array_equal(part, flat[start:stop])
            row = int(rng.integers(-len(flat), len(flat)))
            np.testing.assert_array_equal(t.numpy(rows=row), flat[row])


def test_formats_are_detected():
    formats = {name: detect_format(DATA / "mlx" / name) for name in MLX}
    hf = {name for name, kind in formats.items() if kind == "hf_safetensors"}
    assert hf == {"mixtral_hf_f16"}
    for name in MLX:
        assert open_weights(DATA / "mlx" / name).format == formats[name]


@pytest.mark.parametrize(
    ("names", "tied", "output", "warns"),
    [
        (["lm_head", "model.embed_tokens"], False, "output.weight", False),
        (["lm_head", "model.embed_tokens"], True, "output.weight", False),
        (["model.embed_tokens"], True, "token_embedding.weight", False),
        (["model.embed_tokens"], None, "token_embedding.weight", False),
        (["model.embed_tokens"], False, "token_embedding.weight", True),
        (["model.norm"], True, None, False),
        (["model.norm"], False, None, True),
    ],
)
def test_the_output_is_a_tensor_of_the_file(tmp_path, names, tied, output, warns):
    config = {"model_type": "llama"} | ({} if tied is None else {"tie_word_embeddings": tied})
    tensors = {f"{name}.weight": np.zeros((2, 2), np.float32) for name in names}
    with open_weights(write_hf(tmp_path / "m", config, tensors)) as w:
        assert w.output_name == output
        assert output is None or output in w
        said = "tie_word_embeddings is false, but there is no output.weight"
        assert w.warnings == ([said] if warns else [])


PACKS = expected(DATA / "packs" / "packs_expected.json")


@pytest.mark.parametrize("name", sorted(PACKS))
def test_packs_by_themselves(name, tmp_path):
    wanted = PACKS[name]
    path = tmp_path / "one.safetensors"
    stored = copy_tensors(DATA / "packs" / "packs.safetensors", path, name + ".")
    with open_weights(path) as w:  # the parameters are nowhere in the file
        assert w.unmapped == [name + ".weight"]
        assert w[name + ".weight"].quant is None
        assert any("no parameters" in text for text in w.warnings)
        for use in (lambda t: t.numpy(), lambda t: t.packed()):
            with pytest.raises(WeightsError, match="state them in the options") as caught:
                use(w[name + ".weight"])
            assert caught.value.code == "quant_mismatch"
    quant = QuantParams(wanted["mode"], wanted["bits"], wanted["group_size"])
    with open_weights(path, quant=quant) as w:
        t = w[name + ".weight"]
        assert t.shape == tuple(wanted["shape"])
        assert t.code == wanted["dtype_code"]
        assert sha_of_values(t.numpy()) == wanted["sha256_f32"]
        if "sha256_pack" in wanted:
            assert sha_of_bytes(t.packed()) == wanted["sha256_pack"]
            assert [part.nbytes for part in t.sections()] == wanted["pack_sections"]
        else:
            third = stored.get("biases", stored.get("global_scale", b""))
            parts = [stored["weight"], stored["scales"], third]
            if quant.mode == "affine":
                parts[1:] = [half_of_bf16(part) for part in parts[1:]]
            assert [part.tobytes() for part in t.sections()] == parts


def half_of_bf16(data):
    wide = np.frombuffer(data, "<u2").astype(np.uint32) << 16
    return wide.view(np.float32).astype(np.float16).tobytes()


def copy_tensors(source, target, start):
    """Writes a file of one pack, byte for byte, and returns the bytes of its tensors."""
    data = source.read_bytes()
    length = int.from_bytes(data[:8], "little")
    header = json.loads(data[8 : 8 + length])
    body, entries, parts = b"", {}, {}
    for name, entry in header.items():
        param = name.removeprefix(start)
        if param in ("weight", "scales", "biases", "global_scale"):
            begin, end = (8 + length + at for at in entry["data_offsets"])
            entries[name] = {**entry, "data_offsets": [len(body), len(body) + end - begin]}
            parts[param] = data[begin:end]
            body += parts[param]
    text = json.dumps(entries).encode()
    target.write_bytes(len(text).to_bytes(8, "little") + text + body)
    return parts


def test_bf16_becomes_f16_and_overflow_is_an_error(tmp_path):
    overflows = expected(DATA / "packs" / "bf16_to_f16.json")["n_overflow_to_inf"]
    path = tmp_path / "all.safetensors"
    bits = np.arange(65536, dtype="<u2")
    header = {"a": {"dtype": "BF16", "shape": [65536], "data_offsets": [0, 131072]}}
    text = json.dumps(header).encode()
    path.write_bytes(len(text).to_bytes(8, "little") + text + bits.tobytes())
    with open_weights(path) as w:
        message = f"{overflows:,} of 65,536 values are too large for F16"
        with pytest.raises(WeightsError, match=message) as caught:
            w.get_tensor("a")
        assert caught.value.code == "f16_overflow"
        assert caught.value.subject == "a"
        assert caught.value.path == str(path)
    with open_weights(path, bf16="keep") as w:
        assert w["a"].code == 30
        assert w["a"].packed().tobytes() == bits.tobytes()
    with open_weights(path, allow_f16_overflow=True) as w:
        assert w["a"].code == 1
        wide = (bits.astype(np.uint32) << 16).view(np.float32)
        with np.errstate(over="ignore", invalid="ignore"):
            np.testing.assert_array_equal(w["a"].packed().view(np.float16), wide.astype(np.float16))
