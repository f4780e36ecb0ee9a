"""Functions that write files: for each, what is there before, and a call that returns the paths."""

import contextlib
import io
import json
import os

import numpy as np

import safetensors
from safetensors import delta, sums
from safetensors import numpy as stn
from safetensors._cli.main import main
from support import model_saves


def _nothing(folder):
    pass


def _file(folder):
    stn.save_file(model_saves.OLD, folder / "model.safetensors")


def _shards(folder):
    stn.save_files(model_saves.OLD, folder, max_shard_size=model_saves.TWO, sums=True)


def _models(folder):
    """A model of several files in another folder."""
    os.mkdir(folder.parent / "home" / "m")
    stn.save_files(model_saves.OLD, folder.parent / "home" / "m", max_shard_size=model_saves.TWO)


def _signed(folder):
    """A model with sums, and a key."""
    from cryptography.hazmat.primitives import serialization
    from cryptography.hazmat.primitives.asymmetric import ec

    stn.save_files(model_saves.OLD, folder, sums="sha256")
    pem = ec.generate_private_key(ec.SECP256R1()).private_bytes(
        serialization.Encoding.PEM,
        serialization.PrivateFormat.PKCS8,
        serialization.NoEncryption(),
    )
    (folder.parent / "home" / "key.pem").write_bytes(pem)


def command(*words):
    with (
        contextlib.redirect_stdout(io.StringIO()),
        contextlib.redirect_stderr(io.StringIO()) as said,
    ):
        status = main([*map(os.fspath, words)])
    if status != 0:
        raise SystemExit(said.getvalue())


def save_file(folder):
    path = folder / "model.safetensors"
    stn.save_file(model_saves.NEW, path, sums=True)
    return [path, folder / "model.sums.json"]


def _shards_in(folder):
    """Returns the index, and the shards that it names if it is no link."""
    index = folder / "model.safetensors.index.json"
    if index.is_symlink():
        return [index]
    return [
        index,
        *(folder / name for name in json.loads(index.read_text())["weight_map"].values()),
    ]


def save_files(folder):
    made = stn.save_files(model_saves.NEW, folder, max_shard_size=model_saves.TWO, sums=True)
    return [*made, folder / "model.safetensors.index.json", folder / "model.sums.json"]


def safe_create(folder):
    with safetensors.safe_create(
        folder, model_saves.NEW, max_shard_size=model_saves.THREE, sums=True
    ) as writer:
        for name, array in model_saves.NEW.items():
            writer.write(name, array)
    return _shards_in(folder)


def in_place(folder):
    path = folder / "model.safetensors"
    safetensors.update_file(path, {"old": np.ones(3, "i8")}, in_place=True, shared=True)
    return [path]


def apply_patch(folder):
    home = folder.parent / "home"
    stn.save_file(model_saves.OLD | {"old": np.ones(3, "i8")}, home / "new.safetensors")
    delta.diff(folder / "model.safetensors", home / "new.safetensors", home / "x.safetensors-patch")
    out = folder / "model-2.safetensors"
    delta.apply_file(folder / "model.safetensors", home / "x.safetensors-patch", out)
    return [out]


def convert(folder):
    from safetensors.weights import convert as run

    source = folder.parent / "home" / "source"
    if not source.exists():
        source.mkdir()
        (source / "config.json").write_text('{"model_type": "llama"}')
        table = np.zeros((2, 2), np.float32)
        stn.save_file({"model.embed_tokens.weight": table}, source / "model.safetensors")
        (source / "tokenizer.txt").write_text("text of a stranger")
    run(source, f"{folder}/")
    return [folder / "model.safetensors", folder / "config.json", folder / "tokenizer.txt"]


def write_sums(folder):
    return [sums.write(folder / "model.safetensors")]


def hash_write(folder):
    command("hash", folder / "model.safetensors", "--write")
    return [folder / "model.sums.json"]


def sign(folder):
    command("sign", folder, "--key", folder.parent / "home" / "key.pem")
    return [folder / "model.sums.sig", folder / "model.sig"]


def meta(folder):
    command("meta", folder / "model.safetensors", "--set", "a=" + "b" * 5000)
    return [folder / "model.safetensors"]


def shard(folder):
    model = folder.parent / "home" / "m"
    command("shard", model, folder, "--max-shard-size", "400B", "--force")
    return _shards_in(folder)


def merge(folder):
    out = folder / "model.safetensors"
    command("merge", folder.parent / "home" / "m", out, "--force")
    return [out]


def extract(folder):
    out = folder / "model-2.safetensors"
    command("extract", folder / "model.safetensors", out, "--keep", "old")
    return [out]


def rename(folder):
    out = folder / "model.safetensors"
    command("rename", out, "--map", "old=older", "--force")
    return [out]


def save_checkpoint(folder):
    import torch
    from torch.distributed import checkpoint

    from safetensors.dcp import StorageWriter

    state = {f"a{i}": torch.full((30,), float(i)) for i in range(6)}
    try:
        checkpoint.save(state, storage_writer=StorageWriter(folder, max_shard_size=model_saves.TWO))
    except checkpoint.api.CheckpointException as error:  # no subclass of Exception
        raise SystemExit(str(error)) from None
    return _shards_in(folder)


SAVES = {
    "save_file": (_file, save_file),
    "save_files": (_shards, save_files),
    "safe_create": (_nothing, safe_create),
    "in_place": (_file, in_place),
    "apply_patch": (_file, apply_patch),
    "convert": (_nothing, convert),
    "write_sums": (_file, write_sums),
    "hash_write": (_file, hash_write),
    "sign": (_signed, sign),
    "meta": (_file, meta),
    "shard": (_models, shard),
    "merge": (_models, merge),
    "extract": (_file, extract),
    "rename": (_file, rename),
    "save_checkpoint": (_nothing, save_checkpoint),
}
