"""`safetensors convert` of files that torch.save writes."""

import functools
import os

import pytest
import torch

from safetensors.torch import load_file, save_file
from support import cli, forked

pytestmark = pytest.mark.slow

run = functools.partial(cli.run, imports=forked.TORCH)
complaint = functools.partial(cli.complaint, imports=forked.TORCH)


class Harmful:
    """Unpickling it would create a file."""

    def __init__(self, path):
        self.path = path

    def __reduce__(self):
        return (open, (str(self.path), "w"))


def tensors():
    base = torch.arange(24.0).reshape(4, 6)
    return {
        "transposed": base.T,
        "rows": base[1:3],
        "column": base[:, 2],
        "half": torch.ones(3, dtype=torch.bfloat16),
        "scalar": torch.tensor(3),
        "empty": torch.zeros(0, 2),
        "parameter": torch.nn.Parameter(torch.ones(2)),
        "conjugated": torch.tensor([1 + 2j]).conj(),
    }


@pytest.mark.parametrize("zipped", [True, False])
def test_values_of_every_layout(tmp_path, zipped):
    """Views, transposed and lazily conjugated tensors keep their values, in both formats."""
    torch.save(tensors(), tmp_path / "m.bin", _use_new_zipfile_serialization=zipped)
    run("convert", tmp_path / "m.bin", tmp_path / "m.safetensors")
    found = load_file(tmp_path / "m.safetensors")
    assert found.keys() == tensors().keys()
    for name, tensor in tensors().items():
        assert torch.equal(found[name], tensor), name
        assert found[name].dtype == tensor.dtype
    assert cli.parsed("meta", tmp_path / "m.safetensors") == {"format": "pt"}


def test_the_bytes_are_save_files(tmp_path):
    """The file equals the one that save_file writes."""
    kept = {name: tensor.detach().contiguous() for name, tensor in tensors().items()}
    kept = {name: tensor.clone() for name, tensor in kept.items()}
    torch.save(kept, tmp_path / "m.pt")
    save_file(kept, tmp_path / "expected.safetensors", {"format": "pt"})
    run("convert", tmp_path / "m.pt", tmp_path / "m.safetensors")
    expected = (tmp_path / "expected.safetensors").read_bytes()
    assert (tmp_path / "m.safetensors").read_bytes() == expected


def test_f4_and_f8(tmp_path):
    """4-bit and 8-bit types are converted, as far as this torch has them."""
    kinds = ["float8_e4m3fn", "float8_e5m2", "float8_e8m0fnu", "float4_e2m1fn_x2"]
    small = {
        kind: torch.arange(6, dtype=torch.uint8).reshape(2, 3).view(getattr(torch, kind))
        for kind in kinds
        if hasattr(torch, kind)
    }
    assert small
    torch.save(small, tmp_path / "m.pt")
    run("convert", tmp_path / "m.pt", tmp_path / "m.safetensors")
    for name, tensor in load_file(tmp_path / "m.safetensors").items():
        assert tensor.dtype == small[name].dtype
        assert torch.equal(tensor.view(torch.uint8), small[name].view(torch.uint8))


def test_shared_weights_are_all_written(tmp_path):
    """All names of a shared tensor are written, and a note says that they share memory."""
    one = torch.ones(5)
    torch.save({"a": one, "b": one}, tmp_path / "m.pt")
    done = run("convert", tmp_path / "m.pt", tmp_path / "m.safetensors")
    assert done.stderr == "safetensors: `b` and `a` share memory: both are written\n"
    assert load_file(tmp_path / "m.safetensors").keys() == {"a", "b"}


@pytest.mark.parametrize("zipped", [True, False])
def test_an_expanded_tensor_is_bounded(tmp_path, zipped):
    """A file of a kilobyte cannot ask for gigabytes; a small expanded tensor is converted."""
    words = ["convert", tmp_path / "m.pt", tmp_path / "m.safetensors"]
    few = {"a": torch.ones(1).expand(3, 4), "b": torch.arange(2.0).expand(3, 2).T}
    torch.save(few, tmp_path / "m.pt", _use_new_zipfile_serialization=zipped)
    run(*words, "--force")
    for name, tensor in load_file(tmp_path / "m.safetensors").items():
        assert torch.equal(tensor, few[name])
    huge = {"w": torch.ones(2).as_strided((1 << 33,), (0,))}
    many = {f"w{i:02}": torch.ones(1).expand(1 << 20) for i in range(40)}
    for tensors, name in ((huge, "w"), (many, "w15")):
        torch.save(tensors, tmp_path / "m.pt", _use_new_zipfile_serialization=zipped)
        said = complaint(*words, "--force")
        assert f"m.pt: tensor `{name}`: it would take " in said
        assert "save clones of them" in said
    assert load_file(tmp_path / "m.safetensors").keys() == few.keys()


def test_a_tensor_without_values(tmp_path):
    """A tensor on the meta device is refused."""
    torch.save({"a": torch.empty(1 << 40, device="meta")}, tmp_path / "m.pt")
    said = complaint("convert", tmp_path / "m.pt", tmp_path / "m.safetensors")
    assert said.endswith("m.pt: tensor `a`: the file has its shape only, not its values")


