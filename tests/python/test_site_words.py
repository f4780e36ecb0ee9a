"""Words that people type into the search of the site, and old errors, lead to the right page."""

from __future__ import annotations

import json
import re
import struct
from pathlib import Path

import pytest

from safetensors import SafetensorError, safe_open
from support.pages import ROOT, site_script

WORDS = {
    "install": "install.md",
    "pip": "install.md",
    "uninstall": "install.md",
    "extras": "install.md",
    "uv": "install.md",
    "wheel": "install.md",
    "device_map": "faq.md",
    "map_location": "faq.md",
    "tqdm": "faq.md",
    "progress bar": "faq.md",
    "jupyter": "faq.md",
    "notebooks": "faq.md",
    "bfloat16": "faq.md",
    "lora": "faq.md",
    "resume": "faq.md",
    "out of memory": "faq.md",
    "shared tensors": "faq.md",
    "corrupted": "faq.md",
    "pickle": "faq.md",
    "HeaderTooLarge": "faq.md",
    "InvalidHeaderDeserialization": "faq.md",
    "MetadataIncompleteBuffer": "faq.md",
    "shard": "commands/shard.md",
    "convert": "commands/convert.md",
    "GGUF": "weights.md",
    "quantised models": "weights.md",
    "checksums": "verify.md",
    "pyinstaller": "howto.md",
    "s3": "index.md",
}
STOP = {"of", "the", "a", "in"}
SECTION = re.compile(r"^(#{1,6}) (.*)\n((?:(?!#{1,6} ).*\n?)*)", re.MULTILINE)


def words_of(text: str) -> list[str]:
    """Returns the words of Markdown as the search sees them."""
    return re.findall(r"[\w.+]*\w", re.sub(r"\]\([^)]*\)|[`*]", " ", text).lower())


@pytest.fixture(scope="module")
def sections() -> list[tuple[str, list[str], list[str], float]]:
    """The page, title, text and boost of each section of the site, without the Python reference."""
    found = []
    for page, text in site_script("pages").site().items():
        boost = float("".join(re.findall(r"^  boost: (\S+)$", text, re.MULTILINE)) or 1)
        for _, title, body in SECTION.findall(text):
            found.append((page, words_of(title), words_of(body), boost))
    return found


@pytest.mark.parametrize(("query", "wanted"), WORDS.items())
def test_a_word_finds_its_page(query: str, wanted: str, sections) -> None:
    """It is among the first three. A title counts a thousand times as much as text, as there."""
    terms = [word for word in words_of(query) if word not in STOP]
    scores: dict[str, float] = {}
    for page, title, body, boost in sections:
        hits = sum(
            1000 * (term in title) + body.count(term) / (body.count(term) + 1 + len(body) / 200)
            for term in terms
        )
        scores[page] = max(scores.get(page, 0), hits * boost)
    first = sorted(scores, key=lambda page: -scores[page])[:3]
    assert scores[wanted] > 0
    assert wanted in first


def file_of(header: object, nbytes: int = 8) -> bytes:
    text = header if isinstance(header, bytes) else json.dumps({"a": header}).encode()
    return struct.pack("<Q", len(text)) + text + bytes(nbytes)


def tensor(dtype: str = "F32", shape: tuple[int, ...] = (2,), begin: int = 0) -> dict[str, object]:
    return {"dtype": dtype, "shape": shape, "data_offsets": [begin, begin + 8]}


# Upstream 0.5.3 has these words for these files.
DAMAGED = {
    "HeaderTooLarge": b"<!DOCTYPE html><html></html>",
    "HeaderTooSmall": b"abc",
    "InvalidHeaderLength": struct.pack("<Q", 500) + b"{}",
    "InvalidHeader": file_of(b'{"\xff":1}'),
    "InvalidHeaderDeserialization": file_of(tensor("X9")),
    "MetadataIncompleteBuffer": file_of(tensor(), 4),
    "InvalidOffset": file_of(tensor(begin=4), 12),
    "TensorInvalidInfo": file_of(tensor(shape=(3,))),
    "ValidationOverflow": file_of(tensor(shape=(1 << 40, 1 << 40))),
}


def test_old_errors_are_explained(tmp_path: Path) -> None:
    """docs/faq.md has today's text of each."""
    text = (ROOT / "docs" / "faq.md").read_text(encoding="utf-8")
    shown = dict(re.findall(r"^### (\w+)\n\nToday `(.*?)`", text, re.MULTILINE))
    assert shown.keys() == DAMAGED.keys()
    path = tmp_path / "model.safetensors"
    for word, content in DAMAGED.items():
        path.write_bytes(content)
        with pytest.raises(SafetensorError) as caught, safe_open(path, "np"):
            pass
        assert str(caught.value).startswith(f"Error while deserializing header: {shown[word]}")
