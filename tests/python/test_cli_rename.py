"""`safetensors rename`."""

import json
import os

import numpy as np
import pytest

from safetensors._cli import layer_names
from safetensors._cli.main import main
from support import cli, copies


@pytest.fixture
def source(tmp_path):
    """A file whose tensors are in no canonical order, with metadata."""
    return copies.write(tmp_path / "m.safetensors", copies.tensors(), "given", {"k": "v"})


def renamed(change):
    """Returns the tensors with new names."""
    return {change(name): array for name, array in copies.tensors().items()}


def test_in_place_the_data_stays(source):
    """The header fits, so that data keeps its offset and order; mode and metadata are kept."""
    cli.run("meta", source, "--set", "room=" + "x" * 3000)
    cli.run("meta", source, "--remove", "room")
    source.chmod(0o640)
    offset, size = copies.data_offset(source), source.stat().st_size
    data = source.read_bytes()[offset:]
    before = cli.parsed("ls", source)["files"][0]["tensors"]
    cli.run("rename", source, "--map", "ids=positions", "--prefix", "layer.=model.layers.")
    assert (copies.data_offset(source), source.stat().st_size) == (offset, size)
    assert source.read_bytes()[offset:] == data
    assert source.stat().st_mode & 0o777 == 0o640
    assert cli.parsed("meta", source) == {"k": "v"}
    assert len(cli.parsed("ls", source)["files"][0]["tensors"]) == len(before)
    new = renamed(lambda name: {"ids": "positions"}.get(name, f"model.layers.{name[6:]}"))
    assert copies.same(copies.read(source), new)
    assert os.listdir(source.parent) == [source.name]


def test_a_header_that_grows(source):
    """It grows by whole blocks, so that the data keeps its alignment."""
    offset = copies.data_offset(source)
    cli.run("rename", source, source.with_name("n.safetensors"), "--prefix", "layer.=" + "x" * 100)
    assert copies.data_offset(source.with_name("n.safetensors")) == offset + 4096
    new = renamed(lambda name: name.replace("layer.", "x" * 100))
    assert copies.same(copies.read(source.with_name("n.safetensors")), new)
    assert copies.same(copies.read(source), copies.tensors())


def test_names_may_be_swapped(tmp_path):
    """Each change applies to the old names."""
    path = copies.write(tmp_path / "m", {"a": np.zeros(2), "b": np.ones(3)})
    cli.run("rename", path, "--map", "a=b", "--map", "b=a")
    assert {name: len(array) for name, array in copies.read(path).items()} == {"a": 3, "b": 2}


def test_shards(tmp_path, source):
    """The shards of a model are renamed in place, with their index, or to another folder."""
    folder = tmp_path / "shards"
    cli.run("shard", source, folder, "--max-shard-size", "600kB")
    files = sorted(os.listdir(folder))
    data = {name: (folder / name).stat().st_size for name in files if "index" not in name}
    cli.run("rename", folder, tmp_path / "new", "--prefix", "layer.=l.")
    cli.run("rename", folder, "--prefix", "layer.=l.")
    for each in (folder, tmp_path / "new"):
        assert sorted(os.listdir(each)) == files
        assert data == {name: (each / name).stat().st_size for name in data}
        assert copies.same(copies.read(each), renamed(lambda name: name.replace("layer.", "l.")))
        index = json.loads((each / "model.safetensors.index.json").read_text())
        assert "l.0.weight" in index["weight_map"]
        assert cli.output("check", each)
    said = cli.complaint("rename", folder, tmp_path / "x.safetensors", "--prefix", "l.=m.")
    assert "has 3 files: rename needs a folder as target" in said


def test_dtype_and_layout(source):
    """With one of them, the data is written anew."""
    out = source.with_name("out.safetensors")
    cli.run("rename", source, out, "--map", "ids=i", "--layout", "canonical")
    new = renamed(lambda name: name.replace("ids", "i"))
    assert out.read_bytes() == copies.serialized(new, {"k": "v"})
    cli.run("rename", source, "--map", "ids=i", "--dtype", "F16")
    found = copies.read(source)
    assert found["layer.3.weight"].dtype == np.float16
    assert found["layer.3.weight"].max() == 3
    assert copies.data_offset(source) % 4096 == 0