@pytest.mark.parametrize(
    "error",
    [MemoryError(), RuntimeError("[enforce fail] DefaultCPUAllocator: can't allocate memory: 9")],
)
def test_not_enough_memory(tmp_path, monkeypatch, capsys, error):
    """The error is one line that names file and tensor, and no file is written."""
    from safetensors._cli.main import main
    from safetensors._torch import arrays

    def fail(_tensor):
        raise error

    monkeypatch.setattr(arrays, "_to_ndarray", fail)
    torch.save({"a": torch.ones(2, 2).t()}, tmp_path / "m.pt")  # not contiguous: copied first
    source, target = str(tmp_path / "m.pt"), str(tmp_path / "m.safetensors")
    assert main(["convert", source, target]) == 2
    assert capsys.readouterr().err == f"safetensors: {source}: tensor `a`: not enough memory\n"
    assert os.listdir(tmp_path) == ["m.pt"]


@pytest.mark.parametrize(
    ("error", "said"),
    [(RuntimeError("two\nlines"), "two lines"), (KeyError(), "KeyError"),
     (MemoryError(), "not enough memory")],
)  # fmt: skip
def test_errors_of_torch_are_one_line(tmp_path, monkeypatch, capsys, error, said):
    from safetensors._cli.main import main

    def fail(*_args, **_options):
        raise error

    source, target = str(tmp_path / "m.pt"), str(tmp_path / "m.safetensors")
    torch.save({"a": torch.ones(1)}, source)
    monkeypatch.setattr(torch, "load", fail)
    assert main(["convert", source, target]) == 2
    assert capsys.readouterr().err == f"safetensors: {source}: torch cannot load it: {said}\n"


def test_code_does_not_run(tmp_path):
    """A pickle that would create a file is refused, in either format."""
    for zipped in (True, False):
        torch.save(
            {"a": torch.ones(1), "b": Harmful(tmp_path / "harm")},
            tmp_path / "m.pt",
            _use_new_zipfile_serialization=zipped,
        )
        said = complaint("convert", tmp_path / "m.pt", tmp_path / "m.safetensors")
        assert "m.pt: refused: it holds more than tensors" in said
        assert os.listdir(tmp_path) == ["m.pt"]


def test_checkpoints_with_more(tmp_path):
    """--key selects a dict and --skip-others skips other values; without them, both are errors."""
    state = {"a": torch.ones(2)}
    torch.save({"state": {**state, "step": 3}, "epoch": 1}, tmp_path / "m.pt")
    words = ["convert", tmp_path / "m.pt", tmp_path / "m.safetensors"]
    assert "no tensors at the top level; choose a dict with --key: state" in complaint(*words)
    assert "no entry none" in complaint(*words, "--key", "none")
    assert "expected a dict of tensors, found int" in complaint(*words, "--key", "epoch")
    assert "`step` is not a tensor; --skip-others" in complaint(*words, "--key", "state")
    done = run(*words, "--key", "state", "--skip-others")
    assert "left out: step" in done.stderr
    assert load_file(tmp_path / "m.safetensors").keys() == {"a"}


@pytest.mark.parametrize("how", ["index", "folder"])
def test_a_sharded_checkpoint(tmp_path, how):
    """pytorch_model.bin.index.json is converted to one file."""
    for i in (1, 2):
        torch.save({f"w{i}": torch.full((2,), i)}, tmp_path / f"pytorch_model-{i}-of-2.bin")
    index = cli.write_index(
        tmp_path,
        {f"w{i}": f"pytorch_model-{i}-of-2.bin" for i in (1, 2)},
        name="pytorch_model.bin.index.json",
    )
    run("convert", index if how == "index" else tmp_path, tmp_path / "out.safetensors")
    found = load_file(tmp_path / "out.safetensors")
    assert {name: tensor.tolist() for name, tensor in found.items()} == {"w1": [1, 1], "w2": [2, 2]}


FIRST, SECOND = "pytorch_model-1-of-2.bin", "pytorch_model-2-of-2.bin"


@pytest.mark.parametrize(
    ("index", "said"),
    [
        ({"a": FIRST, "b": SECOND, "c": SECOND}, f"tensor `c` is not in {SECOND}"),
        ({"a": FIRST}, f"tensor `b` of {SECOND} is not in the index"),
        ({"a": SECOND, "b": FIRST}, f"tensor `b` is not in {FIRST}"),
    ],
)
def test_an_index_has_the_tensors_of_its_files(tmp_path, index, said):
    """As for safetensors files: none is lost, and none that is stale is written."""
    one = torch.ones(1)
    torch.save({"a": one, "x": one}, tmp_path / FIRST)
    torch.save({"b": one, "y": one, "step": 3}, tmp_path / SECOND)
    index = {**index, "x": FIRST, "y": SECOND}
    path = cli.write_index(tmp_path, index, name="pytorch_model.bin.index.json")
    done = complaint("convert", tmp_path, tmp_path / "out.safetensors", "--skip-others")
    assert done == f"{path}: {said}"
    assert not (tmp_path / "out.safetensors").exists()


