"""Sums that are written when a model is saved, and old sums, which a save removes."""

import functools
import os
import shutil
import subprocess
import time

import numpy as np
import pytest

import safetensors
from safetensors import SafetensorError
from safetensors import numpy as stn
from safetensors import sums as public_sums
from safetensors._checking import sums as _sums
from support import children, cli
from support.file_builder import raw
from support.writer_races import Rivals

BLOCK = 4 << 20
MANY = {
    "long": np.arange(2 * BLOCK + 9, dtype="u1"),
    "middle": np.arange(300_000, dtype="f4"),
    "scalar": np.array(2.5),
    "none": np.zeros((0, 3), "i2"),
    'a\u00e9\u4e2d\U0001f600"\\\n': np.ones(3, "i8"),
}


def sums_of(path):
    """Returns the sums beside a file."""
    return path.with_name(path.name.removesuffix(".safetensors") + ".sums.json")


def check_as_hash(path, *words, model=None):
    """Checks that the sums beside a file are the bytes that `hash --write` writes."""
    saved = sums_of(path).read_bytes()
    cli.output("hash", model or path, "--write", *words)
    assert saved == sums_of(path).read_bytes()
    cli.output("hash", model or path, "--check")


@pytest.mark.parametrize(
    ("sums", "words"),
    [
        (True, []),
        ("xxh3-128", []),
        ("sha256", ["--algorithm", "sha256"]),
        (["xxh3-128", "sha256"], ["--algorithm", "sha256"]),
    ],
)
def test_as_hash_writes_them(tmp_path, sums, words):
    """The same bytes, with either algorithm, for long, short, scalar and empty tensors."""
    path = tmp_path / "m.safetensors"
    stn.save_file(MANY, path, {"k": "v"}, sums=sums)
    assert sorted(os.listdir(tmp_path)) == ["m.safetensors", "m.sums.json"]
    check_as_hash(path, *words)


def test_all_dtypes(tmp_path):
    """Each dtype of the format that NumPy has."""
    ml_dtypes = pytest.importorskip("ml_dtypes")
    arrays = {}
    for code, row in safetensors._core._dtypes().items():
        name = row["numpy"] or row["ml_dtypes"]
        if name:
            dtype = np.dtype(name if row["numpy"] else getattr(ml_dtypes, name))
            arrays[code] = np.ones((2, 4), dtype)
    assert len(arrays) > 15
    path = tmp_path / "m.safetensors"
    stn.save_file(arrays, path, sums=True)
    check_as_hash(path)
    stn.save_file({"swapped": np.arange(5, dtype=">i4")}, path, sums=True)
    check_as_hash(path)


def test_torch(tmp_path):
    """Plain tensors, those that need preparation, and models."""
    torch = pytest.importorskip("torch")
    from safetensors import torch as stt

    path = tmp_path / "m.safetensors"
    plain = {name: torch.from_numpy(array) for name, array in MANY.items()}
    stt.save_file(plain, path, sums=True)
    check_as_hash(path)
    stt.save_file({"conj": torch.tensor([1 + 2j]).conj()}, path, sums="sha256")
    check_as_hash(path, "--algorithm", "sha256")
    stt.save_model(torch.nn.Linear(3, 4), path, sums=True)
    check_as_hash(path)
    assert _sums.read(str(sums_of(path))).tensors.keys() == {"weight", "bias"}


@pytest.mark.parametrize("framework", ["flax", "tensorflow", "paddle", "mlx"])
def test_frameworks(tmp_path, framework):
    """Those that save by way of NumPy pass the argument on."""
    module = pytest.importorskip(f"safetensors.{framework}")
    make = {
        "flax": lambda: __import__("jax").numpy.ones((2, 3)),
        "tensorflow": lambda: __import__("tensorflow").ones((2, 3)),
        "paddle": lambda: __import__("paddle").ones((2, 3)),
        "mlx": lambda: __import__("mlx.core").core.ones((2, 3)),
    }[framework]
    path = tmp_path / "m.safetensors"
    module.save_file({"a": make()}, path, sums=True)
    check_as_hash(path)


def test_wrong_options(tmp_path):
    """Unknown algorithms, and names that are no safetensors files, change nothing."""
    for sums in ("md5", ["md5"], [True], 3.5):
        with pytest.raises((ValueError, TypeError)):
            stn.save_file(MANY, tmp_path / "m.safetensors", sums=sums)
    with pytest.raises(ValueError, match="ends with .safetensors"):
        stn.save_file(MANY, tmp_path / "m.bin", sums=True)
    os.mkfifo(tmp_path / "p.safetensors")
    with pytest.raises(ValueError, match="sums are of files"):
        stn.save_file(MANY, tmp_path / "p.safetensors", sums=True)
    assert os.listdir(tmp_path) == ["p.safetensors"]


