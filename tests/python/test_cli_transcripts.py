"""The pages of tests/python/transcripts: what commands print for files that are made here."""

import os
import pickle
import zipfile

import numpy as np
import pytest

from safetensors import delta
from support import cli, copies, file_builder, transcripts
from support.file_builder import Raw, entry, from_entries, raw


def of(array, dtype):
    return Raw(dtype, array.shape, array.tobytes())


def ls(folder):
    cli.write(folder / "m.safetensors", cli.small(), {"format": "pt"})
    cli.write(folder / "other.safetensors", {"b": raw("U8", (3,))})
    cli.write(folder / "names.safetensors", {"größe": raw("U8", (1,))})
    cli.write(folder / "prefix.safetensors", {"a": raw("U8", (1,)), "a.b": raw("U8", (2,))})
    cli.write(folder / "none.safetensors", {})
    cli.write(folder / "scalar.safetensors", {"": raw("F32", ())})
    (folder / "sharded").mkdir()
    cli.sharded(folder / "sharded")
    for name in ("same/x", "same/y", "pipeline/unet/model", "pipeline/vae/model"):
        cli.write(folder / f"{name}.safetensors", {"a": raw("U8", (1,))})
    (folder / "pipeline" / "tokenizer").mkdir()
    for name in ("empty", "two"):
        (folder / name).mkdir()
    for name in "ab":
        cli.write_index(folder / "two", {"a": "x"}, name=f"{name}.safetensors.index.json")
    files = {"away": "../m.safetensors", "root": "/etc/passwd", "lost": "gone.safetensors"}
    for name, file in files.items():
        cli.write_index(folder, {"a": file}, name=f"{name}.json")
    texts = {"bad": "{}", "broken": "{", "list": "[]", "none": '{"weight_map": {}}'}
    texts["nested"] = "[" * 1_000_000
    for name, text in texts.items():
        (folder / f"{name}.json").write_text(text)
    (folder / "html.safetensors").write_text("<!DOCTYPE html><html></html>")
    for name in ("pipe", "pipe.json"):
        os.mkfifo(folder / name)


def show(folder):
    tensors = {
        "line": of(np.linspace(-1, 1, 1000, dtype="<f4").reshape(10, 100), "F32"),
        "odd": of(np.array([0, 0, 1, np.nan, np.inf, -np.inf, -3], dtype="<f8"), "F64"),
        "scalar": of(np.array(7, "<i4"), "I32"),
        "flags": of(np.array([1, 0, 1, 1], "u1"), "BOOL"),
        "complex": of(np.array([3 + 4j, 0], "<c8"), "C64"),
        "six": raw("F6_E2M3", (4,)),
        "none": raw("F32", (0, 3)),
        "cube": of(np.arange(24, dtype="<u2").reshape(2, 3, 4), "U16"),
        "empty of values": of(np.array([np.nan], "<f4"), "F32"),
        "widest": of(np.array([-1.7e308, 1.7e308, 0, 5e-324]), "F64"),
        "extremes": of(np.array([-(1 << 63), (1 << 63) - 1], "<i8"), "I64"),
    }
    cli.write(folder / "m.safetensors", tensors)
    names = ("h.10.b", "h.2.b", "h.2.w", "[a]", "a")
    cli.write(folder / "names.safetensors", {name: raw("U8", (1,)) for name in names})
    (folder / "sharded").mkdir()
    cli.sharded(folder / "sharded")


