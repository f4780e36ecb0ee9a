"""Saves with sums that are killed, fail, or meet other saves of the same file."""

import functools
import os
import shutil
import subprocess
import time

import numpy as np
import pytest

import safetensors
from safetensors import SafetensorError, _extra
from safetensors import numpy as stn
from safetensors import sums as public_sums
from support import children, cli
from support.cli import sums_of
from support.writer_races import Rivals

# Forks for each kill, which a process with threads should not.
KILLED = """
    import contextlib, os, pathlib
    import safetensors
    from safetensors._checking import digests as _digests, sums as _sums, sums_save as _sums_save
    from safetensors import numpy as stn
    from support import model_saves, replaced_calls

    def check(folder):
        # Sums that are there are those of the files that are there.
        path = folder / "model.sums.json"
        if not path.exists():
            return "none"
        files = _sums.read(str(path)).files
        now = {name: _digests.of_file(str(folder / name), ["xxh3-128"]) for name in files}
        assert _sums_save.sums_of(now).to_bytes() == path.read_bytes()
        return "sums"

    class Steps(model_saves.Steps):
        CHANGES = ("fsync", "mkdirat", "openat", "renameat", "unlinkat")
        LIBC = {name: model_saves.Steps.LIBC[name] for name in CHANGES}

    root, old, new = pathlib.Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3])
    for at in range(1, 150):
        folder = root / str(at)
        folder.mkdir()
        stn.save_files(model_saves.OLD, folder, max_shard_size=old, sums=True)
        steps = Steps(at, replaced_calls.kill)
        is_killed = replaced_calls.is_killed(
            steps,
            lambda: stn.save_files(model_saves.NEW, folder, max_shard_size=new, sums=True),
        )
        with contextlib.suppress(safetensors.SafetensorError, FileNotFoundError):
            model_saves.load(folder)
            check(folder)
        safetensors.recover(folder)
        found = model_saves.load(folder)
        is_new = model_saves.same(found, model_saves.NEW)
        assert is_new or model_saves.same(found, model_saves.OLD)
        assert [name for name in os.listdir(folder) if name.startswith(".")] == []
        print("new" if is_new else "old", check(folder))
        if not is_killed:
            print("end")
            break
"""


@pytest.mark.parametrize(("old", "new"), [(400, 120), (400, 9999), (9999, 9999)])
def test_kill_at_each_call(tmp_path, old, new):
    """Sums that are found belong to the model that is found, before and after recovery."""
    outcomes = children.run(KILLED, tmp_path, old, new).splitlines()
    assert outcomes[-1] == "end"
    assert len(outcomes) >= 10
    assert outcomes[0] == "old sums"
    assert outcomes[-2] == "new sums"
    assert {*outcomes} <= {"old sums", "old none", "new none", "new sums", "end"}
    assert sorted(outcomes[:-1], key=lambda each: each[:3] == "new") == outcomes[:-1]


SAVE = """
    import numpy as np
    from safetensors.numpy import save_file
    save_file({"a": np.full(9_000_000, 2, "u1")}, sys.argv[1], sums=True)
"""


@pytest.fixture
def traced():
    """The first words of a command that strace runs."""
    strace = shutil.which("strace")
    prefix = [strace, "-f", "-qq", "-o", os.devnull]
    if strace is None or subprocess.run([*prefix, "true"], check=False).returncode != 0:
        pytest.skip("tracing is not allowed here")
    return prefix


@pytest.fixture
def injected(traced, tmp_path):
    """Saves over a file with sums while strace interferes; returns the status, whether the old
    file is there, and whether sums are."""
    path = tmp_path / "m.safetensors"

    def save(what):
        stn.save_file({"a": np.full(9_000_000, 1, "u1")}, path, sums=True)
        options = ["-e", f"inject={what}"]
        done = subprocess.run(
            [*traced, *options, *children.command(SAVE, path)],
            capture_output=True,
            timeout=60,
            check=False,
        )
        has_sums = sums_of(path).exists()
        if has_sums:
            cli.output("hash", path, "--check")
        return done, stn.load_file(path)["a"][0] == 1, has_sums

    return save


def wait_until(is_true):
    for _ in range(30_000):
        if is_true():
            return
        time.sleep(0.001)
    raise AssertionError("nothing happened")


@pytest.mark.parametrize("sums", [True, None])
@pytest.mark.parametrize("rename", ["of the file", "of the sums"])
def test_another_save_between_the_steps_of_one(traced, tmp_path, rename, sums):
    """The later save's file stays. Sums that are found are its, whichever save has made them."""
    path = tmp_path / "m.safetensors"
    stn.save_file({"a": np.full(9_000_000, 1, "u1")}, path, sums=True)
    when = 1 if rename == "of the file" else 2
    words = [*traced, "-e", f"inject=renameat:delay_enter=4000000:when={when}"]
    with subprocess.Popen([*words, *children.command(SAVE, path)]) as first:
        wait_until(lambda: not sums_of(path).exists())
        wait_until(lambda: when == 1 or stn.load_file(path)["a"][0] == 2)
        stn.save_file({"a": np.full(9_000_000, 3, "u1")}, path, sums=sums)
        assert first.poll() is None
        assert sums_of(path).exists() == (sums is not None)
        assert first.wait(60) == 0
    assert stn.load_file(path)["a"][0] == (2 if when == 1 else 3)
    # Before its second renaming, the first save may have seen that its file is replaced.
    assert sums_of(path).exists() or when == 2
    if sums_of(path).exists():
        cli.output("hash", path, "--check")
    assert not [name for name in os.listdir(tmp_path) if name.startswith(".")]


