"""Shapes of GGUF files of image models: five axes, and comfy.gguf.orig_shape."""

import numpy as np
import pytest

from safetensors.numpy import load_file
from safetensors.weights import convert, open_weights
from weights_support.data import DATA, Stored, expected, write_gguf

KEY = "comfy.gguf.orig_shape."
Q8_0, Q4_K, F16 = 8, 12, 1


def blocks(kind, count):
    """Returns random blocks with small scales."""
    rng = np.random.default_rng(1)
    nbytes, scales = {Q8_0: (34, [0]), Q4_K: (144, [0, 2])}[kind]
    data = rng.integers(0, 256, (count, nbytes), dtype=np.uint8)
    for at in scales:
        data[:, at + 1] = data[:, at + 1] % 8 + 0x28
    return data.tobytes()


def only(path, **options):
    """Returns the only tensor of a model, and the warnings."""
    with open_weights(path, **options) as w:
        (name,) = [*w, *w.unmapped]
        return w[name], w.warnings


def test_five_axes(tmp_path):
    values = np.arange(8 * 4 * 1 * 2 * 2, dtype=np.float32).reshape(8, 4, 1, 2, 2)
    path = write_gguf(
        tmp_path / "m.gguf", {"general.architecture": "wan"}, {"patch_embedding.weight": values}
    )
    tensor, _ = only(path)
    assert tensor.shape == values.shape
    np.testing.assert_array_equal(tensor.numpy(), values)
    np.testing.assert_array_equal(tensor.numpy(rows=slice(3, 9)), values.reshape(-1, 2)[3:9])
    convert(path, tmp_path / "o.safetensors", verify=True)
    found = load_file(tmp_path / "o.safetensors")
    np.testing.assert_array_equal(found["patch_embedding.weight"], values)


def test_gguf_py_agrees_about_five_axes(tmp_path):
    gguf = pytest.importorskip("gguf")
    values = np.arange(2 * 3 * 1 * 2 * 4, dtype=np.float32).reshape(2, 3, 1, 2, 4)
    writer = gguf.GGUFWriter(tmp_path / "m.gguf", "wan")
    writer.add_tensor("x", values)
    writer.add_array(f"{KEY}x", [6, 8])
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    (read,) = gguf.GGUFReader(tmp_path / "m.gguf").tensors
    assert [int(size) for size in read.shape] == [4, 2, 1, 3, 2]
    tensor, warnings = only(tmp_path / "m.gguf")
    assert not [text for text in warnings if KEY in text]
    np.testing.assert_array_equal(tensor.numpy(), values.reshape(6, 8))


@pytest.mark.parametrize("mmap", [True, False])
@pytest.mark.parametrize("integers", [np.int32, np.int64])
@pytest.mark.parametrize(
    ("kind", "stored", "shape"),
    [
        (Q8_0, (64, 256), (256, 64)),
        (Q4_K, (6, 256), (48, 32)),  # eight rows in a block
        (Q4_K, (6, 256), (4, 384)),  # a row of one block and a half
        (Q4_K, (6, 256), (1536,)),
        (Q4_K, (3, 256), (2, 4, 1, 6, 16)),
        (Q4_K, (3, 256), (256, 3)),
    ],
)
def test_the_shape_of_the_key(tmp_path, kind, stored, shape, integers, mmap):
    """Values are those of the stored order, also in ranges of rows that begin within a block."""
    weight = Stored(kind, stored, blocks(kind, int(np.prod(stored)) // {8: 32, 12: 256}[kind]))
    flux = {"general.architecture": "flux"}
    plain = write_gguf(tmp_path / "p.gguf", flux, {"img_in.weight": weight})
    wanted = only(plain)[0].numpy().reshape(shape)
    flux[f"{KEY}img_in.weight"] = np.array(shape, integers)
    flux[f"{KEY}absent.weight"] = np.array([3], integers)
    path = write_gguf(tmp_path / "m.gguf", flux, {"img_in.weight": weight})
    with open_weights(path, mmap=mmap) as w:
        assert not [text for text in w.warnings if KEY in text]
        t = w["img_in.weight"]
        assert t.shape == shape
        np.testing.assert_array_equal(t.numpy(), wanted)
        np.testing.assert_array_equal(t.numpy("float16"), wanted.astype(np.float16))
        rows = wanted.reshape(-1, shape[-1])
        for begin in range(min(len(rows), 12)):
            np.testing.assert_array_equal(t.numpy(rows=begin), rows[begin])
            for end in (begin + 1, begin + 5, len(rows)):
                found = t.numpy(rows=slice(begin, end))
                np.testing.assert_array_equal(found, rows[begin:end])
        assert t.packed().tobytes() == weight.data
        (role,) = t.parts()
        assert role == "weight"
        assert w._model.parts("img_in.weight")[0][3] == stored
    convert(path, tmp_path / "o.safetensors", dtype="f32", verify=True)
    np.testing.assert_array_equal(load_file(tmp_path / "o.safetensors")["img_in.weight"], wanted)


def test_a_shape_with_a_scale(tmp_path):
    """The scale is that of all values."""
    weight = Stored(Q4_K, (3, 256), blocks(Q4_K, 3))
    flux = {"general.architecture": "flux", f"{KEY}x.weight": np.int32([24, 32])}
    tensors = {"x.weight": weight, "x.scale": np.float32([0.3])}
    scaled, _ = only(write_gguf(tmp_path / "m.gguf", flux, tensors))
    plain, _ = only(write_gguf(tmp_path / "p.gguf", flux, {"x.weight": weight}))
    wanted = plain.numpy() * np.float32(0.3)
    np.testing.assert_array_equal(scaled.numpy(), wanted)
    np.testing.assert_array_equal(scaled.numpy(rows=slice(5, 20)), wanted[5:20])


@pytest.mark.parametrize(
    "name", sorted(name for name in expected(DATA / "bad" / "codes.json") if "orig_shape" in name)
)
def test_shapes_that_do_not_fit_are_not_used(name):
    tensor, warnings = only(DATA / "bad" / name)
    assert tensor.shape == (4, 4)
    (said,) = [text for text in warnings if KEY in text]
    assert said == f"`{KEY}a`: not used, because it is not a shape of the tensor's values"


def test_many_shapes_that_do_not_fit_are_one_warning(tmp_path):
    metadata = {f"{KEY}t{i}": np.int32([2]) for i in range(5)}
    tensors = {f"t{i}": np.ones(3, np.float32) for i in range(5)}
    path = write_gguf(tmp_path / "m.gguf", metadata, tensors)
    with open_weights(path) as w:
        (said,) = [text for text in w.warnings if KEY in text]
        assert said.startswith(f"`{KEY}t0` and 4 more: not used")


def test_reordered_rows_of_another_shape_are_refused(tmp_path):
    """layout="hf" moves stored rows; without it, the tensor is read."""
    metadata = {
        "general.architecture": "llama",
        "llama.attention.head_count": 2,
        f"{KEY}blk.0.attn_q.weight": np.int32([12, 64]),
    }
    weight = Stored(Q4_K, (3, 256), blocks(Q4_K, 3))
    path = write_gguf(tmp_path / "m.gguf", metadata, {"blk.0.attn_q.weight": weight})
    assert only(path)[0].shape == (12, 64)
    with pytest.raises(ValueError, match="are not the rows that are stored"):
        open_weights(path, layout="hf")
