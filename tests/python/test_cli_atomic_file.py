"""The command line's writer of whole files."""

import os
import sys

import pytest

from safetensors._cli.atomic_file import AtomicFile
from safetensors._cli.errors import CliError


def write(path, data):
    with AtomicFile(str(path)) as file:
        file.write(data)
        file.commit(False)


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="looks into /proc")
def test_the_name_of_a_descriptor(tmp_path):
    """It leads to its own file, not to one that has the name by which the system shows it."""
    with open(tmp_path / "f", "w+b") as held:
        name = f"/proc/self/fd/{held.fileno()}"
        write(name, b"new")
        assert (tmp_path / "f").read_bytes() == b"new"
    with open(tmp_path / "f", "w+b") as held:
        name = f"/proc/self/fd/{held.fileno()}"
        (tmp_path / "f").unlink()
        with pytest.raises(CliError, match="without a name"):
            AtomicFile(name)
        assert os.listdir(tmp_path) == []
        (tmp_path / "f (deleted)").write_bytes(b"other")
        with pytest.raises(CliError, match="without a name"):
            AtomicFile(name)
        assert (tmp_path / "f (deleted)").read_bytes() == b"other"
    assert os.listdir(tmp_path) == ["f (deleted)"]


def test_ctrl_c_while_it_is_made(tmp_path, monkeypatch):
    """Nothing is left, though the file is there before its descriptor is known."""
    create = os.open

    def interrupted(*args):
        os.close(create(*args))
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(os, "open", interrupted)
        with pytest.raises(KeyboardInterrupt):
            AtomicFile(str(tmp_path / "f"))
    assert os.listdir(tmp_path) == []


def test_one_that_no_with_statement_got(tmp_path):
    AtomicFile(str(tmp_path / "f"))
    assert os.listdir(tmp_path) == []