def test_dry_run(source):
    """Nothing is written; all whole blocks of the data can be shared if it keeps its alignment."""
    before = source.read_bytes()
    line = cli.output("rename", source, "--map", "ids=i", "--dry-run").splitlines()[0]
    assert "13 tensors" in line
    assert "up to 1.6 MB can share" in line
    assert source.read_bytes() == before
    assert os.listdir(source.parent) == [source.name]


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ([], "which tensors? --map or --prefix"),
        (["--map", "ids"], "--map takes OLD=NEW, not ids"),
        (["--map", "none=x"], "no tensor `none`"),
        (["--prefix", "none.=x"], "no tensor begins with none."),
        (["--map", "ids=layer.0.bias"], "`layer.0.bias` and `ids` would both be `layer.0.bias`"),
        (["--map", "ids=__metadata__"], "__metadata__"),
        (["--map", "ids=\udcff"], "valid UTF-8"),
        (["old", "--map", "ids=x"], "old exists; --force replaces it"),
    ],
)
def test_errors(source, words, said):
    """An error is one line, and nothing changes."""
    source.with_name("old").write_bytes(b"")
    before = source.read_bytes()
    assert said in cli.complaint("rename", source.name, *words, cwd=source.parent)
    assert source.read_bytes() == before
    assert sorted(os.listdir(source.parent)) == [source.name, "old"]


def comfy(path, prefix, **layers):
    """Writes a file with weights of these layers, and the metadata in which ComfyUI names them."""
    tensors = {f"{prefix}{layer}.weight": np.full(3, i, "i1") for i, layer in enumerate(layers)}
    table = {"format_version": "1.0", "layers": {prefix + key: layers[key] for key in layers}}
    return copies.write(path, tensors, "given", {"_quantization_metadata": json.dumps(table)})


def layers_of(path):
    return json.loads(cli.parsed("meta", path)["_quantization_metadata"])["layers"]


@pytest.mark.parametrize("options", [[], ["--layout", "canonical"]])
def test_layers_that_metadata_name_are_renamed(tmp_path, options):
    path = comfy(tmp_path / "m.safetensors", "model.", q={"format": "a"}, k={"format": "b"})
    cli.run("rename", path, "--prefix", "model.=net.", *options)
    assert layers_of(path) == {"net.q": {"format": "a"}, "net.k": {"format": "b"}}
    cli.run("rename", path, "--map", "net.q.weight=x.weight", *options)
    assert layers_of(path) == {"x": {"format": "a"}, "net.k": {"format": "b"}}
    assert "no one name" in cli.complaint("rename", path, "--map", "x.weight=net.k.w", status=2)


def test_merged_files_keep_the_layers_of_all(tmp_path):
    a = comfy(tmp_path / "a.safetensors", "a.", q={"format": "a"})
    b = comfy(tmp_path / "b.safetensors", "b.", q={"format": "b"})
    done = cli.run("merge", a, b, tmp_path / "m.safetensors")
    assert done.stderr == ""
    assert layers_of(tmp_path / "m.safetensors") == {"a.q": {"format": "a"}, "b.q": {"format": "b"}}
    c = copies.write(
        tmp_path / "c.safetensors",
        {"c": np.ones(1, "i1")},
        "given",
        {"_quantization_metadata": json.dumps({"format_version": "1.0", "layers": {"a.q": {}}})},
    )
    said = cli.complaint("merge", a, c, tmp_path / "n.safetensors", status=2)
    assert "another file describes layer `a.q` otherwise" in said


def test_other_metadata_that_name_tensors(tmp_path):
    """Those of torchao, whose meaning is not known here."""
    names = json.dumps(["a.weight"])
    for metadata in ({"tensor_names": names}, {"a.weight": "{}"}):
        tensors = {"a.weight": np.ones(2, "f4"), "b.weight": np.ones(2, "f4")}
        path = copies.write(tmp_path / "m.safetensors", tensors, "given", metadata)
        said = cli.complaint("rename", path, "--prefix", "a.=x.", status=2)
        assert "names tensor `a.weight`: it would keep the old name" in said
        cli.run("rename", path, "--prefix", "b.=x.")


