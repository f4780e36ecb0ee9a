"""`safetensors meta`."""

import json
import os

import pytest

import safetensors
from safetensors._cli.main import main
from support import cli, file_builder

GROWN = 4096


@pytest.fixture
def model(tmp_path):
    return cli.write(tmp_path / "m.safetensors", cli.small(), {"format": "pt", "author": "me"})


def metadata(path):
    return cli.parsed("meta", path)


def contents(path):
    """Returns every tensor, as `deserialize` does."""
    return safetensors.deserialize(path.read_bytes())


def test_read(model):
    """All keys, one key and JSON are printed; a missing key has status 1."""
    assert cli.output("meta", model).splitlines() == ["key     text", "author  me", "format  pt"]
    assert cli.output("meta", model, "author") == "me\n"
    assert metadata(model) == {"author": "me", "format": "pt"}
    assert cli.parsed("meta", model, "author") == "me"
    assert "no key none" in cli.complaint("meta", model, "none", status=1)


def test_read_nothing_and_shards(tmp_path):
    """A file without metadata and a model of several files are read."""
    assert cli.output("meta", cli.write(tmp_path / "e.safetensors", {})) == ""
    assert metadata(cli.sharded(tmp_path / "shards")) == {"format": "pt"}


@pytest.mark.parametrize("start", [None, {}, {"format": "pt"}, {"z": "1", 'é\n"': "\\ü"}])
@pytest.mark.parametrize("place", ["first", "last", "only"])
@pytest.mark.parametrize("indent", [None, 1])
def test_changes_in_a_row(tmp_path, start, place, indent):
    """After each of set, replace, grow, shrink and remove, metadata and tensors are right."""
    tensors = {} if place == "only" else cli.small()
    path = tmp_path / "m.safetensors"
    header = file_builder.header_dict(tensors, start)
    if place == "last" and start is not None:
        header["__metadata__"] = header.pop("__metadata__")
    text = json.dumps(header, indent=indent).encode()
    file_builder.write(
        path, file_builder.with_length(text, b"".join(tensor.data for tensor in tensors.values()))
    )
    before, expected = contents(path), dict(start or {})
    for change in (
        {"a": "1"},
        {"a": "a longer text", "ключ": "значение 😀"},
        {"a": None, "long": "x" * 300},
        {"long": "y" * 5000},
        {"long": None, "a": '"quoted\\" = and \n\t'},
        dict.fromkeys(start or {}),
        {"a": None, "ключ": None},
        {"again": ""},
    ):
        words = []
        for key, value in change.items():
            words += ["--remove", key] if value is None else ["--set", f"{key}={value}"]
            expected[key] = value
        expected = {key: value for key, value in expected.items() if value is not None}
        assert main(["meta", str(path), *words]) == 0
        with safetensors.safe_open(path, framework="np") as f:
            assert (f.metadata() or {}) == expected
        assert contents(path) == before
    assert os.listdir(tmp_path) == ["m.safetensors"]


def test_the_header_is_written_anew(tmp_path):
    """Fields that the format does not have are dropped; the data keeps its order and its offset."""
    fields = '"b":{"x":[1,{"}":2}],"dtype":"U8", "shape":[1],"data_offsets":[0,1],"y":null}'
    header = "{" + fields + ',"a":{"dtype":"U8","shape":[1],"data_offsets":[1,2]}}  '
    path = file_builder.write(
        tmp_path / "m.safetensors", file_builder.from_entries(header, b"\x07\x08")
    )
    before, tensors = path.read_bytes(), contents(path)
    cli.run("meta", path, "--set", "k=v")
    header, data = file_builder.split(path.read_bytes())
    assert header.startswith(b'{"__metadata__":{"k":"v"},"b":{"dtype":"U8","shape":[1],')
    assert b'"x"' not in header
    assert b'"y"' not in header
    assert data == b"\x07\x08"
    assert len(path.read_bytes()) == len(before)
    assert contents(path) == tensors


def test_escaped_key_and_null(tmp_path):
    """`__metadata__` may be written with escapes, and may be null as mlx writes it."""
    for text in ('{"\\u005f_metadata__":{"k":"v"}}', '{"__metadata__":null}'):
        path = file_builder.write(tmp_path / "m.safetensors", file_builder.from_entries(text))
        cli.run("meta", path, "--set", "k=w")
        assert metadata(path) == {"k": "w"}


