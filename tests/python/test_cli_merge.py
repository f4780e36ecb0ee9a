"""`safetensors merge` and `safetensors extract`."""

import numpy as np
import pytest

from support import cli, copies


@pytest.fixture
def folder(tmp_path):
    """Two files of blocks, and one in the canonical layout, of one model."""
    model = copies.tensors()
    parts = {"a": {}, "b": {}, "c": {}}
    for i, name in enumerate(model):
        parts["abc"[i % 3]][name] = model[name]
    for name, part in parts.items():
        layout = "canonical" if name == "c" else "blocks"
        copies.write(tmp_path / f"{name}.safetensors", part, layout, {"k": "v", name: "1"})
    return tmp_path


def test_merge(folder):
    """Files and folders become one file with all metadata."""
    files = [folder / f"{name}.safetensors" for name in "abc"]
    cli.run("merge", *files, folder / "m.safetensors")
    merged = folder / "m.safetensors"
    assert copies.same(copies.read(merged), copies.tensors())
    assert cli.parsed("meta", merged) == {"a": "1", "b": "1", "c": "1", "k": "v"}
    assert copies.data_offset(merged) % 4096 == 0


def test_merge_canonical(folder):
    """With --layout canonical, the file has the bytes of save_file; a cast gives numpy's values."""
    files = [folder / f"{name}.safetensors" for name in "abc"]
    cli.run("merge", *files, folder / "m.safetensors", "--layout", "canonical")
    metadata = {"a": "1", "b": "1", "c": "1", "k": "v"}
    assert (folder / "m.safetensors").read_bytes() == copies.serialized(copies.tensors(), metadata)
    cli.run("merge", *files, folder / "n.safetensors", "--layout", "canonical", "--dtype", "F16")
    halves = {
        name: array.astype("f2") if array.dtype.kind == "f" else array
        for name, array in copies.tensors().items()
    }
    assert (folder / "n.safetensors").read_bytes() == copies.serialized(halves, metadata)


def test_extract(folder):
    """--keep and --drop take several patterns."""
    model, out = copies.tensors(), folder / "x.safetensors"
    source = copies.write(folder / "m.safetensors", model, metadata={"k": "v"})
    words = ["extract", source, out]
    cli.run(*words, "--keep", "layer.[01].*", "--keep", "ids", "--drop", "*.bias")
    expected = {"layer.0.weight", "layer.1.weight", "ids"}
    assert copies.same(copies.read(out), {name: model[name] for name in expected})
    assert cli.parsed("meta", out) == {"k": "v"}
    cli.run(*words, "--drop", "layer.*", "--force")
    assert copies.read(out).keys() == {"ids"}
    cli.run(*words, "--keep", "*.weight", "--dtype", "F8_E4M3", "--force")
    dtypes = {each["dtype"] for each in cli.parsed("ls", out)["files"][0]["tensors"]}
    assert dtypes == {"F8_E4M3"}


def test_blocks_keep_the_offset_of_the_source(folder):
    """Data of a file that save_file wrote begins at a multiple of 8. What the commands write begins
    where most of its bytes do, modulo 4096, so that file systems can share the blocks, also
    if the header is longer than that. A cast leaves nothing to share."""
    zeros = {"w": np.zeros(1 << 18, "f4"), "v": np.ones(1 << 17, "f4")}
    source = copies.write(folder / "m.safetensors", zeros | {"z": np.ones(3)}, "canonical")
    offset = copies.data_offset(source) + 24  # after the F64
    other = copies.write(folder / "o.safetensors", {"x" * 199: zeros["v"]}, "canonical")
    assert offset % 8 == 0
    assert 0 < offset < copies.data_offset(other) < 4096
    for words, shared in [
        (["extract", source, folder / "a.safetensors", "--drop", "z"], "1.6 MB"),
        (["merge", other, source, folder / "a.safetensors"], "1.6 MB"),
        (["extract", source, folder / "a.safetensors", "--drop", "w", "--drop", "z"], "520.2 kB"),
        (["extract", source, folder / "a.safetensors", "--keep", "w", "--dtype", "f16"], "0 B"),
    ]:
        assert f" up to {shared} can share" in cli.output(*words, "--force", "--dry-run")
        cli.run(*words, "--force")
        begin = offset if shared != "0 B" else 0
        assert copies.data_offset(folder / "a.safetensors") % 4096 == begin
    names = {f"{'n' * 90}.{i}": zeros["v"] for i in range(40)}
    long = copies.write(folder / "l.safetensors", names, "canonical")
    cli.run("extract", long, folder / "a.safetensors", "--keep", "*", "--force")
    assert copies.data_offset(long) > 4096
    assert copies.data_offset(folder / "a.safetensors") % 4096 == copies.data_offset(long) % 4096
    assert copies.same(copies.read(folder / "a.safetensors"), names)
