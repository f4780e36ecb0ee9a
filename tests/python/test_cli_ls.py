"""`safetensors ls`."""

import json
import os
import resource

import pytest

from support import cli
from support.file_builder import raw


@pytest.fixture
def model(tmp_path):
    return cli.write(tmp_path / "m.safetensors", cli.small(), {"format": "pt"})


def test_lists_every_tensor_in_natural_order(model):
    """Names, types, shapes and sizes are listed; layer 2 comes before layer 10."""
    lines = cli.output("ls", model).splitlines()
    assert [line.split() for line in lines[:6]] == [
        ["name", "dtype", "shape", "size"],
        ["h.0.bias", "BF16", "[3]", "6", "B"],
        ["h.0.weight", "F32", "[2,", "3]", "24", "B"],
        ["h.2.weight", "F32", "[2,", "3]", "24", "B"],
        ["h.10.weight", "F32", "[4]", "16", "B"],
        ["mask", "BOOL", "[5]", "5", "B"],
    ]


def test_totals_by_type(model):
    """They follow the list or are alone: the largest type first, then the sum."""
    totals = [line.split() for line in cli.output("ls", "--totals", model).splitlines()]
    assert totals == [
        ["dtype", "tensors", "elements", "size"],
        ["F32", "3", "16", "64", "B"],
        ["BF16", "1", "3", "6", "B"],
        ["BOOL", "1", "5", "5", "B"],
        ["total", "5", "24", "75", "B"],
    ]
    assert cli.output("ls", model).endswith(cli.output("ls", "--totals", model))


def test_json(model):
    """--json has all fields, with offsets from the start of the file."""
    found = cli.parsed("ls", model)
    (file,) = found["files"]
    assert file["path"] == str(model)
    assert file["nbytes"] == model.stat().st_size == file["data_offset"] + 75
    assert file["metadata"] == {"format": "pt"}
    first = file["tensors"][1]
    assert first == {
        "name": "h.0.weight",
        "dtype": "F32",
        "shape": [2, 3],
        "offset": file["data_offset"],
        "nbytes": 24,
    }
    assert found["totals"]["F32"] == {"tensors": 3, "elements": 16, "nbytes": 64}


@pytest.mark.parametrize(
    ("order", "names"),
    [
        ("size", ["h.0.weight", "h.2.weight", "h.10.weight", "h.0.bias", "mask"]),
        ("file", list(cli.small())),
    ],
)
def test_sort(model, order, names):
    """--sort sorts by size or by offset."""
    tensors = cli.parsed("ls", model, "--sort", order)["files"][0]["tensors"]
    assert [tensor["name"] for tensor in tensors] == names


def test_match(model):
    """Only matching names are listed and summed."""
    found = cli.parsed("ls", model, "--match", "*.weight")
    assert [tensor["name"] for tensor in found["files"][0]["tensors"]] == [
        "h.0.weight",
        "h.2.weight",
        "h.10.weight",
    ]
    assert list(found["totals"]) == ["F32"]


def test_several_paths(tmp_path, model):
    other = cli.write(tmp_path / "other.safetensors", {"b": raw("U8", (3,))})
    single = [cli.output("ls", path) for path in (model, other)]
    listed = cli.output("ls", model, other)
    assert listed == f"{model}:\n{single[0]}\n{other}:\n{single[1]}"
    lines = cli.output("ls", model, other, "--json").splitlines()
    assert [json.loads(line)["path"] for line in lines] == [str(model), str(other)]
    # A pattern has to match in one of them.
    assert "[3]" in cli.output("ls", model, other, "--match", "b")
    cli.run("ls", other, model, "--match", "none", status=1)


