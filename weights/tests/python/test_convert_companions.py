"""The small files that a conversion writes beside a model."""

import json
import os
import shutil

import numpy as np
import pytest

from safetensors import SafetensorError
from safetensors._cli.main import main
from safetensors._saving import companions as _companions
from safetensors._saving.model_files import ModelFiles
from safetensors.weights import WeightsError, convert
from support import cli
from weights_support.data import DATA, write_hf

LLAMA = DATA / "mlx" / "llama_q4_g64_bf16"


def bytes_of(folder):
    """Returns the files of a folder by name."""
    return {each.name: each.read_bytes() for each in sorted(folder.iterdir()) if each.is_file()}


class Files:
    """Takes the small files as a model that is being saved does."""

    def __init__(self, folder):
        self._folder = folder

    def add_companion(self, name, data):
        (self._folder / name).write_bytes(data)


def by_command(source, target):
    assert main(["convert", str(source), str(target), "--dtype", "f16", "--force"]) == 0


def by_function(source, target):
    convert(source, target, dtype="f16", force=True)


def model(folder, text=None, **config):
    """Writes a model of one tensor, with this text as config.json or with these entries."""
    config = {"model_type": "llama", **config}
    folder.parent.mkdir(parents=True, exist_ok=True)
    write_hf(folder, config, {"model.norm.weight": np.ones(8, np.float32)})
    if text is not None:
        (folder / "config.json").write_text(text)
    return folder


def config_of(folder):
    return json.loads((folder / "config.json").read_text())


@pytest.mark.parametrize("run", [by_command, by_function])
@pytest.mark.parametrize("error", [OSError(28, "No space left"), KeyboardInterrupt()])
def test_the_commit_fails(tmp_path, monkeypatch, capsys, run, error):
    """The old model, with its old configuration, remains; a new folder does not."""

    def fail(*_):
        raise error

    old = model(tmp_path / "old", vocab_size=7)
    (old / "model.safetensors").write_bytes(b"old")
    before = bytes_of(old)
    with monkeypatch.context() as patch:
        patch.setattr(ModelFiles, "commit", fail)
        for target in (old, tmp_path / "new"):
            with pytest.raises((OSError, KeyboardInterrupt, AssertionError)):
                run(LLAMA, f"{target}/")
    assert bytes_of(old) == before
    assert os.listdir(tmp_path) == ["old"]


@pytest.mark.parametrize("run", [by_command, by_function])
def test_an_interrupt_after_the_commit(tmp_path, monkeypatch, run):
    """The model has taken its place, and so does its configuration."""
    commit = ModelFiles.commit

    def interrupted(*words):
        commit(*words)
        raise KeyboardInterrupt

    old = model(tmp_path / "old", vocab_size=7)
    (old / "model.safetensors").write_bytes(b"old")
    with monkeypatch.context() as patch:
        patch.setattr(ModelFiles, "commit", interrupted)
        with pytest.raises((KeyboardInterrupt, AssertionError)):
            run(LLAMA, f"{old}/")
    run(LLAMA, f"{tmp_path}/wanted/")
    assert bytes_of(old) == bytes_of(tmp_path / "wanted")


@pytest.mark.parametrize("run", [by_command, by_function])
def test_the_target_is_the_source(tmp_path, capsys, run):
    source = tmp_path / "in"
    shutil.copytree(LLAMA, source)
    before = bytes_of(source)
    for one, other in (
        (source, f"{source}/"),
        (source / "model.safetensors", f"{source}/"),
        (source, source / "model.safetensors"),
    ):
        with pytest.raises((WeightsError, AssertionError)) as caught:
            run(one, other)
        said = str(caught.value) + capsys.readouterr().err
        assert "is the source: choose another target" in said
        if run is by_function:
            assert os.path.samefile(caught.value.path, other)
    assert bytes_of(source) == before


@pytest.mark.parametrize(
    "text", ["[]", '"x"', "{", "[" * 100000, '{"a": ' * 100000, "\ud800", "null", "1" * 9999]
)
def test_a_configuration_that_is_none(tmp_path, capsys, text):
    """It is refused before anything is decoded, by --dry-run, too."""
    source = model(tmp_path / "in")
    (source / "config.json").write_bytes(text.encode("utf-8", "surrogatepass"))
    with pytest.raises(WeightsError, match=r"config\.json"):
        _companions.Companions(source, True, error=WeightsError)
    words = ["convert", str(source), f"{tmp_path}/out/", "--dtype", "bf16", "--dry-run"]
    assert main(words) == 2
    said = capsys.readouterr().err
    assert said.count("\n") == 1
    assert "config.json" in said
    assert "internal" not in said


