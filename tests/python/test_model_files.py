"""Which files of a folder are the model: one answer for every kind of folder."""

import json
import os
import warnings

import pytest

from safetensors import SafetensorError
from safetensors.torch import load_files, load_into, save_file, save_files, stream_files
from support import cli, model_folders
from support.fake_hub import FakeHub, commit_of
from support.remote_engines import FAST
from support.servers import Answer, RangeServer

torch = pytest.importorskip("torch", reason="torch is not installed")
fsspec = pytest.importorskip("fsspec", reason="fsspec is not installed")

FOLDERS = model_folders.folders()
each_folder = pytest.mark.parametrize("folder", FOLDERS, ids=[each.title for each in FOLDERS])
INDEX = "model.safetensors.index.json"


def outcome(load, choice):
    """Returns the files that were loaded and whether there was a warning, or the error."""
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        try:
            tensors = load(**choice.arguments)
        except Exception as error:  # WeightsError is none of SafetensorError
            return error
    return model_folders.files_of(tensors), bool(said)


def check(found, folder, choice, *, is_listed=True, warns=True):
    """Compares an outcome with the table. A folder that is not listed may be refused."""
    if isinstance(found, SafetensorError) and not is_listed:
        return
    absent = [each for each in choice.files if each not in folder.files]
    if choice.code:
        assert isinstance(found, SafetensorError), found
        assert found.code == choice.code, found
    elif absent:  # only an index names such files
        assert isinstance(found, OSError), found
        assert any(each in str(found) for each in absent), found
    else:
        assert not isinstance(found, Exception), found
        assert found[0] == choice.files
        assert found[1] == choice.is_warned or not warns


@each_folder
def test_on_disk(folder, tmp_path):
    folder.make(tmp_path)
    for choice in folder.choices:
        check(outcome(lambda **given: load_files(tmp_path, **given), choice), folder, choice)


@each_folder
def test_in_a_store_that_lists(folder):
    memory = fsspec.filesystem("memory")
    try:
        for name, content in folder.contents().items():
            memory.pipe(f"/d/{name}", content)
        for choice in folder.choices:
            found = outcome(lambda **given: load_files("memory://d/", **given), choice)
            # Likely names are asked for first: what else there is, is not known then.
            check(found, folder, choice, warns=False)
    finally:
        memory.store.clear()
        memory.pseudo_dirs[:] = [""]


@each_folder
def test_in_a_bucket(folder):
    pytest.importorskip("obstore", reason="obstore is not installed")
    files = {f"/bucket/d/{name}": content for name, content in folder.contents().items()}
    with model_folders.Bucket(files) as server:
        options = {"endpoint": server.url(), "region": "us-east-1", "anonymous": True, **FAST}
        for choice in folder.choices:
            found = outcome(
                lambda **given: load_files("s3://bucket/d/", storage_options=options, **given),
                choice,
            )
            # Likely names are asked for first: what else there is, is not known then.
            check(found, folder, choice, warns=False)


@each_folder
def test_on_a_web_server(folder):
    """It lists nothing: the same files, or a refusal."""
    files = {f"/d/{name}": content for name, content in folder.contents().items()}
    with RangeServer(files) as server:
        for choice in folder.choices:
            found = outcome(
                lambda **given: load_files(server.url("/d/"), storage_options=FAST, **given),
                choice,
            )
            check(found, folder, choice, is_listed=False, warns=False)
            # What has a likely name is found.
            if choice.files in (["model.safetensors"], ["diffusion_pytorch_model.safetensors"]):
                assert not isinstance(found, Exception), found


@each_folder
def test_on_the_hub(folder, monkeypatch):
    """All files are those of one commit, as the first one tells it."""
    contents = {f"d/{name}": content for name, content in folder.contents().items()}
    with FakeHub(page=3) as server:
        server.add("org/repo", {**contents, "d/more/model.safetensors": b""})
        monkeypatch.setenv("HF_ENDPOINT", server.url())
        for choice in folder.choices:
            server.clear()
            found = outcome(
                lambda **given: load_files("hf://org/repo/d", storage_options=FAST, **given), choice
            )
            # Likely names are asked for first: what else there is, is not known then.
            check(found, folder, choice, warns=False)
            if choice.files:
                assert sum("/resolve/main/" in path for path in server.paths()) <= 3