def diff(folder):
    long = raw("F32", (3_000_000,), bytes(12_000_000))
    changed = bytearray(long.data)
    changed[8_000_000] ^= 1
    changed[8_000_003] ^= 1
    a = {"same": raw("U8", (3,)), "gone": raw("U8", (1,)), "type": raw("U8", (2,)), "long": long}
    b = {"same": a["same"], "new": raw("F32", (1,)), "type": raw("I8", (2,))}
    b["long"] = Raw("F32", (3_000_000,), bytes(changed))
    cli.write(folder / "a.safetensors", a, {"format": "pt", "k": "v"})
    cli.write(folder / "b.safetensors", b, {"format": "np", "k": "v"})
    small = cli.small()
    turned = {name: small[name] for name in reversed(small)}
    cli.write(folder / "m.safetensors", small, {"format": "pt"})
    cli.write(folder / "turned.safetensors", turned, {"format": "pt"})
    cli.write(folder / "plain.safetensors", small)
    (folder / "sharded").mkdir()
    cli.sharded(folder / "sharded")
    for name in ("same/m", "same/n"):
        cli.write(folder / f"{name}.safetensors", small)
    data = (folder / "m.safetensors").read_bytes()
    file_builder.write(folder / "broken.safetensors", data[:-1])
    others = {
        "square": raw("F32", (2, 2)),
        "flat": raw("F32", (4,)),
        "ints": raw("I32", (2, 2)),
        "zeros": raw("F32", (2, 2), bytes(16)),
    }
    for name, tensor in others.items():
        cli.write(folder / f"{name}.safetensors", {"a": tensor})
    cli.write(folder / "renamed.safetensors", {"b": others["square"]})
    for dtype in ("F4", "F6_E2M3"):
        tensor = raw(dtype, (8,))
        last = Raw(dtype, (8,), tensor.data[:-1] + bytes([tensor.data[-1] ^ 0x80]))
        cli.write(folder / f"{dtype}.safetensors", {"a": tensor})
        cli.write(folder / f"{dtype}.last.safetensors", {"a": last})


def check(folder):
    whole = file_builder.to_bytes({"a": raw("F32", (2,)), "b": raw("F32", (4,))})
    one = '"a":{"dtype":"U8","shape":[0],"data_offsets":[0,0]}'
    hole = {"a": entry("U8", (2,), 0, 2), "b": entry("U8", (2,), 5, 7)}
    small_hole = {"a": entry("U8", (1,), 0, 1), "b": entry("U8", (1,), 2, 3)}
    overlap = {"a": entry("U8", (4,), 0, 4), "b": entry("U8", (4,), 2, 6)}
    small_overlap = {"a": entry("U8", (2,), 0, 2), "b": entry("U8", (2,), 1, 3)}
    short = {"b": entry("U8", (4,), 0, 4), "a": entry("F32", (3,), 4, 12)}
    contents = {
        "cut": whole[:-20],
        "cut-in-the-last": whole[:-4],
        "cut-in-the-header": whole[:-80],
        "cut-by-one": from_entries({"a": entry("U8", (2,), 0, 2)}, b"x"),
        "cut-at-once": b"\x10\x00",
        "tail": whole + b"xyz",
        "tail-of-one": whole + b"x",
        "hole": from_entries(hole, bytes(7)),
        "hole-of-one": from_entries(small_hole, bytes(3)),
        "overlap": from_entries(overlap, bytes(6)),
        "overlap-of-one": from_entries(small_overlap, bytes(3)),
        "size": from_entries(short, bytes(12)),
        "size-of-one": from_entries({"a": entry("U8", (1,), 0, 2)}, bytes(2)),
        "duplicate": from_entries("{" + ",".join([one] * 3) + "}"),
        "header": file_builder.with_length(b'{"a":'),
        "says-other-things": from_entries(
            {"GGUF file. This is a zip": entry("U8", (4,), 1, 5)}, bytes(5)
        ),
        "lfs": b"version https://git-lfs.github.com/spec/v1\noid x\n",
        "pickle": pickle.dumps({"a": [1.0] * 20}, protocol=2),
        "gguf": b"GGUF\x03\x00\x00\x00" + bytes(100),
        "ggml": b"lmgg" + bytes(40),
        "html": b"<!DOCTYPE html><html>login</html>",
        "json": b'{"weight_map": {}}',
        "none": b"",
    }
    for count in (10, 11, 40):
        entries = {f"t{i}": entry("U8", (1,), 2 * i + 1, 2 * i + 2) for i in range(count)}
        contents[f"holes-{count}"] = from_entries(entries, bytes(2 * count))
    for name, content in contents.items():
        file_builder.write(folder / f"{name}.safetensors", content)
    with zipfile.ZipFile(folder / "pytorch_model.bin", "w") as archive:
        archive.writestr("archive/data.pkl", b"\x80\x02}q\x00.")
    cli.write(folder / "m.safetensors", cli.small())
    (folder / "empty").mkdir()
    models = {name: folder / name for name in ("good", "lost", "short")}
    for path in models.values():
        path.mkdir()
        cli.sharded(path)
    (models["lost"] / "b.safetensors").unlink()
    data = (models["short"] / "b.safetensors").read_bytes()
    (models["short"] / "b.safetensors").write_bytes(data[:-1])
    weight_map = dict.fromkeys(("h.0.weight", "h.2.weight"), "a.safetensors")
    weight_map |= dict.fromkeys(("h.10.weight", "h.0.bias", "mask"), "b.safetensors")
    indexes = {
        "more": ({**weight_map, "x": "a.safetensors"}, 75),
        "fewer": ({k: v for k, v in weight_map.items() if k != "mask"}, 75),
        "wrong": ({**weight_map, "mask": "a.safetensors"}, 75),
        "total": (weight_map, 7),
        "away": ({**weight_map, "mask": "../b.safetensors"}, 75),
        "number": ({**weight_map, "mask": 1}, 75),
    }
    for name, index in indexes.items():
        cli.write_index(models["good"], *index, name=f"{name}.json")


