"""Models in GGUF."""

import hashlib
import shutil

import numpy as np
import pytest

from safetensors.weights import WeightsError, detect_format, open_weights
from support import children
from weights_support.data import DATA, GGUF, check_config, expected, sha_of_bytes, sha_of_values


@pytest.fixture(params=GGUF)
def model(request):
    wanted = expected(DATA / "gguf" / f"{request.param}.expected.json")
    return DATA / "gguf" / wanted["files"][0], wanted


def test_config(model):
    path, wanted = model
    with open_weights(path) as w:
        assert w.format == detect_format(path) == "gguf"
        check_config(w.get_config(), wanted["config"])
        assert [file.rsplit("/", 1)[-1] for file in w.files] == wanted["files"]
        assert w.warnings == []


@pytest.mark.parametrize("mmap", [True, False])
def test_tensors(model, mmap):
    path, wanted = model
    with open_weights(path, mmap=mmap) as w:
        assert set(w) == set(wanted["tensors"])
        for name, tensor in wanted["tensors"].items():
            t = w[name]
            assert t.source == tensor["source"]
            assert t.type_name == tensor["type"]
            assert t.code == w.get_dtype(name) == tensor["dtype_code"]
            assert list(t.shape) == tensor["shape"]
            assert t.packed().nbytes == t.nbytes
            assert sha_of_bytes(t.packed()) == tensor["sha256_raw"]
            assert sha_of_values(t.numpy()) == tensor["sha256_f32"]


def test_fused_buffers(model):
    path, wanted = model
    with open_weights(path) as w:
        for names, fused in wanted["fused"].items():
            if "error" in fused:
                with pytest.raises(WeightsError, match="cannot be fused with") as caught:
                    w.fuse_weights(*names.split("+"))
                assert caught.value.code == "mixed_types"
            else:
                assert sha_of_bytes(w.fuse_weights(*names.split("+"))) == fused["sha256"]


@pytest.mark.parametrize("mmap", [True, False])
@pytest.mark.parametrize("name", [name for name in GGUF if name.endswith("_f32")])
def test_layout_hf_equals_the_checkpoint(name, mmap):
    wanted = expected(DATA / "gguf" / f"{name}.expected.json")
    with open_weights(DATA / "gguf" / f"{name}.gguf", layout="hf", mmap=mmap) as w:
        for tensor, entry in wanted["tensors"].items():
            t = w[tensor]
            values = t.numpy()
            assert sha_of_values(values) == entry["sha256_f32_hf"], tensor
            np.testing.assert_array_equal(t.packed().view(np.float32), values.reshape(-1))
            flat = values.reshape(-1, values.shape[-1])
            np.testing.assert_array_equal(t.numpy(rows=slice(1, 3)), flat[1:3])
        assert w.config.rope_style == "half"
        gemma = w.config.architecture.startswith("gemma")
        assert w.config.norm_weight_offset == (1.0 if gemma else 0.0)


