"""The examples of docs/cli.md.

Each section runs in a new folder with the files that docs/cli.md describes.

An example that needs a network or a GPU would be left out. There is none, which a test asserts.
"""

from __future__ import annotations

import importlib.util
import re
import shutil
from pathlib import Path

import pytest

from safetensors._cli.main import _READ_URLS, commands, parser
from support import children, console, pages

pytest.importorskip("torch")

ROOT = Path(__file__).parents[2]
PAGE = pages.Page("docs/cli.md")
TEXT = PAGE.text
SECTIONS = {
    title: blocks
    for title, text in re.findall(r"^##? (.*)\n((?:(?!^##? ).*\n)*)", TEXT, re.MULTILINE)
    if (blocks := console.BLOCK.findall(text))
}

# A program and a module that a section needs. Where one is missing, the section is skipped.
NEEDS = {"sign, verify": ("openssl", "model_signing"), "completion": ("bash", "shtab")}

KILLED = """
    import pathlib, shutil, sys
    from safetensors import numpy
    from support import model_saves, replaced_calls

    folder = pathlib.Path(sys.argv[1])
    steps = model_saves.steps_of(folder.parent, (model_saves.THREE, model_saves.TWO), False)
    shutil.rmtree(folder.parent / "counted")
    model_saves.make(folder, model_saves.THREE)
    with model_saves.Steps(len(steps) - 1, replaced_calls.kill):  # before the switch is removed
        numpy.save_files(model_saves.NEW, folder, max_shard_size=model_saves.TWO)
"""


def test_every_command_has_a_section():
    documented = {name for title in SECTIONS for name in title.split(", ")}
    assert documented >= set(commands(parser()))


def test_the_manual_page_names_every_command():
    page = (ROOT / "packaging" / "debian" / "safetensors-cpp.1").read_text()
    words = set(re.findall(r"[a-z]+", page.partition(".SS Commands for the Python")[0]))
    assert words >= set(commands(parser()))


def test_the_guide_names_the_commands_that_take_urls():
    page = (ROOT / "docs" / "loading.md").read_text(encoding="utf-8")
    (text,) = re.findall(r"on disk\. The commands (`safetensors .*?) do so, too", page, re.DOTALL)
    named = {name.removeprefix("safetensors ") for name in re.findall("`(.*?)`", text)}
    taking = {command.__name__.rpartition(".")[2] for command in _READ_URLS}
    assert named == taking - {"completion"}  # which reads no file


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the files that the last section of the page lists."""
    folder = tmp_path_factory.mktemp("examples")
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        PAGE.run(PAGE.program())
    copied = re.findall(r"^\| `(\S+)` \| `(weights/tests/\S+)` \|$", TEXT, re.MULTILINE)
    assert len(copied) == 2
    for name, source in copied:
        copy = shutil.copytree if (ROOT / source).is_dir() else shutil.copyfile
        copy(ROOT / source, folder / name)
    assert children.run_raw(KILLED, folder / "models" / "killed").returncode < 0
    return folder


@pytest.mark.slow
@pytest.mark.parametrize("section", SECTIONS)
def test_the_section_runs(section: str, files: Path, tmp_path: Path) -> None:
    """Its commands print what the page shows. The introduction shows no output."""
    program, module = NEEDS.get(section, ("bash", "safetensors"))
    if not shutil.which(program) or not importlib.util.find_spec(module):
        pytest.skip(f"needs {program} and {module}")
    folder = shutil.copytree(files, tmp_path / "folder")
    for block in SECTIONS[section]:
        if section == "Command line":
            assert [status for _, status in console.run(block, folder)] == [0, 0, 0]
        else:
            console.check(block, folder)


def test_no_example_is_left_out() -> None:
    """None has a URL, a device, or an identity of Sigstore."""
    blocks = [block for blocks in SECTIONS.values() for block in blocks]
    assert len(blocks) == TEXT.count("```console") == 24
    assert not any(re.search("://|cuda|sigstore", block) for block in blocks)


@pytest.mark.parametrize("block", ["$ echo a\nb\n", "$ echo a\n", "$ true\na\n...\n", "$ false\n"])
def test_a_false_block_is_found(block: str, tmp_path: Path) -> None:
    with pytest.raises(AssertionError):
        console.check(block, tmp_path)
