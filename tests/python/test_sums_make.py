"""Sums of files that exist: safetensors.sums, whole files, several threads, hostile files."""

import hashlib
import json
import os
import time

import numpy as np
import pytest

from safetensors import SafetensorError, _extra, sums
from safetensors import numpy as stn
from safetensors._checking import digests as _digests
from safetensors._checking import sums as _sums
from support import children, cli, memory
from support.file_builder import raw


@pytest.fixture
def folder(tmp_path):
    """A model of several files, whose tensors have different lengths."""
    arrays = {f"t{i}": np.full(i * 1_000_003, i, "u1") for i in range(8)}
    stn.save_files(arrays, tmp_path, max_shard_size="9MB")
    return tmp_path


def test_make_write_and_read(folder):
    """As `hash --write`, and as a save with sums."""
    made = sums.make(folder)
    assert sums.write(folder) == str(folder / "model.sums.json")
    written = (folder / "model.sums.json").read_bytes()
    assert made.to_bytes() == written
    assert sums.read(folder / "model.sums.json") == made
    cli.output("hash", folder, "--write")
    assert (folder / "model.sums.json").read_bytes() == written
    assert sums.make(os.fsencode(folder / "model.safetensors.index.json")) == made
    both = sums.make(folder, "sha256")
    assert both.whole()["sha256"] == cli.output("hash", "--whole", folder).strip()
    shard = min(folder.glob("model-00001-*.safetensors"))
    assert sums.write(str(shard), fsync=True) == str(shard).replace(".safetensors", ".sums.json")
    cli.output("hash", shard, "--check")


def test_what_make_refuses(folder, tmp_path):
    """No algorithm; tensors in two files; an index that names a tensor which is not there."""
    with pytest.raises(ValueError, match="at least one"):
        sums.make(folder, [])
    with pytest.raises(FileNotFoundError):
        sums.make(tmp_path / "none.safetensors")
    with pytest.raises(FileNotFoundError, match="No sums"):
        sums.read(folder / "none.sums.json")
    index = folder / "model.safetensors.index.json"
    content = json.loads(index.read_bytes())
    content["weight_map"]["more"] = min(content["weight_map"].values())
    index.write_text(json.dumps(content))
    with pytest.raises(SafetensorError, match="'more'.*which has no such tensor"):
        sums.make(folder)
    index.unlink()
    for file in folder.glob("model-*.safetensors"):
        file.rename(folder / file.name.replace("-of-", "-"))
    os.link(min(folder.glob("model-00001-*")), folder / "copy.safetensors")
    with pytest.raises(SafetensorError, match="is in two files"):
        sums.make(folder)
    (folder / "copy.safetensors").write_bytes(b"\xff" * 9)
    with pytest.raises(SafetensorError):
        sums.make(folder)


def test_whole_files(folder):
    """Their SHA-256 is written on request, and compared by a check without one."""
    cli.output("hash", folder, "--write", "--files")
    content = json.loads((folder / "model.sums.json").read_bytes())
    for name, each in content["files"].items():
        assert each["sha256"] == hashlib.sha256((folder / name).read_bytes()).hexdigest()
    assert sums.make(folder, files=True) == sums.read(folder / "model.sums.json")
    cli.output("hash", folder, "--check")
    name = next(iter(content["files"]))
    content["files"][name]["sha256"] = "0" * 64
    (folder / "model.sums.json").write_text(json.dumps(content))
    found = cli.parsed("hash", folder, "--check", status=1)
    assert not found["damaged"]
    assert len(found["problems"]) == 1
    assert f"{name}: the SHA-256 of the file is " in found["problems"][0]
    assert "--files needs --write" in cli.complaint("hash", folder, "--files")


