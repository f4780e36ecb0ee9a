"""AtomicFile of the command line."""

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
    """It opens the descriptor's file, not another file that has the name shown by the system."""
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


def test_ctrl_c_during_creation(tmp_path, monkeypatch):
    """The file is removed even if Ctrl-C comes before its descriptor is stored."""
    create = os.open

    def interrupted(*args):
        os.close(create(*args))
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(os, "open", interrupted)
        with pytest.raises(KeyboardInterrupt):
            AtomicFile(str(tmp_path / "f"))
    assert os.listdir(tmp_path) == []


def test_a_file_without_a_with_statement_is_removed(tmp_path):
    AtomicFile(str(tmp_path / "f"))
    assert os.listdir(tmp_path) == []