@pytest.mark.parametrize("none", [None, False, []])
def test_a_save_without_sums_removes_the_old_ones(tmp_path, none):
    """Of this file only."""
    path = tmp_path / "m.safetensors"
    others = [tmp_path / name for name in ("m.json", "n.sums.json", "m.sums.json.bak")]
    for other in others:
        other.write_text("x")
    stn.save_file(MANY, path, sums=True)
    stn.save_file({"a": np.zeros(3)}, path, sums=none)
    assert not sums_of(path).exists()
    assert all(other.read_text() == "x" for other in others)


def test_a_save_through_a_link(tmp_path):
    """The sums beside the link and those beside the file are removed; new ones are by the link."""
    (tmp_path / "real").mkdir()
    real, link = tmp_path / "real" / "r.safetensors", tmp_path / "l.safetensors"
    stn.save_file(MANY, real, sums=True)
    link.symlink_to(real)
    cli.output("hash", link, "--write")
    stn.save_file({"a": np.zeros(3)}, link, sums=True)
    assert link.is_symlink()
    assert not sums_of(real).exists()
    check_as_hash(link)


def test_save_files_removes_the_old_sums(tmp_path):
    """Of the model of this name, for one file and for several."""
    for most in ("5GB", 700, "5GB", "5GB"):
        (tmp_path / "model.sums.json").write_text("x")
        (tmp_path / "other.sums.json").write_text("x")
        stn.save_files({"a": np.zeros(80), "b": np.ones(80)}, tmp_path, max_shard_size=most)
        assert not (tmp_path / "model.sums.json").exists()
        assert (tmp_path / "other.sums.json").exists()


def test_commands_remove_the_old_sums(tmp_path):
    """`meta`, `rename`, `update_file` and a writer."""
    path = cli.write(tmp_path / "m.safetensors", cli.small(), {"k": "v"})

    def written():
        cli.output("hash", path, "--write")
        return sums_of(path).exists()

    for words in (
        ["meta", path, "--set", "k=w"],
        ["rename", path, "--map", f"{next(iter(cli.small()))}=renamed"],
    ):
        assert written()
        cli.output(*words)
        assert not sums_of(path).exists(), words
    assert written()
    safetensors.update_file(path, {"added": np.zeros(3)}, add=True)
    assert not sums_of(path).exists()


def test_a_folder_with_the_name_of_the_sums(tmp_path):
    """Is no file of sums: a save leaves it alone; sums cannot be written, and nothing is saved."""
    path = tmp_path / "m.safetensors"
    sums_of(path).mkdir()
    stn.save_file(MANY, path)
    before = path.read_bytes()
    with pytest.raises(SafetensorError, match=r"m\.sums\.json"):
        stn.save_file({"a": np.zeros(3)}, path, sums=True)
    assert path.read_bytes() == before
    assert sorted(os.listdir(tmp_path)) == ["m.safetensors", "m.sums.json"]


ARRAYS = {f"layers.{i}": np.full(300_000, i, "f4") for i in range(4)} | {"none": np.zeros(0)}


@pytest.mark.parametrize("most", ["5GB", "2MB"])
@pytest.mark.parametrize("sums", [True, "sha256"])
def test_save_files(tmp_path, most, sums):
    """One file or several; the sums are those of the model, with the names of its files."""
    words = ["--algorithm", "sha256"] if sums == "sha256" else []
    for _ in range(2):
        paths = stn.save_files(ARRAYS, tmp_path, max_shard_size=most, sums=sums)
        assert len([name for name in os.listdir(tmp_path) if name.endswith("sums.json")]) == 1
        check_as_hash(tmp_path / "model.safetensors", *words, model=tmp_path)
    assert len(paths) == (1 if most == "5GB" else 4)
    stn.save_files({"a": np.zeros(3)}, tmp_path, name="other", sums=sums)
    check_as_hash(tmp_path / "other.safetensors", *words)
    stn.save_files({"a": np.zeros(3)}, tmp_path)
    assert not (tmp_path / "model.sums.json").exists()


def test_save_files_of_torch(tmp_path):
    """As of NumPy."""
    torch = pytest.importorskip("torch")
    from safetensors import torch as stt

    tensors = {name: torch.from_numpy(array) for name, array in ARRAYS.items()}
    stt.save_files(tensors, tmp_path, max_shard_size="2MB", sums=True)
    check_as_hash(tmp_path / "model.safetensors", model=tmp_path)