def test_threads_hash_the_longest_first(monkeypatch):
    """Each tensor once, on several threads; an error ends all of them."""
    monkeypatch.setattr(_digests, "processors", lambda: 4)
    begun, done = [], {}

    def read(begin, nbytes):
        begun.append(begin)
        return bytes(nbytes)

    def jobs(tasks):
        for i in range(1, 20):
            job = _digests.Job(str(i), "U8", (i << 20,), i << 40, i << 20, read)
            tasks.add_tensor(
                job, ["xxh3-128", "sha256"], 4 << 20, lambda x, i=i: done.update({i: x})
            )

    reports = []
    tasks = _digests.Tasks(reports.append)
    jobs(tasks)
    tasks.run()
    assert sum(reports) == sum(range(1, 20)) << 20
    assert begun[0] >> 40 >= 16
    assert done.keys() == set(range(1, 20))
    for i in (1, 19):
        wanted = hashlib.sha256(f"U8 [{i << 20}]\n".encode() + bytes(i << 20)).hexdigest()
        assert done[i].digests["sha256"] == wanted
        assert len(done[i].blocks) == -(-i // 4) * 8
    one = _digests.Tasks()
    before = dict(done)
    jobs(one)
    one.run(threads=1)
    assert done == before

    def stop(_):
        raise KeyboardInterrupt

    stopped = _digests.Tasks(stop)
    jobs(stopped)
    begun.clear()
    with pytest.raises(KeyboardInterrupt):
        stopped.run()
    assert len(begun) < 100


def test_a_file_that_becomes_shorter(tmp_path):
    """While it is read: one error."""
    path = cli.write(tmp_path / "m.safetensors", {"a": raw("U8", (1000,))})
    with _digests.HashedFile(str(path)) as file:
        os.truncate(path, 900)
        tasks = _digests.Tasks()
        _digests.add_file(tasks, file, ["xxh3-128"])
        with pytest.raises(SafetensorError, match="was truncated") as caught:
            tasks.run()
    assert (caught.value.code, caught.value.path) == ("file_changed", str(path))


def test_a_file_that_is_replaced(tmp_path):
    """The bytes and the header are of one file, which may have lost its name."""
    path = cli.write(tmp_path / "m.safetensors", {"a": raw("U8", (1000,))})
    other = cli.write(tmp_path / "n.safetensors", {"longer name": raw("U8", (1000,))})
    start = path.read_bytes()[:-1000]
    with _digests.HashedFile(str(path)) as file:
        os.replace(other, path)
        (job,) = file.jobs()
        assert (job.name, job.begin, file.start) == ("a", len(start), start)


HOSTILE = """
    import resource, time
    from safetensors import SafetensorError, sums
    text, count = sys.argv[2].encode(), int(sys.argv[3])
    with open(sys.argv[1], "wb") as file:
        file.write(text[:text.index(b"@")])
        middle = text[text.index(b"@") + 1 : text.rindex(b"@")]
        numbered = b"%07d" in middle
        for begin in range(0, count, 10_000):
            end = min(begin + 10_000, count)
            file.write(b"".join(middle % i if numbered else middle for i in range(begin, end)))
        file.write(text[text.rindex(b"@") + 1 :])
        assert file.tell() <= 100_000_000, file.tell()
        nbytes = file.tell()
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    begun = time.process_time()
    try:
        sums.read(sys.argv[1])
    except SafetensorError as error:
        print(len(str(error)) < 2000)
    used = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before
    print(used * 1024 < 9 * nbytes + (64 << 20), time.process_time() - begun < 30, used)
"""


@pytest.mark.parametrize(
    ("text", "count"),
    [
        ("@{@", 2_000_000),
        ('{"a":@[@', 2_000_000),
        ('{"a":[@{},@0]}', 600_000),
        ('{"a":"@x@"}', 2_000_000),
        ('{"@x@":1}', 2_000_000),
        ('{@"%07d":0,@"a":1}', 300_000),
        ('{"files":{@"%07d":{"size":0,"header":"xxh3-128:' + "0" * 32 + '"},@"a":1}}', 40_000),
        (
            '{"tensors":{@"%07d":{"file":"a","digest":["xxh3-128:' + "0" * 32 + '"]},@"a":1}}',
            40_000,
        ),
        ('{"tensors":{"a":{"blocks":"@AAAA@"}}}', 600_000),
    ],
    ids=["objects", "lists", "empty", "text", "key", "keys", "files", "tensors", "blocks"],
)
def test_long_hostile_sums(tmp_path, text, count):
    """Megabytes of each are refused in memory that is a small multiple of the file, and in time."""
    printed = children.run(HOSTILE, tmp_path / "m.sums.json", text, count).split()
    assert printed[:3] == ["True", "True", "True"]


ACCEPTED = """
import hashlib, json, resource
from safetensors import _extra, sums
from safetensors._checking.verify import Verifier

def line(name):
    return json.dumps(name).encode() + b" " + b"0" * 64 + b"\\n"

names = eval(sys.argv[2])
digests = "sha256:" + "0" * 64
whole = hashlib.sha256()
for name in sorted(names):
    whole.update(line(name))
with open(sys.argv[1], "w", encoding="utf-8") as file:
    file.write('{"format":"safetensors-sums","version":1,"block_size":4194304,"whole":["sha256:')
    file.write(whole.hexdigest() + '"],')
    file.write('"files":{"m":{"size":1,"header":"%s"}},"tensors":{' % digests)
    for i, name in enumerate(names):
        file.write(',' * (i > 0) + json.dumps(name, ensure_ascii=False))
        file.write(':{"file":"m","digest":["%s"]}' % digests)
    file.write('}}')
    nbytes = file.tell()
del names, name
from support.memory import peak_growth
growth = peak_growth(lambda: Verifier(sums.read(sys.argv[1])).digests("m"))
print(growth < 16 * nbytes + (64 << 20), growth / nbytes)
"""


@pytest.mark.skipif(not memory.can_measure_peak(), reason="needs Linux's /proc/self/clear_refs")
@pytest.mark.parametrize(
    "names",
    [
        '["%07d" % i for i in range(150_000)]',
        '["\u00e9" * 8_000_000]',
        '["\U0001f600" * 4_000_000]',
    ],
    ids=["many", "long", "longer"],
)
def test_long_sums_by_anyone_take_little_memory(tmp_path, names):
    """All that a load makes of valid sums, before it compares anything."""
    printed = children.run(ACCEPTED, tmp_path / "m.sums.json", names).split()
    assert printed[0] == "True", printed


@pytest.mark.parametrize("character", ["a", "\u00e9", "\u20ac", "\U0001f600", "\n"])
def test_the_digest_of_the_whole_with_long_names(character):
    """Names are escaped piece by piece."""
    for count in (1, 65_535, 65_536, 65_537, 131_072, 200_001):
        names = ["z", character * count, "a" + character * count]
        digests = {name: f"{i:064x}" for i, name in enumerate(names)}
        lines = "".join(f"{json.dumps(name)} {digests[name]}\n" for name in sorted(names)).encode()
        assert _sums.whole_digest(digests) == hashlib.sha256(lines).hexdigest()
        made = sums.Sums(
            {"m": sums.FileSums(1, {"xxh3-128": "0" * 32})},
            {name: sums.TensorSums("m", {"xxh3-128": digests[name][:32]}) for name in names},
        )
        text = made.to_bytes()
        lines = b"".join(
            json.dumps(name).encode() + f" {digests[name][:32]}\n".encode()
            for name in sorted(names)
        )
        assert json.loads(text)["whole"] == [_extra._xxh3_128(lines)]


@pytest.mark.timed
def test_long_sums_are_read(tmp_path):
    """Of 20,000 tensors."""
    digests = sums.Sums(
        {"m.safetensors": sums.FileSums(1, {"xxh3-128": "0" * 32})},
        {
            f"layers.{i}.weight": sums.TensorSums("m.safetensors", {"xxh3-128": f"{i:032x}"})
            for i in range(20_000)
        },
    )
    (tmp_path / "m.sums.json").write_bytes(digests.to_bytes())
    begun = time.process_time()
    assert sums.read(tmp_path / "m.sums.json") == digests
    assert time.process_time() - begun < 20


def test_the_module():
    """It is imported when it is used, and has what its text says."""
    assert sorted(sums.__all__) == ["FileSums", "Sums", "TensorSums", "make", "read", "write"]
    script = "import safetensors, safetensors.numpy\nprint('safetensors.sums' in sys.modules)"
    assert children.run(script).strip() == "False"


def test_a_pipe(folder):
    """It is refused at once, as a part of a model and as a file: nobody ever writes to it."""
    pipe = sorted(folder.glob("model-*.safetensors"))[-1]
    pipe.unlink()
    os.mkfifo(pipe)
    script = """
        from safetensors import SafetensorError, sums
        for path in sys.argv[1:]:
            try: sums.make(path)
            except SafetensorError as error: assert "found a named pipe" in str(error), error
            else: raise AssertionError("nothing was raised")
    """
    children.run(script, folder, pipe, timeout=60)