def test_tree(model):
    """The tree shows prefixes with sums, joins single children, and shows types."""
    drawn = cli.output("ls", model, "--tree").split("\n\n")[0].splitlines()
    assert [line.split() for line in drawn] == [
        ["├──", "h", "4", "tensors", "70", "B"],
        ["│", "├──", "0", "2", "tensors", "30", "B"],
        ["│", "│", "├──", "bias", "BF16", "[3]", "6", "B"],
        ["│", "│", "└──", "weight", "F32", "[2,", "3]", "24", "B"],
        ["│", "├──", "2.weight", "F32", "[2,", "3]", "24", "B"],
        ["│", "└──", "10.weight", "F32", "[4]", "16", "B"],
        ["└──", "mask", "BOOL", "[5]", "5", "B"],
    ]


@pytest.mark.parametrize("option", [[], ["--tree"], ["--totals"], ["--model"], ["--json"]])
def test_nothing_matches(model, option):
    """The status is 1, and a note says so."""
    done = cli.run("ls", model, "--match", "nothing*", *option, status=1)
    assert done.stderr == f"safetensors: {model}: no tensor matches nothing*\n"
    assert (done.stdout == "") == (option != ["--json"])
    assert cli.run("ls", model, "-q", "--match", "none", *option, status=1).stderr == ""
    assert cli.run("ls", model, "--match", "mask", *option).stderr == ""


def test_tree_depth_and_ascii(model):
    """Deeper levels are summed; encodings without box characters get ASCII."""
    lines = cli.output(
        "ls", model, "--tree", "--depth", "1", env={"PYTHONIOENCODING": "ascii"}
    ).splitlines()
    assert [line.split() for line in lines[:2]] == [
        ["|--", "h", "4", "tensors", "70", "B"],
        ["`--", "mask", "BOOL", "[5]", "5", "B"],
    ]


def test_a_name_that_the_encoding_lacks_is_escaped(tmp_path):
    path = cli.write(tmp_path / "m.safetensors", {"größe": raw("U8", (1,))})
    lines = cli.output("ls", path, env={"PYTHONIOENCODING": "ascii"}).splitlines()
    assert any("gr\\xf6\\xdfe" in line for line in lines)


def test_a_name_that_is_a_prefix_too(tmp_path):
    """It is one of the tensors below the prefix."""
    tensors = {"a": raw("U8", (1,)), "a.b": raw("U8", (2,))}
    lines = cli.output("ls", "--tree", cli.write(tmp_path / "m.safetensors", tensors)).splitlines()
    assert lines[0].split() == ["└──", "a", "2", "tensors", "3", "B"]
    assert lines[1].split() == ["└──", "b", "U8", "[2]", "2", "B"]


def test_a_million_dots_are_not_a_million_levels(tmp_path):
    """The tree of a hostile name is drawn quickly."""
    tensors = {"." * 1_000_000 + "a": raw("U8", (1,)), ".b": raw("U8", (1,))}
    path = cli.write(tmp_path / "m.safetensors", tensors)
    assert "2 tensors" in cli.output("ls", "--tree", path)


@pytest.mark.parametrize("how", ["index", "folder"])
def test_shards(tmp_path, how):
    """An index, or its folder, gives one list with each tensor's file."""
    index = cli.sharded(tmp_path)
    target = index if how == "index" else tmp_path
    lines = [line.split() for line in cli.output("ls", target).splitlines()]
    assert lines[0][-1] == "file"
    assert lines[1] == ["h.0.bias", "BF16", "[3]", "6", "B", "b.safetensors"]
    assert lines[2][-1] == "a.safetensors"
    assert len(cli.parsed("ls", target)["files"]) == 2


def test_more_shards_than_the_soft_limit_of_open_files(tmp_path):
    for i in range(100):
        cli.write(tmp_path / f"{i}.safetensors", {f"t{i}": raw("U8", (1,))})

    def limited():
        resource.setrlimit(resource.RLIMIT_NOFILE, (64, 4096))

    assert len(cli.parsed("ls", tmp_path, preexec_fn=limited)["files"]) == 100


def test_a_folder_without_an_index(tmp_path):
    """All .safetensors files are listed, which may share names."""
    for name in ("x", "y"):
        cli.write(tmp_path / f"{name}.safetensors", {"a": raw("U8", (1,))})
    assert cli.output("ls", tmp_path).count("\na ") == 2