def test_reserved_space_is_used(model):
    """A change that fits does not move the data; another one reserves room for the next."""
    size = model.stat().st_size
    cli.run("meta", model, "--set", "author=" + "x" * 500)
    assert model.stat().st_size == size + GROWN
    for value in ("y" * 3000, "", "z"):
        cli.run("meta", model, "--set", f"author={value}")
        assert model.stat().st_size == size + GROWN
    offset = cli.parsed("ls", model)["files"][0]["data_offset"]
    assert offset % 8 == 0


def test_mode_link_and_temporary(model):
    """The mode is kept, a link is followed, and no temporary file is left."""
    model.chmod(0o640)
    link = model.parent / "link.safetensors"
    link.symlink_to(model.name)
    cli.run("meta", link, "--set", "author=" + "x" * 9000, "--fsync")
    assert link.is_symlink()
    assert model.stat().st_mode & 0o7777 == 0o640
    assert metadata(model)["author"] == "x" * 9000
    assert sorted(os.listdir(model.parent)) == ["link.safetensors", "m.safetensors"]


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write everywhere")
def test_a_read_only_folder(model):
    """The change is refused, because writing in place would not be atomic."""
    model.parent.chmod(0o500)
    try:
        words = ("meta", model, "--set", "author=" + "x" * 5000)
        assert "Permission denied" in cli.complaint(*words)
    finally:
        model.parent.chmod(0o700)


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--set", "novalue"], "--set takes KEY=TEXT, not novalue"),
        (["--remove", "none"], "no key none to remove"),
        (["--set", "a=1", "--remove", "a"], "`a` is both set and removed"),
        (["author", "--set", "a=1"], "cannot print and change metadata"),
        (["--json", "--set", "a=1"], "cannot print and change metadata"),
        (["--set", "a=\udcff"], "is not valid UTF-8"),
        (["--set", "a=1", "--name", "x"], "--set and --remove change one file: not with --name"),
        (["--remove", "format", "--variant", "x"], "not with --variant"),
        (["--set", "a=1", "--raw"], "not with --raw"),
        (["--set", "a=1", "--model"], "not with --model"),
    ],
)
def test_errors(model, words, said):
    """An error is one line, and the file is unchanged."""
    before = model.read_bytes()
    assert said in cli.complaint("meta", model, *words)
    assert model.read_bytes() == before


def test_changing_takes_one_file(tmp_path):
    """A folder and other formats are refused."""
    cli.sharded(tmp_path)
    assert "Is a directory" in cli.complaint("meta", tmp_path, "--set", "a=1")
    text = tmp_path / "text.safetensors"
    text.write_text("<html></html>")
    assert "HTML page" in cli.complaint("meta", text, "--set", "a=1")


@pytest.mark.slow
def test_the_header_has_a_limit(tmp_path):
    """A header above 100,000,000 bytes is refused, and the file is unchanged."""
    path = tmp_path / "m.safetensors"
    cli.write(path, {}, {"x": "x" * 99_999_000})
    before = path.stat()
    said = cli.complaint("meta", path, "--set", "k=" + "v" * 2000)
    assert "header too large: 100," in said
    after = path.stat()  # but for when it was last read
    assert (after.st_ino, after.st_size) == (before.st_ino, before.st_size)
    assert (after.st_mtime_ns, after.st_ctime_ns) == (before.st_mtime_ns, before.st_ctime_ns)


def test_the_name_of_a_descriptor(model):
    """The descriptor's file is changed; one without a name is refused, and nothing else changed."""
    words = ("--set", "author=" + "x" * 5000)
    with model.open("rb") as held:
        name = f"/proc/self/fd/{held.fileno()}"
        cli.run("meta", name, *words, pass_fds=[held.fileno()])
        assert metadata(model)["author"] == "x" * 5000
    with model.open("rb") as held:
        name = f"/proc/self/fd/{held.fileno()}"
        model.unlink()
        other = model.with_name(model.name + " (deleted)")
        other.write_bytes(b"other")
        said = cli.complaint(
            "meta", name, "--set", "author=" + "y" * 9000, pass_fds=[held.fileno()]
        )
        assert "without a name" in said
        assert other.read_bytes() == b"other"
    assert os.listdir(model.parent) == [other.name]
