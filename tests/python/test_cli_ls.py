"""`safetensors ls`."""

import resource

import pytest

from support import cli
from support.file_builder import raw


def test_a_million_dots_are_not_a_million_levels(tmp_path):
    """The tree of a hostile name is drawn quickly."""
    tensors = {"." * 1_000_000 + "a": raw("U8", (1,)), ".b": raw("U8", (1,))}
    path = cli.write(tmp_path / "m.safetensors", tensors)
    assert "2 tensors" in cli.output("ls", "--tree", path)


def test_more_shards_than_the_soft_limit_of_open_files(tmp_path):
    for i in range(100):
        cli.write(tmp_path / f"{i}.safetensors", {f"t{i}": raw("U8", (1,))})

    def limited():
        resource.setrlimit(resource.RLIMIT_NOFILE, (64, 4096))

    assert len(cli.parsed("ls", tmp_path, preexec_fn=limited)["files"]) == 100


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