def test_entries_of_the_configuration(tmp_path):
    """Those of quantisation vanish at any depth; the type is the new one."""
    part = {"dtype": "float32", "quantization": {"bits": 4}, "n": 1}
    nested = {"vision_config": {"deep_config": {"quantization_config": {}, "x": 2}}}
    text = json.dumps({"model_type": "llama", "torch_dtype": "float16"} | nested)
    source = model(tmp_path / "in", text)
    companions = _companions.Companions(source, True, "bfloat16", WeightsError)
    companions.add_to(Files(tmp_path))
    wanted = {"model_type": "llama", "torch_dtype": "bfloat16"}
    wanted["vision_config"] = {"deep_config": {"x": 2}}
    assert config_of(tmp_path) == wanted
    model(source, torch_dtype="float16", text_config=part)
    convert(source, f"{tmp_path}/out/", dtype="f32")
    wanted = {"model_type": "llama", "torch_dtype": "float32"}
    wanted["text_config"] = {"dtype": "float32", "n": 1}
    assert config_of(tmp_path / "out") == wanted
    model(source, torch_dtype="float16")
    convert(source, f"{tmp_path}/keep/")
    assert bytes_of(tmp_path / "keep")["config.json"] == bytes_of(source)["config.json"]


def test_links(tmp_path):
    """Those that lead out of the folder are left out; those of the Hugging Face cache are not."""
    (tmp_path / "secret").write_text("secret")
    source = model(tmp_path / "models--x" / "snapshots" / "1")
    blobs = tmp_path / "models--x" / "blobs"
    blobs.mkdir()
    (blobs / "123").write_text("{}")
    (source / "merges.txt").write_text("a")
    (source / "tokenizer.json").symlink_to("../../blobs/123")
    (source / "vocab.txt").symlink_to("merges.txt")
    (source / "special.json").symlink_to(tmp_path / "secret")
    (source / "gone.json").symlink_to("none")
    (source / "big.json").touch()
    os.truncate(source / "big.json", (64 << 20) + 1)
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "merges.txt").symlink_to("none")  # it is replaced
    notes = convert(source, f"{tmp_path}/out/", force=True)
    kept = ["config.json", "merges.txt", "model.safetensors", "tokenizer.json", "vocab.txt"]
    assert sorted(os.listdir(tmp_path / "out")) == kept
    assert not any(each.is_symlink() for each in (tmp_path / "out").iterdir())
    for name, said in (("special", "outside"), ("gone", "No such file"), ("big", "67,108,865")):
        (note,) = [note for note in notes if f"`{name}.json`" in note]
        assert said in note


def test_a_pipe_that_replaced_a_file(tmp_path):
    """It is refused, and not waited for."""
    source = model(tmp_path / "in")
    (source / "vocab.txt").write_text("a")
    companions = _companions.Companions(source, True, error=WeightsError)
    (source / "vocab.txt").unlink()
    os.mkfifo(source / "vocab.txt")
    with pytest.raises(WeightsError, match="not a regular file"):
        companions.add_to(Files(tmp_path))
    assert not (tmp_path / "vocab.txt").exists()


def unforced(way, source, target, **options):
    """Converts without force, and returns the complaint."""
    if way == "function":
        with pytest.raises(WeightsError) as caught:
            convert(source, target, dtype="f16", **options)
        return str(caught.value)
    words = ["--max-shard-size", options["max_shard_size"]] if options else []
    return cli.complaint("convert", source, target, "--dtype", "f16", *words)


