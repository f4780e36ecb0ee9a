"""`safetensors report`: one page about a model, without scripts."""

import html.parser
import re

import numpy as np
import pytest

from safetensors.numpy import save_file, save_files
from support import cli

POLICY = "default-src 'none'; style-src 'unsafe-inline'"
TAGS = {
    "html", "head", "meta", "title", "style", "body", "h2", "div", "span", "b", "i", "br",
    "details", "summary", "svg", "rect", "text", "table", "tr", "th", "td",
}  # fmt: skip
VOID = {"meta", "br"}


class Reader(html.parser.HTMLParser):
    """Checks that a page is static and balanced, and collects its text."""

    def __init__(self, text):
        super().__init__()
        self.open, self.text, self.policy = [], [], None
        self.feed(text)
        self.close()
        assert self.open == []

    def handle_starttag(self, tag, attributes):
        assert tag in TAGS
        given = dict(attributes)
        assert not any(name.startswith("on") or name in ("href", "src") for name in given)
        assert "url(" not in given.get("style", "")
        if given.get("http-equiv") == "Content-Security-Policy":
            self.policy = given["content"]
        if tag not in VOID:
            self.open.append(tag)

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def handle_data(self, data):
        self.text.append(data)


def read(path):
    """Returns the words of a page, which has to be static and to name no folder."""
    text = path.read_text(encoding="utf-8")
    assert str(path.parent) not in text
    reader = Reader(text)
    assert reader.policy == POLICY
    return " ".join(" ".join(reader.text).split())


@pytest.fixture
def model(tmp_path):
    random = np.random.default_rng(0)
    values = {f"h.{i}.w": random.normal(size=(40, 8)).astype("f4") for i in range(4)}
    values |= {"big": np.linspace(-2, 6, 3000, dtype="f4"), "nan": np.full(3, np.nan, "f4")}
    values |= {"same": np.ones(4, "i8"), "one": np.ones(())}
    path = tmp_path / "model.safetensors"
    save_file(values, path, {"note": "<script>x</script>"})
    return path, values


def test_a_page(model, tmp_path):
    path, _ = model
    target = tmp_path / "report.html"
    said = cli.output("report", path, "-o", target)
    assert said == f"{target}: {target.stat().st_size / 1000:.1f} kB\n"
    words = read(target)
    assert "model.safetensors safetensors · 8 tensors · 4.29 k parameters" in words
    assert "check: model.safetensors: ok: 8 tensors, 17.7 kB, F32, F64, I64" in words
    assert "F32 6 4,283 17.1 kB 32.00" in words
    assert "0.w … 3.w F32 5.1 kB 4 \u00d7 [40, 8]" in words
    assert re.search(r"big F32 \[3000\] -2 6 max \|x\| 6 · zeros 0.0% · mean 2", words)
    assert "nan F32 [3] no finite values" in words
    assert "<script>x</script>" in words


def test_against_another(model, tmp_path):
    path, values = model
    other, target = tmp_path / "other", tmp_path / "report.html"
    values["big"] = values["big"] * 1.01
    values["h.0.w"] = values["h.0.w"].astype("f2")
    values["h.1.w"] = values["h.1.w"][:2]
    values["new"] = values.pop("one")
    save_files(values, other, max_shard_size=9000)
    for quick in ([], ["--quick"]):
        cli.output("report", path, "--against", other, "-o", target, "--force", *quick)
        words = read(target)
        assert "Against other 4 tensors equal, 5 differ" in words
        assert "big F32 F32 0.06 0.025 0.0306 1.000% 1.000000 100.0%" in words
        assert "h.0.w F32 F16" in words
        assert "h.1.w F32 F32 [40, 8] -> [2, 8]" in words
        assert "one F64 missing" in words
        assert "new missing F64" in words
    cli.output("report", other, "-o", target, "--force")
    assert "other safetensors, 2 files" in read(target)


def test_damage_is_said(tmp_path):
    folder = tmp_path / "folder"
    save_files({"a": np.ones(100), "b": np.ones(100)}, folder, max_shard_size=900)
    (folder / "extra.safetensors").write_bytes(b"\0" * 20)
    cli.output("report", folder, "-o", tmp_path / "r.html")
    assert "check: extra.safetensors: " in read(tmp_path / "r.html")


def test_only_a_chosen_variant_is_checked(tmp_path):
    folder = tmp_path / "folder"
    save_files({"a": np.ones(2)}, folder)
    (folder / "model.safetensors").rename(folder / "model.fp16.safetensors")
    (folder / "model.safetensors").write_bytes(b"\0" * 20)
    cli.output("report", folder, "-o", tmp_path / "r.html", "--variant", "fp16")
    words = read(tmp_path / "r.html")
    assert "check: model.fp16.safetensors: ok: " in words
    assert "check: model.safetensors" not in words


def test_quick_reads_parts_of_large_tensors(tmp_path):
    values = np.zeros((3000, 1000), "f4")
    values[0, 0], values[-1, -1] = -3, 5
    save_file({"a": values}, tmp_path / "m.safetensors")
    cli.output("report", tmp_path / "m.safetensors", "-o", tmp_path / "r.html", "--quick")
    words = read(tmp_path / "r.html")
    assert "Values of the 1 largest tensor, up to 1,048,576 of each" in words
    assert "-3 5 max |x| 5" in words


def test_targets_are_not_replaced(model, tmp_path):
    path, _ = model
    before = path.read_bytes()
    for words in (["-o", path], ["-o", tmp_path, "--force"], ["-o", "-"]):
        cli.run("report", path, *words, status=2)
    assert path.read_bytes() == before
    for words in (["-"], ["https://example.invalid/m.safetensors"], [path, "--against", "-"]):
        failed = cli.run("report", *words, "-o", tmp_path / "new.html", status=2)
        assert "report " in failed.stderr
    failed = cli.run("report", tmp_path / "none", "-o", tmp_path / "new.html", status=2)
    assert "none" in failed.stderr
    assert not (tmp_path / "new.html").exists()


def test_what_is_read_is_not_replaced(tmp_path):
    """Also by another name, or as a part of what a path names."""
    folder = tmp_path / "folder"
    save_files({"a": np.ones(100), "b": np.ones(100)}, folder, max_shard_size=900)
    (folder / "config.json").write_text("{}")
    shard = sorted(folder.glob("model-*"))[0]
    (tmp_path / "hard").hardlink_to(shard)
    (tmp_path / "link").symlink_to(shard)
    (tmp_path / "r.html").touch()
    before = {path: path.read_bytes() for path in folder.iterdir()}
    for target in [*before, tmp_path / "hard", tmp_path / "link"]:
        for words in ([folder], [shard, "--against", folder]):
            said = cli.complaint("report", *words, "-o", target, "--force")
            assert said == f"{target}: the command reads this file: choose another output"
    assert {path: path.read_bytes() for path in folder.iterdir()} == before
    cli.run("report", folder, "-o", tmp_path / "r.html", "--force")
    assert "2 tensors" in read(tmp_path / "r.html")


def test_many_tensors(tmp_path):
    zero = np.zeros(1, "i1")
    names = [f"m.{i}.e.{j}.{k}" for i in range(20) for j in range(100) for k in "abcdefghij"]
    save_file(
        dict.fromkeys(names, zero) | {f"x{i * 7919}": zero for i in range(9999)}, tmp_path / "m"
    )
    cli.output("report", tmp_path / "m", "-o", tmp_path / "r.html")
    assert "29,999 tensors" in read(tmp_path / "r.html")
    assert (tmp_path / "r.html").stat().st_size < 1_000_000