def test_entries_that_are_skipped_need_not_be_tensors(tmp_path):
    torch.save({"a": torch.ones(1), "step": 3}, tmp_path / "m.bin")
    cli.write_index(tmp_path, {"a": "m.bin", "step": "m.bin"}, name="m.bin.index.json")
    run("convert", tmp_path, tmp_path / "out.safetensors", "--skip-others")
    assert load_file(tmp_path / "out.safetensors").keys() == {"a"}


@pytest.mark.parametrize("name", ["m.bin.index.fp16.json", "m.fp16.bin.index.json"])
def test_variants_of_a_folder(tmp_path, name):
    """--name and --variant choose an index; the plain one is the default."""
    folder, out = tmp_path / "folder", tmp_path / "out.safetensors"
    folder.mkdir()
    for value, shard, index in ((1, "m.bin", "m.bin.index.json"), (2, "m.fp16.bin", name)):
        torch.save({"a": torch.tensor(value)}, folder / shard)
        cli.write_index(folder, {"a": shard}, name=index)
    for words, value in (((), 1), (("--variant", "fp16"), 2), (("--name", "m"), 1)):
        run("convert", folder, out, "--force", *words)
        assert load_file(out)["a"] == value
    out.unlink()
    said = complaint("convert", folder, out, "--variant", "fp8")
    assert said.startswith(f'{folder}: no variant "fp8" of m.bin; there are: ')
    for source in (folder / "m.bin", folder / "m.bin.index.json"):
        said = complaint("convert", source, out, "--variant", "fp16")
        assert said == f"name and variant choose a model of a folder, and {source} is none"
    cli.write_index(folder, {"a": "m.bin"}, name="other.bin.index.json")
    assert "several models: " in complaint("convert", folder, out)
    assert not out.exists()


def test_a_file_that_is_written_to_meanwhile(tmp_path, monkeypatch, capsys):
    """The tensors would be a mixture of both: the error names the file, and nothing is written."""
    from safetensors._cli.main import main
    from safetensors._saving.writer import SafeWriter

    torch.save({name: torch.zeros(1 << 16) for name in "abc"}, tmp_path / "1.pt")
    newer, write = (tmp_path / "1.pt").read_bytes(), SafeWriter.write

    def change(self, name, tensor):
        if name == "b":
            with open(tmp_path / "1.pt", "r+b") as file:
                file.write(newer)
        write(self, name, tensor)

    monkeypatch.setattr(SafeWriter, "write", change)
    for to in ("out.safetensors", "out/"):
        torch.save({name: torch.ones(1 << 16) for name in "abc"}, tmp_path / "1.pt")
        assert main(["convert", str(tmp_path / "1.pt"), f"{tmp_path}/{to}"]) == 2
        said = f"safetensors: {tmp_path}/1.pt was replaced or written to while it was read\n"
        assert capsys.readouterr().err == said
    assert not [name for name in os.listdir(tmp_path) if name.endswith(".safetensors")]


def test_a_file_that_is_replaced_as_torch_opens_it(tmp_path, monkeypatch, capsys):
    from safetensors._cli import torch_archive
    from safetensors._cli.main import main

    torch.save({"a": torch.ones(1)}, tmp_path / "m.pt")
    torch.save({"a": torch.zeros(1)}, tmp_path / "2.pt")
    check = torch_archive.check

    def replace(path):
        found = check(path)
        os.replace(tmp_path / "2.pt", path)
        return found

    monkeypatch.setattr(torch_archive, "check", replace)
    assert main(["convert", str(tmp_path / "m.pt"), str(tmp_path / "out.safetensors")]) == 2
    assert "m.pt was replaced or written to while it was read" in capsys.readouterr().err
    assert os.listdir(tmp_path) == ["m.pt"]


@pytest.mark.parametrize(
    ("value", "said"),
    [
        ([torch.ones(1)], "expected a dict of tensors, found list"),
        ({1: torch.ones(1)}, "the name 1 is not a string"),
        ({"a": torch.ones(2, 2).to_sparse()}, "tensor `a` is sparse"),
        (
            {"a": torch.ones(1, dtype=torch.complex128)},
            "tensor `a`: the format has no type complex128",
        ),
    ],
)
def test_errors(tmp_path, value, said):
    """An error is one line, and no file is written."""
    torch.save(value, tmp_path / "m.pt")
    assert said in complaint("convert", tmp_path / "m.pt", tmp_path / "m.safetensors")
    assert os.listdir(tmp_path) == ["m.pt"]


def test_damaged(tmp_path):
    """A truncated checkpoint is refused; without torch, every checkpoint is."""
    torch.save({"a": torch.ones(1000)}, tmp_path / "m.pt")
    words = ["convert", tmp_path / "m.pt", tmp_path / "m.safetensors"]
    said = cli.complaint(*words, without=["torch"])
    assert said == "convert needs torch for .pt and .bin files: pip install torch"
    content = (tmp_path / "m.pt").read_bytes()
    (tmp_path / "m.pt").write_bytes(content[: len(content) // 2])
    assert "zip archive" in complaint(*words)
    assert os.listdir(tmp_path) == ["m.pt"]
