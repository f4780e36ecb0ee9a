"""What the ranks of a group tell each other before they load."""

import datetime
import pathlib
import types

import pytest

torch = pytest.importorskip("torch")
dist = pytest.importorskip("torch.distributed")

from safetensors._group import opening  # noqa: E402
from safetensors._group.agreement import pack, unpack  # noqa: E402
from safetensors._group.column import Column  # noqa: E402
from safetensors._group.parts import UNUSUAL  # noqa: E402
from safetensors._remote.shared import Follower, Leader  # noqa: E402
from safetensors.torch import load_file, load_files, save_file  # noqa: E402
from support.rank_faults import Ranks, values  # noqa: E402
from support.servers import RangeServer  # noqa: E402

LIMIT = datetime.timedelta(seconds=20)


def together(filenames, **given):
    return load_files(filenames, group=dist.group.WORLD, timeout=LIMIT, **given)


def test_parts_are_short_to_send():
    part = (((0, 4), (8, 12)), ((0, 512),))
    taken = [None, UNUSUAL, part, None] + [part] * 10_000
    packed = pack(Column.of(taken))
    assert unpack(packed, Column.of([(12, 512)] * len(taken))).items() == taken
    assert packed[0] == 3
    assert len(packed) < len(taken) + 20
    assert unpack(pack(Column.of([])), Column.of([])).items() == []


def loads(rank, url):
    return sorted(together(url))


def test_a_long_header_is_read_once(tmp_path):
    """One that the first request, of 512 KiB, does not hold."""
    path = tmp_path / "model.safetensors"
    save_file({f"{i:05}." + "x" * 90: torch.full((3,), i) for i in range(6000)}, path)
    content = path.read_bytes()
    assert int.from_bytes(content[:8], "little") > 768 << 10
    with RangeServer({"/model.safetensors": content}) as server:
        first, second, third = values(3, loads, server.url("/model.safetensors"))
        assert first == second == third
        assert len(first) == 6000
        assert server.bytes_sent <= len(content) + 2


def test_ranks_that_reach_different_versions(tmp_path):
    """Such as those behind two caches."""
    path = tmp_path / "model.safetensors"
    save_file({"x": torch.zeros(1 << 18)}, path)
    content = path.read_bytes()
    other = content[:-4] + b"abcd"

    def served(request):
        return other if request.range == "bytes=0-0" else content

    with (
        RangeServer({"/model.safetensors": served}) as server,
        Ranks(2, loads, server.url("/model.safetensors")) as ranks,
    ):
        found = ranks.outcomes()
    assert found[0].text == found[1].text
    assert found[0].text.startswith("rank 1: http://127.0.0.1")
    assert "changed while it was being read" in found[0].text


def loads_other_urls(rank, urls):
    return together(urls[rank])


def test_ranks_with_other_urls(tmp_path):
    path = tmp_path / "model.safetensors"
    save_file({"x": torch.zeros(3)}, path)
    files = {"/a.safetensors": path.read_bytes(), "/b.safetensors": path.read_bytes()}
    with RangeServer(files) as server:
        urls = [server.url("/a.safetensors"), server.url("/b.safetensors?token=secret")]
        with Ranks(2, loads_other_urls, urls) as ranks:
            found = ranks.outcomes()
        assert server.requests == 0
    text = "the ranks load different files: rank 1 has {}/b.safetensors?token=..., rank 0 has {}/a"
    for each in found:
        assert each.text.startswith(text.format(server.url(), server.url()))


def loads_copies(rank, folders, verify=None):
    return together(folders[rank], verify=verify)["x"].tolist()


def test_copies_of_a_file_on_each_machine(tmp_path):
    """Their folders may have different names."""
    folders = [tmp_path / "one", tmp_path / "two"]
    for folder in folders:
        folder.mkdir()
        save_file({"x": torch.arange(3)}, folder / "model.safetensors")
    assert values(2, loads_copies, folders) == [[0, 1, 2]] * 2
    save_file({"x": torch.arange(4)}, folders[1] / "model.safetensors")
    with Ranks(2, loads_copies, folders) as ranks:
        found = ranks.outcomes()
    assert found[0].text == found[1].text
    assert "rank 1 has a file of 96 bytes whose header has the checksum" in found[0].text


@pytest.mark.parametrize("count", [3, 1_000_000])
@pytest.mark.parametrize("verify", [None, True])
def test_copies_with_other_values(tmp_path, count, verify):
    folders = [tmp_path / "one", tmp_path / "two"]
    for value, folder in enumerate(folders):
        folder.mkdir()
        save_file({"x": torch.full((count,), value)}, folder / "model.safetensors", sums=True)
    with Ranks(2, loads_copies, folders, verify) as ranks:
        found = ranks.outcomes()
    assert found[0].text == found[1].text
    assert "and samples of its data xxh3-128:" in found[0].text


@pytest.mark.parametrize(("nbytes", "reads"), [(0, 1), (99, 1), (64 << 12, 1), (1 << 30, 64)])
def test_samples_are_few_and_lie_within_the_data(monkeypatch, nbytes, reads):
    places = []

    def read(handle, begin, nbytes, verify):
        places.append((begin, begin + nbytes))
        return bytes(nbytes)

    monkeypatch.setattr(opening, "_core", types.SimpleNamespace(_read_range=read))
    opening._sampled(None, 1000, nbytes, 64)
    assert len(places) == reads
    assert places == sorted(places)
    assert places[0][0] >= 1000
    assert places[-1][1] <= 1000 + nbytes
    assert sum(end - begin for begin, end in places) == min(nbytes, 64 << 12)


class Member:
    """A reader of a program's own."""

    def __init__(self, path):
        self.name = "member"
        self._content = pathlib.Path(path).read_bytes()

    def open(self, nbytes):
        return len(self._content), self._content[:nbytes]

    def read(self, offset, nbytes):
        return self._content[offset : offset + nbytes]


def loads_a_reader(rank, path):
    loaded = together([Member(path)])
    expected = load_file(path)
    return all(torch.equal(loaded[name], expected[name]) for name in expected)


def test_readers_of_a_program(tmp_path):
    path = tmp_path / "model.safetensors"
    save_file({"x": torch.randn(1000, 1000), "y": torch.randn(5)}, path)
    assert values(2, loads_a_reader, path) == [True, True]


class Versioned(Member):
    def version(self):
        return f"{len(self._content)} bytes"


def test_the_first_bytes_of_a_reader_go_to_others(tmp_path):
    path = tmp_path / "x"
    path.write_bytes(bytes(range(100)))
    leader = Leader(Versioned(path))
    assert leader.open(10) == (100, bytes(range(10)))
    assert leader.read(10, 20) == bytes(range(10, 30))  # the rest of a header
    start = leader.start()
    assert leader.read(30, 5) == bytes(range(30, 35))  # data
    assert (start.size, start.first) == (100, bytes(range(30)))
    follower = Follower(Versioned(path), start)
    assert follower.open(10) == (100, bytes(range(10)))
    assert follower.read(10, 20) == bytes(range(10, 30))
    assert follower.read(25, 20) == bytes(range(25, 45))
    path.write_bytes(bytes(101))
    with pytest.raises(Exception, match="it was 100 bytes, by now 101 bytes"):
        Follower(Versioned(path), start).open(10)