def patch(folder):
    old, new = copies.patched()
    a = cli.write(folder / "a.safetensors", old, {"step": "0"})
    b = cli.write(folder / "b.safetensors", new, {"step": "1"})
    delta.diff(a, b, folder / "p.safetensors-patch", labels=("0", "1")).close()
    wrong = a.read_bytes()[:-1] + b"\x7f"
    file_builder.write(folder / "wrong.safetensors", wrong)
    data = (folder / "p.safetensors-patch").read_bytes()
    file_builder.write(folder / "short", data[:-1])
    cli.write(folder / "dash" / "-", {"a": raw("U8", (1,))})


def convert(folder):
    """Also for shard, merge and extract."""
    cli.write(folder / "m.safetensors", cli.small())
    copies.write(folder / "blocks.safetensors", copies.tensors(), metadata={"k": "v"})
    copies.write(folder / "ab.safetensors", {"a": np.zeros(1 << 16, "f4"), "b": np.ones(1)})
    (folder / "text").write_text("plain words, nothing more")
    for name, text in (("a", "1"), ("b", "2")):
        metadata = {"k": text, name: ""}
        cli.write(folder / "in" / f"{name}.safetensors", {name: raw("U8", (1,))}, metadata)
    (folder / "empty").mkdir()
    os.mkfifo(folder / "pipe")
    np.savez(folder / "a.npz", a=np.zeros(2))


def usage(folder):
    cli.write(folder / "m.safetensors", cli.small(), {"format": "pt"})


PAGES = {page.__name__: page for page in (ls, show, diff, check, patch, convert, usage)}


@pytest.mark.parametrize(
    ("page", "title"),
    [(page, title) for page in PAGES for title in transcripts.sections(page)],
)
def test_a_section(tmp_path, page, title):
    PAGES[page](tmp_path)
    transcripts.check(transcripts.sections(page)[title], tmp_path)


def test_every_page_is_read():
    assert {path.stem for path in transcripts.FOLDER.iterdir()} == {*PAGES}


@pytest.mark.parametrize(
    "shown",
    ["", "other\n", "safetensors 0\n[2]\n", "...\nother\n", "safetensors ... more\n"],
)
def test_a_false_transcript_is_found(tmp_path, shown):
    with pytest.raises(AssertionError):
        transcripts.check(f"```console\n$ safetensors --version\n{shown}```\n", tmp_path)