@pytest.mark.parametrize("way", ["command", "function"])
@pytest.mark.parametrize("options", [{}, {"max_shard_size": "1GB"}])
def test_files_of_the_user_are_not_replaced(tmp_path, way, options):
    """All are named, and nothing is written, neither a shard nor one of the other small files."""
    source = model(tmp_path / "in")
    names = ["LICENSE", "conftest.py", "requirements.txt", "tokenizer.json", "train.py"]
    for name in [*names, "vocab.txt"]:
        (source / name).write_text("of the model")
    target = tmp_path / "out"
    target.mkdir()
    for name in names[:-1]:
        (target / name).write_text("of the user")
    (target / "train.py").symlink_to("none")
    before = bytes_of(target)
    said = unforced(way, source, target, **options)
    option = "force=True" if way == "function" else "--force"
    assert f"{', '.join(str(target / each) for each in names)} exist; {option} replaces" in said
    assert bytes_of(target) == before
    assert sorted(os.listdir(target)) == names
    for name in names[:-1]:
        (target / name).unlink()
    said = unforced(way, source, f"{target}/", **options)
    assert f"{target}/train.py exists; {option} replaces it" in said
    convert(source, target, force=True, **options)
    assert (target / "train.py").read_text() == "of the model"
    assert not (target / "train.py").is_symlink()


def test_many_files_of_the_user(tmp_path):
    source = model(tmp_path / "in")
    target = model(tmp_path / "out")
    for i in range(20):
        (source / f"{i:02}.txt").touch()
        (target / f"{i:02}.txt").touch()
    said = unforced("function", source, target)
    assert "/09.txt and 11 more exist; force=True replaces them" in said


@pytest.mark.parametrize("run", [by_command, by_function])
def test_another_model_in_the_folder(tmp_path, capsys, run):
    """It would get mixed up with the new one; an old `model` is replaced."""
    target = model(tmp_path / "out")
    run(LLAMA, f"{target}/")
    (target / "model.safetensors").rename(target / "weights.safetensors")
    before = bytes_of(target)
    with pytest.raises((SafetensorError, AssertionError)) as caught:
        run(LLAMA, f"{target}/")
    said = str(caught.value) + capsys.readouterr().err
    assert f"{target}/weights.safetensors exists: two models in one folder get mixed up" in said
    assert bytes_of(target) == before


def test_shards_of_an_old_model_are_replaced(tmp_path):
    for size in (10_000, 20_000, 10**9):
        convert(LLAMA, tmp_path / "out", max_shard_size=size, force=True)
    found = [name for name in bytes_of(tmp_path / "out") if ".safetensors" in name]
    assert found == ["model.safetensors"]


def test_a_conversion_without_decoding(tmp_path, capsys):
    """The folder of the result gets the small files as they are, also of an index."""
    source = model(tmp_path / "m", quantization={"bits": 4})
    (source / "tokenizer.json").write_text("{}")
    (source / "notes.bin").write_bytes(b"")
    for target in ("x", "y/"):
        assert main(["convert", str(source), f"{tmp_path}/{target}"]) == 0
        found = bytes_of(tmp_path / target)
        assert found.keys() == {"config.json", "model.safetensors", "tokenizer.json"}
        assert found["config.json"] == (source / "config.json").read_bytes()
    assert main(["shard", str(source), str(source), "--max-shard-size", "16", "--force"]) == 0
    index = source / "model.safetensors.index.json"
    if index.exists():
        assert main(["convert", str(index), str(tmp_path / "z")]) == 0
        assert bytes_of(tmp_path / "z").keys() == found.keys()
    capsys.readouterr()
    assert main(["convert", str(source), str(tmp_path / "x"), "--max-shard-size", "1MB"]) == 2
    assert "config.json, " in capsys.readouterr().err
    assert main(["convert", str(source), str(tmp_path / "one.safetensors")]) == 0
    assert main(["convert", str(source), str(source), "--force"]) == 0


def test_a_link_that_appears_later(tmp_path):
    """Who may write to the source cannot make the result have another file of the user's."""
    source = model(tmp_path / "source")
    (tmp_path / "secret").write_text("secret")
    (tmp_path / "result").mkdir()
    (source / "LICENSE").write_text("free")
    (source / "licences").mkdir()
    found = _companions.Companions(source, True, error=WeightsError)
    assert "LICENSE" in found.names
    for target in (tmp_path / "secret", source / "licences" / ".." / ".." / "secret"):
        (source / "LICENSE").unlink()
        (source / "LICENSE").symlink_to(target)
        with pytest.raises(WeightsError, match="became a link to a file outside of the folder"):
            found.add_to(Files(tmp_path / "result"))
    source.rename(tmp_path / "moved")
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "LICENSE").write_text("secret")
    source.symlink_to("other")
    with pytest.raises((WeightsError, FileNotFoundError)):
        found.add_to(Files(tmp_path / "result"))
    assert not (tmp_path / "result" / "LICENSE").exists()
