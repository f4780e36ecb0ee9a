"""Handles of tensors: rows, equality."""

import functools
import json

import numpy as np
import pytest

from safetensors.numpy import save_file
from safetensors.weights import WeightsError, open_weights
from weights_support.data import DATA

MODEL = DATA / "mlx" / "llama_q4_g64_bf16"
NAME = "layers.0.attention.q.weight"


class Three:
    def __index__(self):
        return 3


@pytest.mark.parametrize("row", [np.int64(3), np.uint8(3), np.array(3), Three()])
def test_rows_accept_any_index(row):
    torch = pytest.importorskip("torch")
    with open_weights(MODEL) as w:
        t = w[NAME]
        wanted = t.numpy()[3]
        np.testing.assert_array_equal(t.numpy(rows=row), wanted)
        np.testing.assert_array_equal(t.torch(rows=row).numpy(), wanted)
        np.testing.assert_array_equal(t.torch(rows=torch.tensor(3)).numpy(), wanted)
        part = slice(np.int64(1), np.uint8(3), np.int32(1))
        np.testing.assert_array_equal(t.numpy(rows=part), t.numpy()[1:3])
        with pytest.raises(IndexError, match=r"row 999 of layers.0.attention.q.weight"):
            t.numpy(rows=np.int64(999))


@pytest.mark.parametrize("row", [True, False, np.True_, 1.0, "1", [1], np.arange(2)])
def test_rows_refuse_other_objects(row):
    with open_weights(MODEL) as w, pytest.raises(TypeError):
        w[NAME].numpy(rows=row)


def test_torch_values_go_to_the_device():
    torch = pytest.importorskip("torch")
    with open_weights(MODEL) as w:
        assert w[NAME].torch().device == torch.device("cpu")
        assert w[NAME].torch(device="meta").device == torch.device("meta")


@pytest.mark.parametrize("dtype", ["uint32", "float32"])
def test_a_slice_may_have_no_rows(dtype):
    with open_weights(MODEL) as w:
        values = w[NAME].numpy(dtype)
        assert w[NAME].numpy(dtype, rows=slice(2, 2)).shape == (0, values.shape[1])
        np.testing.assert_array_equal(w[NAME].numpy(dtype, rows=slice(2, 3)), values[2:3])


@pytest.mark.parametrize("step", [2, -1, np.int64(2)])
def test_steps_are_refused(step):
    pytest.importorskip("torch")
    with open_weights(MODEL) as w:
        for decode in (w[NAME].numpy, w[NAME].torch):
            with pytest.raises(ValueError, match=f"a step of {step} is not supported"):
                decode(rows=slice(0, 8, step))


def test_numpy_functions_decode():
    """As an object without __array__, the tensor would become an array of one object."""
    with open_weights(MODEL) as w:
        t = w[NAME]
        np.testing.assert_array_equal(np.asarray(t), t.numpy(), strict=True)
        assert np.asarray(t, np.float64).dtype == np.float64
        assert np.mean(t) == np.mean(t.numpy())
        with pytest.raises(ValueError, match="is decoded, which makes a copy"):
            t.__array__(copy=False)


def test_a_name_in_the_file_leads_to_the_canonical_one():
    with open_weights(MODEL) as w, pytest.raises(WeightsError) as caught:
        w[w[NAME].source]
    assert f"that is a name in the file; here the tensor is `{NAME}`" in str(caught.value)
    assert caught.value.code == "unknown_tensor"


def test_what_a_model_shows(tmp_path):
    with open_weights(MODEL) as w:
        parameters = f"{sum(t.numpy().size for t in w.values()) / 1000:#.3g} k".replace(". ", " ")
        assert (
            repr(w) == f"<Weights mlx_safetensors llama: {len(w)} tensors, {parameters} parameters>"
        )
    save_file({"a.b": np.zeros(3, np.float32)}, tmp_path / "model.safetensors")
    with open_weights(tmp_path / "model.safetensors") as w:
        shown = (
            "<Weights hf_safetensors of no known architecture: 0 tensors, 1 unmapped, 3 parameters>"
        )
        assert repr(w) == shown


def test_models_are_equal_to_themselves_only():
    with open_weights(MODEL) as w, open_weights(MODEL) as other:
        assert w == w
        assert w != other
        assert {w: 1}[w] == 1
        assert len({w, other}) == 2
        layers = functools.lru_cache(lambda model: model.config.n_layers)
        assert layers(w) == layers(w)
        assert layers.cache_info().hits == 1
        first = hash(w)
        w.close()
        assert hash(w) == first


def test_tensors_are_equal_by_model_and_name():
    with open_weights(MODEL) as w, open_weights(MODEL) as other:
        assert w[NAME] == w[NAME]
        assert w[NAME] is not w[NAME]
        assert {w[NAME], w[NAME]} == {w[NAME]}
        assert w[NAME] != w["layers.1.attention.q.weight"]
        assert w[NAME] != other[NAME]
        assert w[NAME] != NAME


def raw_file(path, start):
    """Writes a file of one F32 tensor that starts `start` bytes after a multiple of 64."""
    header = {"t": {"dtype": "F32", "shape": [4, 4], "data_offsets": [0, 64]}}
    text = json.dumps(header).encode()
    text += b" " * ((start - 8 - len(text)) % 64)
    values = np.arange(16, dtype="<f4")
    path.write_bytes(len(text).to_bytes(8, "little") + text + values.tobytes())
    return values.view(np.uint8)


@pytest.mark.parametrize("start", [0, 4, 33])
def test_aligned_copies_a_view_that_is_not(tmp_path, start):
    path = tmp_path / "one.safetensors"
    values = raw_file(path, start)
    with open_weights(path) as w:
        assert w.is_view("t")
        view = w.get_tensor("t")
        assert view.ctypes.data % 64 == start
        for array in (
            w.get_tensor("t", aligned=True),
            w["t"].packed(aligned=True),
            *w["t"].sections(aligned=True),
        ):
            assert array.ctypes.data % 64 == 0
            assert not array.flags.writeable
            assert np.shares_memory(array, view) == (start == 0)
            np.testing.assert_array_equal(array, values)
    with open_weights(path, mmap=False) as w:
        assert not w.is_view("t")


def test_aligned_sections_of_a_pack():
    with open_weights(MODEL) as w:
        assert not w.is_view(NAME)
        for name in w:
            if w[name].quant is None:
                continue
            parts = zip(w[name].sections(aligned=True), w[name].sections(), strict=True)
            for aligned, part in parts:
                assert aligned.ctypes.data % 64 == 0
                assert (aligned.dtype, aligned.shape) == (part.dtype, part.shape)
                np.testing.assert_array_equal(aligned, part)
