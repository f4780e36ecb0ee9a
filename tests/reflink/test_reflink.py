"""Shared disk space: the commands on btrfs and XFS, which share blocks, and on ext4.

Needs root, loop devices and mkfs.btrfs, mkfs.xfs and mkfs.ext4: `bash .ci/run reflink`. With
REPORT=1, prints times, and what `cp` takes for the same bytes.
"""

import os
import shutil
import subprocess
import time

import numpy as np
import pytest

from safetensors import safe_open
from safetensors._saving.writer import safe_create
from support import cli, copies

IMAGE_NBYTES = 1 << 30
MODEL = {f"layer.{i}.weight": (1024, 1024 * 12) for i in range(4)} | {"norm": (1000,)}  # 200 MB
SYSTEMS = ["btrfs", "xfs", "ext4"]
SHARING = ["btrfs", "xfs"]


def run(*words):
    return subprocess.run(words, capture_output=True, text=True, check=False)


@pytest.fixture(scope="module", params=SYSTEMS)
def system(request, tmp_path_factory):
    """A new file system: its name and its folder."""
    name = request.param
    if os.geteuid() != 0:
        pytest.skip("only root can mount")
    if shutil.which(f"mkfs.{name}") is None:
        pytest.skip(f"no mkfs.{name}")
    top = tmp_path_factory.mktemp(name)
    image, folder = top / "image", top / "mounted"
    folder.mkdir()
    with image.open("wb") as file:
        file.truncate(IMAGE_NBYTES)
    run(f"mkfs.{name}", "-q", str(image))
    mounted = run("mount", "-o", "loop", str(image), str(folder))
    if mounted.returncode != 0:
        pytest.skip(f"cannot mount {name}: {mounted.stderr.strip()}")
    yield name, folder
    subprocess.run(["umount", str(folder)], check=True)


@pytest.fixture(scope="module")
def source(system):
    """A file of blocks, of random values, and its values."""
    _, folder = system
    random = np.random.default_rng(0)
    model = {name: random.random(shape, "f4") for name, shape in MODEL.items()}
    return copies.write(folder / "m.safetensors", model, metadata={"k": "v"}), model


def used(folder):
    """Returns the bytes in use."""
    subprocess.run(["sync", "-f", str(folder)], check=True)
    state = os.statvfs(folder)
    return (state.f_blocks - state.f_bfree) * state.f_frsize


def measured(system, work, nbytes, what):
    """Runs `work`, and checks how much of `nbytes` bytes it added to the disk."""
    name, folder = system
    before, begin = used(folder), time.monotonic()
    work()
    seconds = time.monotonic() - begin
    new = used(folder) - before
    if os.environ.get("REPORT"):
        print(f"\n{name} {what}: {seconds:.3f} s, {new / nbytes:.2%} new bytes")
    if name in SHARING:
        assert new < nbytes / 100
    return new


COMMANDS = {
    "shard": ["shard", "SRC", "OUT", "--max-shard-size", "80MB"],
    "merge": ["merge", "SRC", "OUT"],
    "extract": ["extract", "SRC", "OUT", "--keep", "layer.*"],
    "rename": ["rename", "SRC", "OUT", "--prefix", "layer.=model.a.very.long.prefix.of.names."],
    "rename in place": ["rename", "SRC", "--map", "norm=mean"],
    "meta": ["meta", "SRC", "--set", "k=" + "w" * 5000],
    "convert": ["convert", "SRC", "OUT", "--layout", "blocks"],
}


@pytest.mark.parametrize("command", COMMANDS)
def test_copies_share_blocks(system, source, command):
    """Less than 1 % is new, the dry run says how much that is, and the values are the same."""
    _, folder = system
    path, model = source
    nbytes = sum(array.nbytes for array in model.values())
    if "OUT" not in COMMANDS[command]:
        changed = folder / "changed"
        measured(system, lambda: cli.run("merge", path, changed), nbytes, "merge")
        path = changed
    out = folder / "out"
    words = [{"SRC": path, "OUT": out}.get(word, word) for word in COMMANDS[command]]
    if command != "meta":
        kept = int(0.99 * nbytes) // 100_000 * 100_000
        for line in cli.output(*words, "--dry-run").splitlines()[:-1]:
            assert "of which up to " in line
            kept -= int(float(line.split("up to ")[1].split(" MB")[0]) * 1e6)
        assert kept <= 0
    measured(system, lambda: cli.run(*words), nbytes, command)
    written = copies.read(out if out.exists() else path)
    if command == "rename":
        model = {
            n.replace("layer.", "model.a.very.long.prefix.of.names."): a for n, a in model.items()
        }
    if command == "rename in place":
        model = {name.replace("norm", "mean"): array for name, array in model.items()}
    if command == "extract":
        model = {name: array for name, array in model.items() if name != "norm"}
    assert copies.same(written, model)
    for made in (out, folder / "changed"):
        if made.is_dir():
            shutil.rmtree(made)
        elif made.exists():
            made.unlink()