def test_a_save_without_sums_removes_those_of_another_one(traced, tmp_path):
    """Also those that the other one wrote after the old sums were removed."""
    path = tmp_path / "m.safetensors"
    stn.save_file({"a": np.full(9_000_000, 1, "u1")}, path, sums=True)
    words = [*traced, "-e", "inject=renameat:delay_enter=4000000:when=1"]
    code = SAVE.replace(", sums=True", "")
    with subprocess.Popen([*words, *children.command(code, path)]) as first:
        wait_until(lambda: not sums_of(path).exists())
        stn.save_file({"a": np.full(9_000_000, 3, "u1")}, path, sums=True)
        assert first.poll() is None
        assert first.wait(60) == 0
    assert stn.load_file(path)["a"][0] == 2
    assert os.listdir(tmp_path) == ["m.safetensors"]


@pytest.mark.parametrize("sums", [("sums", "sums"), ("sums", "none")])
def test_saves_of_one_file_by_two_threads(tmp_path, sums):
    """Of many files, each by two threads at once."""

    def save(sums, path, values):
        value = values.pop()
        stn.save_file({"a": np.full(8, value)}, path, sums="sha256" if sums == "sums" else None)

    paths = [tmp_path / f"{i}.safetensors" for i in range(100)]
    with Rivals(sums, 4) as rivals:
        acts = [functools.partial(save, path=path, values=[1, 2]) for path in paths]
        assert rivals.meet(acts) == [(None, None)] * len(paths)
    for path in paths:
        if sums_of(path).exists():
            cli.output("hash", path, "--check")
    assert len(os.listdir(tmp_path)) <= 2 * len(paths)


@pytest.mark.parametrize("what", ["replaced", "changed"])
@pytest.mark.parametrize("when", [0, 1], ids=["before", "after"])
def test_a_file_that_is_saved_while_its_sums_are_made(tmp_path, monkeypatch, what, when):
    """Before they get their name, or just after it: none are left, and the caller is told."""
    calls = []
    path = tmp_path / "m.safetensors"
    stn.save_file({"a": np.zeros(8)}, path)
    real = _extra._write_beside

    def write(*arguments):
        *others, is_wanted = arguments

        def change():
            if what == "replaced":
                stn.save_file({"a": np.ones(8)}, path)
            else:
                path.write_bytes(path.read_bytes()[:-1] + b"x")

        def called():
            calls.append(is_wanted())
            if len(calls) == when:
                change()
            return calls[-1]

        if when == 0:
            change()
        real(*others, called)

    monkeypatch.setattr(_extra, "_write_beside", write)
    with pytest.raises(SafetensorError, match=r"m\.safetensors: .* while its sums were made"):
        public_sums.write(path)
    assert calls == [True, False][1 - when :]
    assert os.listdir(tmp_path) == ["m.safetensors"]


def test_kill_between_the_renames(injected, tmp_path):
    """Before the first: old or no sums. Before the second: the new file without sums."""
    _, is_old, has_sums = injected("renameat:signal=KILL:when=1")
    assert (is_old, has_sums) == (True, False)
    _, is_old, has_sums = injected("renameat:signal=KILL:when=2")
    assert (is_old, has_sums) == (False, False)
    for path in tmp_path.iterdir():
        if path.name.startswith("."):
            os.utime(path, (1, 1))
    assert safetensors.recover(tmp_path) == "rolled back"
    assert os.listdir(tmp_path) == ["m.safetensors"]
    done, is_old, has_sums = injected("renameat:when=9:error=EIO")
    assert (done.returncode, is_old, has_sums) == (0, False, True)


def test_failing_calls(injected, tmp_path):
    """Sums that cannot be removed or written: the old file and its sums stay."""
    done, is_old, has_sums = injected("unlinkat:error=EPERM:when=1")
    assert b"the sums of the old file cannot be removed" in done.stderr
    assert (is_old, has_sums) == (True, True)
    for when in (1, 2, 3):
        done, is_old, has_sums = injected(f"pwrite64:error=ENOSPC:when={when}")
        assert b"No space left on device" in done.stderr
        assert (is_old, has_sums) == (True, True)
    done, is_old, has_sums = injected("renameat:error=EIO:when=2")
    assert b"m.sums.json" in done.stderr
    assert (is_old, has_sums) == (False, False)
    assert os.listdir(tmp_path) == ["m.safetensors"]