def test_an_empty_file_and_a_scalar(tmp_path):
    """A file without tensors, and a tensor without axes, are listed."""
    empty = cli.write(tmp_path / "e.safetensors", {})
    assert "total" in cli.output("ls", empty)
    assert "total" in cli.output("ls", "--tree", empty)
    scalar = cli.write(tmp_path / "s.safetensors", {"": raw("F32", ())})
    assert cli.output("ls", scalar).splitlines()[1].split() == ["F32", "[]", "4", "B"]


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["nothing.safetensors"], "nothing.safetensors: No such file or directory"),
        (["empty"], "No .safetensors files in the directory (in empty)"),
        (["bad.json"], "the index has no object `weight_map` (in bad.json)"),
        (["broken.json"], "the index is not JSON: Missing a name"),
        (["list.json"], "the index has no object `weight_map` (in list.json)"),
        (["nested.json"], "the index is not JSON: nested deeper than 127 levels"),
        (["away.json"], "the index puts tensor 'a' into '../m.safetensors': not a file below"),
        (["root.json"], "the index puts tensor 'a' into '/etc/passwd': not a file below"),
        (["lost.json"], "gone.safetensors: No such file or directory"),
        (["two"], 'several models: "a" (a.safetensors.index.json), "b" (b.safetensors.index'),
        (["none.json"], "none.json: not an index of shards: it names no tensor"),
        (["pipe"], "expected a regular file, found a named pipe (in pipe)"),
        (["pipe.json"], "expected a regular file, found a named pipe (in pipe.json)"),
        (["m.safetensors", "--depth", "0"], "--depth must be at least 1"),
        (["m.safetensors", "--depth", "2", "--totals"], "--depth is for --tree"),
        (["pipeline"], "(in pipeline); these folders have some: pipeline/unet, pipeline/vae"),
        (["html.safetensors"], "This is an HTML page"),
    ],
)
def test_errors(tmp_path, words, said):
    """Each error is one line."""
    cli.write(tmp_path / "m.safetensors", cli.small())
    (tmp_path / "empty").mkdir()
    (tmp_path / "two").mkdir()
    for name in ("unet", "vae", "tokenizer"):
        (tmp_path / "pipeline" / name).mkdir(parents=True)
    for name in ("unet", "vae"):
        cli.write(tmp_path / "pipeline" / name / "model.safetensors", cli.small())
    for name in "ab":
        cli.write_index(tmp_path / "two", {"a": "x"}, name=f"{name}.safetensors.index.json")
    (tmp_path / "bad.json").write_text("{}")
    (tmp_path / "broken.json").write_text("{")
    (tmp_path / "list.json").write_text("[]")
    (tmp_path / "none.json").write_text('{"weight_map": {}}')
    (tmp_path / "nested.json").write_text("[" * 1_000_000)
    (tmp_path / "html.safetensors").write_text("<!DOCTYPE html><html></html>")
    for name, file in {
        "away": "../m.safetensors",
        "root": "/etc/passwd",
        "lost": "gone.safetensors",
    }.items():
        cli.write_index(tmp_path, {"a": file}, name=f"{name}.json")
    for name in ("pipe", "pipe.json"):
        os.mkfifo(tmp_path / name)
    assert said in cli.complaint("ls", *words, cwd=tmp_path)


def test_names_cannot_steer_the_terminal(tmp_path):
    """Escape sequences, carriage returns and bidirectional controls are escaped."""
    name = "a\x1b[31m\r\n\u202eb[red]c"
    path = cli.write(tmp_path / "m.safetensors", {name: raw("U8", (1,))})
    for option in ([], ["--tree"], ["--color", "always"], ["--json"]):
        if option == ["--color", "always"]:
            pytest.importorskip("rich")
        printed = cli.output("ls", path, *option)
        assert "\x1b[31m\r" not in printed
        assert "\u202e" not in printed
        assert "[red]" in printed
    assert "a\\x1b[31m\\r\\n\\u202eb[red]c" in cli.output("ls", path)