def test_merging_shards(system, source):
    """Shards of blocks merge by sharing, too."""
    _, folder = system
    path, model = source
    nbytes = sum(array.nbytes for array in model.values())
    cli.run("shard", path, folder / "shards", "--max-shard-size", "60MB")
    measured(system, lambda: cli.run("merge", folder / "shards", folder / "out"), nbytes, "shards")
    assert copies.same(copies.read(folder / "out"), model)
    shutil.rmtree(folder / "shards")
    (folder / "out").unlink()


def test_files_of_save_file(system, source):
    """Their data does not begin with a block; shards and what is extracted begin like them."""
    name, folder = system
    if name not in SHARING:
        pytest.skip(f"{name} does not share blocks")
    model = source[1]
    nbytes = sum(array.nbytes for array in model.values())
    path = copies.write(folder / "canonical", model, layout="canonical")
    assert copies.data_offset(path) % 4096 != 0
    shards, out = folder / "shards", folder / "out"
    for words in (
        ["shard", path, shards, "--max-shard-size", "80MB"],
        ["merge", shards, out],
        ["extract", path, out, "--keep", "layer.*", "--force"],
    ):
        measured(system, lambda words=words: cli.run(*words), nbytes, f"{words[0]}, canonical")
    assert copies.same(copies.read(shards), model)
    layers = {name: array for name, array in model.items() if name != "norm"}
    assert copies.same(copies.read(out), layers)
    shutil.rmtree(shards)
    path.unlink()
    out.unlink()


def test_sharing_needs_no_free_space(system, source):
    """No space is reserved for blocks that are shared, also if the header is long."""
    name, folder = system
    if name not in SHARING:
        pytest.skip(f"{name} does not share blocks")
    model = {f"{i}." + "x" * 80: np.full((110, 1024), i, "f4") for i in range(1000)}  # 450 MB
    path, out = copies.write(folder / "large", model), folder / "out"
    assert copies.data_offset(path) > 65536
    used(folder)  # btrfs counts what was written only after a sync
    state = os.statvfs(folder)
    assert state.f_bavail * state.f_frsize < path.stat().st_size
    cli.run("merge", path, out)
    assert cli.output("diff", path, out)
    path.unlink()
    out.unlink()


@pytest.mark.parametrize("count", [10, 3000])
def test_a_header_written_last(system, count):
    """Without specs the header goes to 64 KiB before the data, or room is made for a longer one."""
    _, folder = system
    model = {f"{i}." + "x" * 60: np.full(1024 + i % 3, i, "f4") for i in range(count)}
    path = folder / "late"
    with safe_create(path, metadata={"k": "v"}) as writer:
        for name, array in model.items():
            writer.write(name, array)
    assert copies.same(copies.read(path), model)
    assert (copies.data_offset(path) > 65536) == (count > 1000)
    with safe_open(path, "np") as file:
        assert list(file.offset_keys()) == list(model)
    path.unlink()


def test_a_source_on_another_file_system(system, source, tmp_path):
    """Bytes are copied: blocks cannot be shared."""
    path, model = source
    for out in (tmp_path / "out", tmp_path / "shards"):
        cli.run(*(["merge", path, out] if out.name == "out" else ["shard", path, out]))
        assert copies.same(copies.read(out), model)


@pytest.mark.skipif(not os.environ.get("REPORT"), reason="REPORT=1 prints times")
def test_times(system, source):
    """Prints the times of cp, of a merge and of a copy in process."""
    name, folder = system
    path, _ = source
    out = folder / "copy"

    def copied():
        with safe_open(path, "np", backend="pread") as file, safe_create(out, file) as writer:
            writer.copy(file)

    def blocks():
        with (
            safe_open(path, "np", backend="pread") as file,
            safe_create(out, file, layout="blocks") as writer,
        ):
            writer.copy(file)

    ways = {
        "cp --reflink=always": lambda: run("cp", "--reflink=always", str(path), str(out)),
        "cp --reflink=never": lambda: run("cp", "--reflink=never", str(path), str(out)),
        "copy, canonical": copied,
        "copy, blocks": blocks,
        "merge": lambda: cli.run("merge", path, out),
    }
    best = {}
    for _ in range(3):
        for way, work in ways.items():
            out.unlink(missing_ok=True)
            used(folder)
            begin = time.monotonic()
            work()
            best[way] = min(best.get(way, 1e9), time.monotonic() - begin)
    for way, seconds in best.items():
        print(f"\n{name} {way}: {seconds * 1000:.1f} ms")