@each_folder
def test_in_the_cache_of_the_hub(folder, tmp_path, monkeypatch):
    repository = tmp_path / "hub" / "models--org--repo"
    folder.make(repository / "snapshots" / commit_of("main") / "d")
    (repository / "refs").mkdir()
    (repository / "refs" / "main").write_text(commit_of("main"))
    monkeypatch.setenv("HF_HOME", str(tmp_path))
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    for choice in folder.choices:
        found = outcome(lambda **given: load_files("hf://org/repo/d", **given), choice)
        check(found, folder, choice)


@each_folder
def test_open_weights(folder, tmp_path):
    weights = pytest.importorskip("safetensors.weights", reason="built without the weight layer")
    folder.make(tmp_path)

    def load(**given):
        with weights.open_weights(tmp_path, **given) as model:
            for text in model.warnings:
                if "no part of the model" not in text:
                    warnings.warn(text, stacklevel=1)
            return [*model, *model.unmapped]

    for choice in folder.choices:
        found = outcome(load, choice)
        code = getattr(found, "code", "")
        if choice.code:
            wanted = "unsupported" if choice.code == "several_models" else "missing_shard"
            assert code == wanted, found
        elif choice.files[0].startswith("shard-"):
            assert code == "unsupported", found
            assert "ranks saved" in str(found)
        elif not set(choice.files) <= set(folder.files):
            assert code == "missing_shard", found
        else:
            assert found == (choice.files, choice.is_warned)


# Arguments


def test_all_functions_take_a_choice(tmp_path):
    from safetensors import plan, sums

    save_file({"a": torch.zeros(1)}, tmp_path / "model.safetensors")
    save_file({"b": torch.ones(1)}, tmp_path / "model.fp16.safetensors")
    save_file({"c": torch.ones(1)}, tmp_path / "other.safetensors")
    assert [*load_files(tmp_path, name="other")] == ["c"]
    assert [name for name, _ in stream_files(tmp_path, variant="fp16")] == ["b"]
    target = torch.zeros(1)
    load_into({"b": target}, tmp_path, variant="fp16")
    assert target == 1
    found = plan.resolve(tmp_path, variant="fp16")
    assert [*found] == ["b"]
    assert [each.file for each in found.explain()] == [str(tmp_path / "model.fp16.safetensors")]
    assert [*sums.make(tmp_path, name="other").tensors] == ["c"]
    assert sums.write(tmp_path, variant="fp16") == str(tmp_path / "model.fp16.sums.json")
    assert [*load_files(tmp_path, variant="fp16", verify=True)] == ["b"]


@pytest.mark.parametrize("source", ["model.safetensors", INDEX, "https://host.example/m.st"])
def test_a_choice_is_for_folders(source, tmp_path):
    save_files({"a": torch.zeros(9), "b": torch.ones(9)}, tmp_path, max_shard_size=36)
    save_file({"a": torch.zeros(1)}, tmp_path / "model.safetensors")
    path = source if "://" in source else tmp_path / source
    with pytest.raises(ValueError, match="name and variant choose a model of a folder, and .* is"):
        load_files(path, name="model")
    with pytest.raises(TypeError, match="variant is a str, not int"):
        load_files(tmp_path, variant=16)


def test_a_list_of_files_is_what_it_says(tmp_path):
    for name in ("a", "b"):
        save_file({name: torch.zeros(1)}, tmp_path / f"{name}.safetensors")
    with pytest.raises(SafetensorError, match="several models: .*pass a file.*list of files"):
        load_files(tmp_path)
    assert [*load_files([tmp_path / "a.safetensors", tmp_path / "b.safetensors"])] == ["a", "b"]


def test_the_warning_is_of_the_line_that_loads(tmp_path):
    save_file({"a": torch.zeros(1)}, tmp_path / "model.safetensors")
    (tmp_path / INDEX).write_text(json.dumps({"weight_map": {"a": "gone.safetensors"}}))
    with pytest.warns(UserWarning, match="index.json is not used: no other file that it") as said:
        load_files(tmp_path)
    assert [each.filename for each in said] == [__file__]