def test_a_writer(tmp_path):
    """Tensors that are written whole, in parts in and out of order, copied and cast."""
    source = cli.write(tmp_path / "source.safetensors", {"a": raw("F32", (70, 100))})
    rows = np.arange(BLOCK + 30, dtype="u1").reshape(-1, 2)
    path = tmp_path / "m.safetensors"
    specs = {
        "whole": ("U8", (2 * BLOCK + 9,)),
        "backwards": ("U8", rows.shape),
        "stream": ("U8", rows.shape),
        "columns": ("U8", rows.shape),
        "copied": ("F32", (70, 100)),
        "cast": ("BF16", (70, 100)),
        "none": ("I8", (0,)),
    }
    for sums, words in ((True, []), ("sha256", ["--algorithm", "sha256"])):
        with (
            safetensors.safe_create(path, specs, sums=sums) as writer,
            safetensors.safe_open(source, "np") as file,
        ):
            with pytest.raises(SafetensorError):
                writer.write("stream", b"too short")
            writer.write("whole", MANY["long"])
            writer.write_slice("backwards", slice(3, None), rows[3:])
            writer.write_slice("backwards", slice(0, 3), rows[:3])
            writer.write_slice("columns", (slice(None), 1), rows[:, 1])
            writer.write_slice("columns", (slice(None), 0), rows[:, 0])
            with writer.open("stream") as stream:
                for begin in range(0, rows.size, 1_000_001):
                    stream.write(rows.tobytes()[begin : begin + 1_000_001])
            writer.copy(file, "a", to="copied")
            writer.copy(file, "a", to="cast", cast=True)
        check_as_hash(path, *words)


def test_a_tensor_that_is_refused_twice(tmp_path):
    """What was given, but not written, is not what the digest is of."""
    path = tmp_path / "m.safetensors"
    writer = safetensors.safe_create(path, {"a": ("U8", (4,)), "b": ("U8", (4,))}, sums=True)
    with writer:
        writer.write("a", b"good")
        with pytest.raises(SafetensorError, match="written before"):
            writer.write("a", b"evil")
        for wrong in (b"long!", b"evi"):
            with pytest.raises(SafetensorError):
                writer.write("b", wrong)
        writer.write("b", b"good")
    check_as_hash(path)


def test_writers_without_specs_and_of_several_files(tmp_path):
    """The header of one is written last; the other has files of its own."""
    path = tmp_path / "m.safetensors"
    with safetensors.safe_create(path, sums=True) as writer:
        for name, array in MANY.items():
            writer.write(name, array)
    check_as_hash(path)
    for specs in (None, ARRAYS):
        folder = tmp_path / f"folder{specs is None}"
        with safetensors.safe_create(folder, specs, max_shard_size="2MB", sums=True) as writer:
            for name in reversed(ARRAYS):
                writer.write(name, ARRAYS[name])
        check_as_hash(folder / "model.safetensors", model=folder)
    with safetensors.safe_create(tmp_path / "empty", {}, max_shard_size=9, sums=True):
        pass
    check_as_hash(tmp_path / "empty" / "model.safetensors", model=tmp_path / "empty")


def test_targets_without_sums(tmp_path):
    """Sums need a path, and nothing else changes."""
    with open(tmp_path / "f", "wb") as file:
        for target in (file, file.fileno(), lambda begin, view: None):
            with pytest.raises(ValueError, match="need a path"):
                safetensors.safe_create(target, {}, sums=True)
    with pytest.raises(ValueError, match="sums is"):
        safetensors.safe_create(tmp_path / "d", {}, max_shard_size=9, sums="md5")
    assert os.listdir(tmp_path) == ["f"]


def test_update_file(tmp_path):
    """The new sums are of the whole new file."""
    path = tmp_path / "m.safetensors"
    stn.save_file(ARRAYS, path, sums=True)
    safetensors.update_file(path, {"layers.1": np.full(300_000, 7, "f4")}, sums=True)
    check_as_hash(path)


def test_save_file_async(tmp_path):
    """Of NumPy and torch; tensors larger than a chunk, and several in one."""
    path = tmp_path / "m.safetensors"
    arrays = {**MANY, "huge": np.arange(40 << 20, dtype="u1")}
    future = stn.save_file_async(arrays, path, sums="sha256")
    for array in arrays.values():
        array.flags.writeable = True
    future.result()
    check_as_hash(path, "--algorithm", "sha256")
    torch = pytest.importorskip("torch")
    from safetensors import torch as stt

    stt.save_file_async({"a": torch.arange(3_000_000)}, path, sums=True).result()
    check_as_hash(path)
    stt.save_file_async({"a": torch.arange(3)}, path).result()
    assert not sums_of(path).exists()


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
    real = safetensors._core._write_beside

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

    monkeypatch.setattr(safetensors._core, "_write_beside", write)
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