def test_a_source_that_is_written_to_before_it_is_copied(source, monkeypatch, capsys):
    """Its header, which was read before, need not be that of the data."""
    renamed = layer_names.renamed

    def change(*arguments):
        os.utime(source, ns=(0, 0))
        return renamed(*arguments)

    monkeypatch.setattr(layer_names, "renamed", change)
    before = source.read_bytes()
    assert main(["rename", str(source), "--map", "ids=i"]) == 2
    said = f"safetensors: {source} was replaced or written to while it was read\n"
    assert capsys.readouterr().err == said
    assert source.read_bytes() == before


def two_shards(folder, names, index):
    """Writes a model of two shards, and returns the bytes of all of its files."""
    for i, name in enumerate(names):
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        copies.write(folder / name, {f"w{i}": np.full(3, i, "f4")})
    if index:
        cli.write_index(folder, {f"w{i}": name for i, name in enumerate(names)}, name=index)
    return {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()}


MODEL = ("model-00001-of-00002.safetensors", "model-00002-of-00002.safetensors")
INDEX = "model.safetensors.index.json"
FP16 = tuple(name.replace("model", "model.fp16") for name in MODEL)
IN_PLACE = [
    ([], tuple(name.replace("model", "net") for name in MODEL), "net.safetensors.index.json"),
    (["--variant", "fp16"], FP16, "model.fp16.safetensors.index.json"),
    (["--name", "net"], tuple(name.replace("model", "net") for name in MODEL), None),
]


@pytest.mark.parametrize(("choice", "names", "index"), IN_PLACE)
def test_the_source_is_replaced_under_its_name(tmp_path, choice, names, index):
    """Also beside another model of the folder, which stays."""
    others = two_shards(tmp_path, MODEL, INDEX) if choice else {}
    before = two_shards(tmp_path, names, index)
    cli.run("rename", tmp_path, "--prefix", "w=x.", *choice)
    added = {tmp_path / "net.safetensors.index.json"} if index is None else set()
    assert set(tmp_path.iterdir()) == before.keys() | added
    table = cli.parsed("ls", tmp_path, *choice)
    assert {t["name"] for file in table["files"] for t in file["tensors"]} == {"x.0", "x.1"}
    assert all(path.read_bytes() == content for path, content in others.items())


@pytest.mark.parametrize(
    ("names", "index", "said"),
    [
        (tuple(f"w/{name}" for name in MODEL), INDEX, f"w/{MODEL[0]} would become ./{MODEL[0]}"),
        (("a.safetensors", "b.safetensors"), INDEX, f"a.safetensors would become ./{MODEL[0]}"),
        (FP16, "model.safetensors.index.fp16.json", f"{FP16[0]} would become ./{MODEL[0]}"),
        (("weights.0.safetensors", "weights.1.safetensors"), None, "weights.0.safetensors would"),
    ],
)
def test_a_source_that_cannot_be_replaced(tmp_path, names, index, said):
    """Old files would stay beside the new ones, or the index would not be theirs."""
    before = two_shards(tmp_path, names, index)
    found = cli.complaint("rename", ".", "--prefix", "w=x.", cwd=tmp_path)
    assert said in found
    assert found.endswith(": rename needs a target")
    assert {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()} == before
    cli.run("rename", ".", "new/", "--prefix", "w=x.", cwd=tmp_path)
    assert "x.0" in cli.output("ls", tmp_path / "new")


def test_a_shard_without_tensors(tmp_path):
    """It would be left, as one of three."""
    for i in (1, 2, 3):
        tensors = {f"w{i}": np.ones(2, "f4")} if i < 3 else {}
        copies.write(tmp_path / f"model-{i:05}-of-00003.safetensors", tensors)
    said = cli.complaint("rename", tmp_path, "--prefix", "w=x.")
    assert "model-00001-of-00003.safetensors would become " in said