def test_a_path_overrides_the_rule(tmp_path):
    files = save_files({"a": torch.zeros(9), "b": torch.ones(9)}, tmp_path, max_shard_size=36)
    save_file({"c": torch.zeros(1)}, tmp_path / "model.safetensors")
    with pytest.raises(SafetensorError) as caught:
        load_files(tmp_path)
    for name in ("model.safetensors", INDEX, os.path.basename(files[0]), str(tmp_path)):
        assert name in str(caught.value)
    assert (caught.value.code, caught.value.path) == ("several_models", str(tmp_path))
    assert [*load_files(tmp_path / INDEX)] == ["a", "b"]
    assert [*load_files(tmp_path / "model.safetensors")] == ["c"]


def test_names_that_are_no_text(tmp_path):
    (tmp_path / os.fsdecode(b"\xff.safetensors")).write_bytes(b"")
    save_file({"a": torch.zeros(1)}, tmp_path / "model.safetensors")
    assert [*load_files(tmp_path)] == ["a"]
    (tmp_path / "model.safetensors").rename(tmp_path / os.fsdecode(b"\xfe.safetensors"))
    with pytest.raises(SafetensorError, match=r"\udcfe\.safetensors"):
        load_files(tmp_path)


def test_an_old_index_of_a_server(tmp_path):
    """All of its files are asked for, because one that exists may be of a newer model."""
    path = tmp_path / "m.safetensors"
    save_file({"a": torch.zeros(1)}, path)
    names = [f"model-{i:05}-of-00040.safetensors" for i in range(1, 41)]
    index = json.dumps({"weight_map": {name: name for name in names}}).encode()
    files = {f"/d/{INDEX}": index, "/d/model.safetensors": path}
    with RangeServer(files) as server:
        with pytest.warns(UserWarning, match="is not used"):
            assert [*load_files(server.url("/d/"), storage_options=FAST)] == ["a"]
        assert server.requests == 42
        server.files[f"/d/{names[-1]}"] = path
        with pytest.raises(SafetensorError, match="may be two models"):
            load_files(server.url("/d/"), storage_options=FAST)
        server.files[f"/d/{names[-1]}"] = Answer(403)
        with pytest.raises(PermissionError):
            load_files(server.url("/d/"), storage_options=FAST)
        many = {str(i): f"{i}.safetensors" for i in range(2000)}
        server.files[f"/d/{INDEX}"] = json.dumps({"weight_map": many}).encode()
        server.clear()
        with pytest.raises(SafetensorError, match="is one of 2,000 files of an index beside"):
            load_files(server.url("/d/"), storage_options=FAST)
        assert server.requests < 1100


# The command line


def test_commands_take_a_choice(tmp_path):
    save_file({"a": torch.zeros(1)}, tmp_path / "model.safetensors")
    save_file({"b": torch.ones(1)}, tmp_path / "model.fp16.safetensors")
    save_file({"c": torch.ones(1)}, tmp_path / "other.safetensors")
    said = cli.run("ls", tmp_path)
    assert "a" in said.stdout.split()
    assert "2 other files are no part of the model: model.fp16" in said.stderr
    assert "c" in cli.run("ls", "--name", "other", tmp_path).stdout.split()
    whole = cli.run("hash", "--whole", "--variant", "fp16", tmp_path).stdout
    assert whole == cli.run("hash", "--whole", tmp_path / "model.fp16.safetensors").stdout
    out = tmp_path / "out.safetensors"
    cli.run("convert", tmp_path, out, "--variant", "fp16")
    assert [*load_files(out)] == ["b"]
    assert "choose a model of a folder" in cli.complaint("ls", "--name", "x", out)


def test_commands_about_files_take_all(tmp_path):
    for name in ("a", "b"):
        save_file({name: torch.zeros(1)}, tmp_path / f"{name}.safetensors")
    out = tmp_path.parent / "merged.safetensors"
    cli.run("merge", tmp_path, out)
    assert [*load_files(out)] == ["a", "b"]
    assert cli.run("check", tmp_path).stdout.count(": ok: ") == 2
    said = cli.run("ls", tmp_path)
    assert {"a", "b"} <= {*said.stdout.split()}
    assert "which files are the model is not clear: all are listed" in said.stderr
    cli.run("hash", "--write", tmp_path)
    assert (tmp_path / "model.sums.json").exists()
    assert "2 tensors as in" in cli.run("hash", tmp_path, "--check").stdout