def test_layout_hf_moves_quantised_rows_whole():
    path = DATA / "gguf" / "llama_q4_k_m.gguf"
    with open_weights(path) as native, open_weights(path, layout="hf") as hf:
        for name in native:
            heads = {"q": native.config.n_heads, "k": native.config.n_kv_heads}
            part = name.split(".")[3] if ".attention." in name else None
            values, packed = native[name].numpy(), native[name].packed()
            if part in heads and name.endswith(".weight"):
                h, rows = heads[part], len(values)
                order = np.arange(rows).reshape(h, rows // h // 2, 2).swapaxes(1, 2).reshape(-1)
                values = values[order]
                packed = packed.reshape(rows, -1)[order].reshape(-1)
            np.testing.assert_array_equal(hf[name].numpy(), values)
            np.testing.assert_array_equal(hf[name].packed(), packed)


def test_layout_hf_is_refused_where_it_is_not_known(tmp_path):
    data = bytearray((DATA / "gguf" / "llama_f32.gguf").read_bytes())
    at = data.index(b"llama", data.index(b"general.architecture"))
    data[at : at + 5] = b"xlama"
    path = tmp_path / "x.gguf"
    path.write_bytes(data)
    open_weights(path).close()
    with pytest.raises(WeightsError, match="`xlama`") as caught:
        open_weights(path, layout="hf")
    assert caught.value.code == "unsupported"


@pytest.mark.parametrize("stem", ["types", "types_new"])
def test_every_storage_type(stem):
    wanted = expected(DATA / "gguf" / f"{stem}_expected.json")
    values = np.load(DATA / "gguf" / f"{stem}_expected.npz")
    with open_weights(DATA / "gguf" / f"{stem}.gguf") as w:
        assert sorted(w.unmapped) == sorted(wanted["tensors"])
        for name, tensor in wanted["tensors"].items():
            t = w[name]
            assert (t.type_name, t.code) == (tensor["type"], tensor["type_id"])
            assert sha_of_bytes(t.packed()) == tensor["sha256_raw"]
            np.testing.assert_array_equal(t.numpy(), values[tensor["type"]], err_msg=name)
            np.testing.assert_array_equal(t.numpy(rows=slice(1, 3)), values[tensor["type"]][1:3])


def test_every_type_of_metadata():
    wanted = expected(DATA / "gguf" / "types_expected.json")["metadata"]
    with open_weights(DATA / "gguf" / "types.gguf") as w:
        assert set(w.metadata) == set(wanted)
        for key, value in wanted.items():
            value = value["items"] if isinstance(value, dict) else value
            assert w.metadata[key] == value
            assert type(w.metadata[key]) is type(value)
        assert w.get_metadata_string("x.str") == wanted["x.str"]
        assert w.get_metadata_string("x.u8") is None
        assert w.get_metadata_string("absent") is None
        assert w.config.n_kv_heads_of_layers == [2, 0, 2]
        assert w.config.n_kv_heads == 2
        with pytest.raises(KeyError):
            w.metadata["absent"]


SPLIT = [f"llama_split_q4_0-0000{i}-of-00003.gguf" for i in (1, 2, 3)]


@pytest.mark.parametrize("part", SPLIT)
def test_any_part_of_a_split_model_opens_all(part):
    wanted = expected(DATA / "gguf" / "llama_split_q4_0.expected.json")
    with open_weights(DATA / "gguf" / part) as w:
        assert set(w) == set(wanted["tensors"])
        check_config(w.get_config(), wanted["config"])


def test_a_directory(tmp_path):
    shutil.copy(DATA / "gguf" / "llama_q4_0.gguf", tmp_path / "a.gguf")
    assert detect_format(tmp_path) == "gguf"
    with open_weights(tmp_path) as w:
        assert w.files == [str(tmp_path / "a.gguf")]


def test_arrays_outlive_the_model(tmp_path):
    path = tmp_path / "m.gguf"
    shutil.copy(DATA / "gguf" / "llama_q8_0.gguf", path)
    w = open_weights(path)
    name = "layers.0.ffn.up.weight"
    packed, wanted = w[name].packed(), hashlib.sha256(w[name].packed()).hexdigest()
    w.close()
    path.unlink()
    assert hashlib.sha256(packed).hexdigest() == wanted


def test_a_truncated_file(tmp_path):
    path = tmp_path / "m.gguf"
    shutil.copy(DATA / "gguf" / "llama_f32.gguf", path)
    for mmap in (True, False):
        shutil.copy(DATA / "gguf" / "llama_f32.gguf", path)
        with open_weights(path, mmap=mmap) as w:
            children.run("import os; os.truncate(sys.argv[1], 4096 * 8)", path)
            with pytest.raises(WeightsError, match="shorter than when it was opened|was truncated"):
                [w[name].numpy() for name in w]
