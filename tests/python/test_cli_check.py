"""`safetensors check`."""

import os

import pytest

from safetensors import SafetensorError
from safetensors._cli import check
from safetensors._cli.main import main
from support import cli, hostile_cases

LIGHT = hostile_cases.LIGHT
# All would take minutes.
HEAVY = [
    row
    for row in hostile_cases.HEAVY
    if row.name.removeprefix("heavy: ")
    in {
        "shape of 10,000,000 ones",
        "shape of 7,000,000 arrays",
        "one metadata key 4,000,000 times",
        "name of 40 MB",
    }
]


@pytest.mark.skipif(os.geteuid() == 0, reason="root may read everything")
def test_no_read_permission(tmp_path):
    """The error has the system's text."""
    path = cli.write(tmp_path / "m.safetensors", cli.small())
    path.chmod(0)
    assert "Permission denied" in cli.output("check", path, status=2)


def test_a_file_that_changes_meanwhile(tmp_path, monkeypatch, capsys):
    """It is not damaged: it could not be read."""
    path = cli.write(tmp_path / "m.safetensors", cli.small())

    def changed(*_):
        error = SafetensorError("the file became shorter")
        error.code = "file_changed"
        raise error

    monkeypatch.setattr(check, "File", changed)
    assert main(["check", str(path)]) == 2
    assert capsys.readouterr().out == f"{path}: unreadable: the file became shorter\n"


def test_every_hostile_file(tmp_path):
    """`check` agrees with the core on each row of the table, and explains each fault."""
    paths = [tmp_path / f"{i}.safetensors" for i in range(len(LIGHT))]
    for path, row in zip(paths, LIGHT, strict=True):
        path.write_bytes(row.file())
    verdicts = cli.parsed("check", *paths, status=1)
    assert len(verdicts) == len(LIGHT)
    for row, verdict in zip(LIGHT, verdicts, strict=True):
        assert (verdict["kind"] == "ok") == (row.expect == "ok"), (row.name, verdict)
        assert verdict["kind"] != "unreadable", (row.name, verdict)
        assert verdict["message"]
    lines = cli.output("check", *paths, status=1).splitlines()
    assert sum(not line.startswith("  ") for line in lines[:-1]) == len(LIGHT)


@pytest.mark.slow
def test_heavy_hostile_files(tmp_path):
    """Headers of tens of megabytes do not take gigabytes for Python objects."""
    paths = []
    assert len(HEAVY) == 4
    for row in HEAVY:
        paths.append(tmp_path / f"{len(paths)}.safetensors")
        paths[-1].write_bytes(row.file())
    status, most = cli.peak_memory("check", *paths, limit_nbytes=4 << 30)
    assert status == 1
    assert most < 700_000_000
