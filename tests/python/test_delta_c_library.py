"""The C library applies a patch as `delta.apply_file` does: to the same files, byte for byte."""

import ctypes
import json

import numpy as np
import pytest

from safetensors import SafetensorError, delta
from safetensors.numpy import load_file, save_file
from support import c_library

c_library.require()

VERIFY = {"blocks": 1, "full": 2, "whole": 3}
SUMS = 4
WEIGHT = np.arange(200_000, dtype=np.float32)
BEFORE = [
    {"kept": np.arange(5), "weight": WEIGHT, "gone": np.ones(3, np.int8)},
    {"alone": np.zeros((2, 3), np.float16)},
    {"shape": np.arange(6), "none": np.empty((0, 2)), "flag": np.array(True)},
]
"""The tensors of each file. The patch removes all of the second one."""
AFTER = {
    "kept": np.arange(5),
    "weight": np.where(WEIGHT % 7_000 == 5, -WEIGHT, WEIGHT),
    "shape": np.arange(6, dtype=np.float32).reshape(2, 3),
    "none": np.empty((0, 2)),
    "flag": np.array(False),
    "zeta": np.arange(3, dtype=np.uint16),
    "a/new": np.arange(2.0),
    '\u00e9 "\U0001f600': np.arange(4, dtype=np.int8),
}
METADATA = [{"format": "pt", "number": "0"}, None, {"key \u00e9": "value\n"}]


class Options(ctypes.Structure):
    """safetensors_patch_options."""

    _fields_ = [
        ("size", ctypes.c_size_t),
        ("watch", ctypes.c_void_p),
        ("verify", ctypes.c_int32),
        ("flags", ctypes.c_uint32),
    ]


@pytest.fixture(scope="module")
def library():
    return c_library.load()


@pytest.fixture(scope="module")
def patch(tmp_path_factory):
    path = tmp_path_factory.mktemp("patch") / "1.safetensors-patch"
    delta.diff({k: v for part in BEFORE for k, v in part.items()}, AFTER, path).close()
    return path


def save_shards(folder, name, has_index):
    """Saves the tensors of each file, with metadata of its own."""
    folder.mkdir()
    files = [f"{name}-{number:05}-of-{len(BEFORE):05}.safetensors" for number in range(1, 4)]
    for file, tensors, metadata in zip(files, BEFORE, METADATA, strict=True):
        save_file(tensors, folder / file, metadata)
    if has_index:
        names = {each: file for file, part in zip(files, BEFORE, strict=True) for each in part}
        index = {"metadata": {"total_size": 1}, "weight_map": names}
        (folder / f"{name}.safetensors.index.json").write_text(json.dumps(index))


def apply_by_c(library, model, patch, output, verify, sums):
    options = Options(ctypes.sizeof(Options), None, VERIFY[verify], SUMS if sums else 0)
    with (
        library.handle("open", "close", str(patch), None) as file,
        library.handle("patch_open", "patch_close", file) as opened,
        library.open_model(str(model)) as base,
    ):
        library.call("patch_apply_file", opened, base, output, ctypes.byref(options))


def contents(folder):
    return {path.name: path.read_bytes() for path in folder.iterdir()}


@pytest.mark.parametrize("sums", [False, True])
@pytest.mark.parametrize("verify", VERIFY)
@pytest.mark.parametrize(
    ("has_index", "is_replaced"), [(True, False), (True, True), (False, False)]
)
@pytest.mark.parametrize("name", ["model", "diffusion_pytorch_model.fp16"])
def test_models_of_several_files(
    library, patch, tmp_path, name, has_index, is_replaced, verify, sums
):
    found = []
    for writer in ("c", "python"):
        model = tmp_path / f"base-{writer}"
        save_shards(model, name, has_index)
        output = model if is_replaced else tmp_path / writer
        if writer == "c":
            apply_by_c(library, model, patch, str(output), verify, sums)
        else:
            delta.apply_file(model, patch, output, verify=verify, sums=sums)
        found.append(contents(output))
    assert found[0] == found[1]
    assert len(found[0]) == len(BEFORE) + 1 + sums
    parts = [load_file(path) for path in sorted(output.glob("*.safetensors"))]
    assert [len(part) for part in parts] == [2, 0, 6]
    arrays = {each: array for part in parts for each, array in part.items()}
    assert arrays.keys() == AFTER.keys()
    for each, array in arrays.items():
        np.testing.assert_array_equal(array, AFTER[each], strict=True)


def test_files_that_no_index_names_are_not_replaced(library, patch, tmp_path):
    model = tmp_path / "base"
    save_shards(model, "model", has_index=False)
    before = contents(model)
    with pytest.raises(Exception, match="two models in one folder"):
        apply_by_c(library, model, patch, str(model), "full", sums=False)
    with pytest.raises(SafetensorError, match="two models in one folder"):
        delta.apply_file(model, patch, model)
    assert contents(model) == before


@pytest.mark.parametrize("sums", [False, True])
@pytest.mark.parametrize("output", ["out.safetensors", "out/"])
def test_models_of_one_file(library, tmp_path, output, sums):
    """The patch has the metadata of the new state."""
    before = {name: array for part in BEFORE for name, array in part.items()}
    save_file(before, tmp_path / "0.safetensors", {"step": "0"})
    save_file(AFTER, tmp_path / "1.safetensors", {"step": "1"})
    patch = tmp_path / "1.safetensors-patch"
    delta.diff(tmp_path / "0.safetensors", tmp_path / "1.safetensors", patch).close()
    found = []
    for writer in ("c", "python"):
        folder = tmp_path / writer
        folder.mkdir()
        if writer == "c":
            apply_by_c(
                library, tmp_path / "0.safetensors", patch, f"{folder}/{output}", "full", sums
            )
        else:
            delta.apply_file(tmp_path / "0.safetensors", patch, f"{folder}/{output}", sums=sums)
        found.append(contents(folder / output if output.endswith("/") else folder))
    assert found[0] == found[1]
    assert (tmp_path / "1.safetensors").read_bytes() in found[0].values()
