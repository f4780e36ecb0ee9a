"""Changes in place whose writes reach the disk only in part: the old model, the new one, or one
that is refused and that `recover` completes."""

import pathlib
import shutil

import numpy as np
import pytest

import safetensors
from safetensors import SafetensorError, delta, update_file
from safetensors import numpy as stn
from support import power_failures
from support.model_saves import load, same

pytestmark = pytest.mark.usefixtures("leases")
ROWS = {f"a.{i}": np.arange(4000 * i, 4000 * (i + 1), dtype="f4") for i in range(5)}
OLD = {
    **ROWS,
    "b": np.arange(7, dtype="u1"),
    "c": np.zeros((3, 5), "f2"),
    "d": np.ones(10_000, "i8"),
}
CHANGES = {name: np.where(row % 1000 == 0, -1, row) for name, row in ROWS.items()}
CHANGES.update({"c": OLD["c"] + 1, "d": OLD["d"] * 2})
NEW = {**OLD, **CHANGES}


def one_file(folder):
    stn.save_file(OLD, folder / "m.safetensors")
    return lambda: update_file(folder / "m.safetensors", CHANGES, in_place=True)


def shards(folder):
    stn.save_files(OLD, folder, max_shard_size=100_000)
    patch = delta.diff(OLD, NEW)
    return lambda: delta.apply_file(folder, patch, in_place=True)


def state(folder):
    """Returns "old", "new", or "refused"; raises AssertionError for a mixture."""
    try:
        found = load(folder)
    except SafetensorError as error:
        if "`safetensors recover` completes it" not in str(error):
            raise
        return "refused"
    assert same(found, OLD) or same(found, NEW), "a mixture"
    return "old" if same(found, OLD) else "new"


def recorded(folder, make):
    """Changes a model, and returns its old files and the steps of the change."""
    folder.mkdir()
    recorder = power_failures.Recorder()
    work = make(folder)
    before = recorder.run(folder, work)
    assert state(folder) == "new"
    after = {str(path): path.read_bytes() for path in folder.iterdir()}
    assert after == power_failures.final(before, recorder.steps)
    return before, recorder.steps


def put(folder, files):
    """Makes a folder of these files, with the private one of a journal."""
    shutil.rmtree(folder)
    folder.mkdir()
    for path, data in files.items():
        parent = pathlib.Path(path).parent
        if parent != folder:
            parent.mkdir(0o700, exist_ok=True)
        pathlib.Path(path).write_bytes(data)


@pytest.mark.slow
@pytest.mark.parametrize("make", [one_file, shards])
def test_a_power_failure_at_any_time(tmp_path, make):
    folder = tmp_path / "m"
    before, steps = recorded(folder, make)
    seen = []
    for files in power_failures.outcomes(before, steps):
        put(folder, files)
        found = state(folder)
        said = safetensors.recover(folder)
        assert state(folder) == ("new" if found == "refused" else found)
        assert (said == "clean") == (len(files) == len(before))
        assert len([*folder.iterdir()]) == len(before), "the journal is gone"
        seen.append(found)
    assert len(seen) > 40
    assert {*seen} == {"old", "refused", "new"}
    assert (seen[0], seen[-1]) == ("old", "new")


@pytest.mark.parametrize("number", [0, 1])
def test_without_a_flush_there_are_mixtures(tmp_path, number):
    """That is, the test above would find that the mark, or the data, is not flushed."""
    folder = tmp_path / "m"
    before, steps = recorded(folder, one_file)
    flushes = [each for each in steps if isinstance(each, power_failures.Flush)]
    steps.remove(flushes[number])
    assert any(is_mixture(folder, files) for files in power_failures.outcomes(before, steps))


def is_mixture(folder, files):
    put(folder, files)
    try:
        state(folder)
    except AssertionError as error:
        return "a mixture" in str(error)
    return False


def test_the_steps_are_those_of_the_page(tmp_path):
    """Journal; mark, flushed; data, flushed; mark removed, flushed; journal removed, flushed."""
    _, steps = recorded(tmp_path / "m", one_file)
    names = [type(each).__name__ for each in steps]
    count = names.count("Write") - 2
    assert count > 4
    assert names == [
        "Entry", "Write", "Flush", *["Write"] * count, "Flush", "Write", "Flush", "Entry", "Flush",
    ]  # fmt: skip
