"""What ranks send each other is data in a fixed format, and nonsense is refused by all of them."""

import datetime
import os
import pickle
import resource
import struct

import pytest

torch = pytest.importorskip("torch")
dist = pytest.importorskip("torch.distributed")

from safetensors import SafetensorError  # noqa: E402
from safetensors._group import communicator, message  # noqa: E402
from safetensors._group.message import Malformed, Message, decode, encode  # noqa: E402
from safetensors._remote.open import reopen  # noqa: E402
from safetensors.torch import load_files, load_into, save_file, save_files  # noqa: E402
from support.rank_faults import Ranks, values  # noqa: E402
from support.servers import RangeServer  # noqa: E402

LIMIT = datetime.timedelta(seconds=20)
MAX = 1 << 20
REFUSED = "rank {} sent what no rank with this version of safetensors sends: "

MESSAGES = [
    Message(),
    Message(["", "a", "é\U0001f600", "\udcff\x00"], [0, -(1 << 63), (1 << 63) - 1], b"\x80\x00"),
    Message(["x" * 5000], range(3000), bytes(5000)),
]


@pytest.mark.parametrize("sent", MESSAGES)
def test_messages_arrive_as_they_were(sent):
    found = decode("purpose", encode("purpose", sent, MAX))
    assert (found.texts, list(found.numbers), found.data) == (
        list(sent.texts),
        list(sent.numbers),
        sent.data,
    )


def test_every_prefix_of_a_message_is_refused():
    data = encode("files", MESSAGES[1], MAX)
    for length in range(len(data)):
        with pytest.raises(Malformed, match="it "):
            decode("files", data[:length])
    with pytest.raises(Malformed, match="its counts"):
        decode("files", data + b"\0")


def test_every_changed_byte_is_refused_or_changes_the_content():
    """No change makes another allocate more than what it received."""
    data = encode("files", MESSAGES[1], MAX)
    for at in range(len(data)):
        changed = bytearray(data)
        changed[at] ^= 0x41
        try:
            found = decode("files", changed)
        except Malformed:
            continue
        assert encode("files", found, MAX) == changed


def test_a_message_has_a_limit():
    with pytest.raises(SafetensorError, match=r"would send 1048\d{3} bytes \(files\) to other"):
        encode("files", Message(data=bytes(MAX - 40)), MAX)


class Evil:
    """A pickle of it makes a folder in the process that loads it."""

    def __init__(self, folder):
        self.folder = folder

    def __reduce__(self):
        return os.mkdir, (self.folder,)


def together(filenames, **given):
    return load_files(filenames, group=dist.group.WORLD, timeout=LIMIT, **given)


def sends(rank, filenames, culprit, purpose, change):
    """Loads while one rank sends other bytes than it should for one purpose."""
    if rank == culprit:
        original = message.encode

        def other(its, sent, most):
            return change(sent) if its == purpose else original(its, sent, most)

        message.encode = other
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    try:
        return sorted(together(filenames))
    finally:
        assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 200 << 10  # in KiB


def encoded(purpose, *content):
    return lambda sent: encode(purpose, Message(*content), MAX)


def changed(purpose, change):
    """Returns what sends other bytes than those of the message."""
    return lambda sent: change(encode(purpose, sent, MAX))


def header(texts, nbytes, numbers, data):
    start = struct.pack("<8s8sQQQQ", b"stranks1", b"files", texts, nbytes, numbers, data)
    return lambda sent: start


NONSENSE = {
    "zeros": ("files", lambda sent: bytes(5000), "it begins with"),
    "another version": ("files", changed("files", lambda d: b"stranks2" + d[8:]), "b'stranks2'"),
    "another purpose": ("files", encoded("parts"), "it is for b'parts"),
    "too short": ("files", changed("files", lambda d: d[:-1]), "its counts are those of"),
    "too long": ("files", changed("files", lambda d: d + b"x"), "its counts are those of"),
    "many strings": ("files", header(1 << 60, 0, 0, 0), "its counts are those of"),
    "many numbers": ("files", header(0, 0, 1 << 60, 0), "its counts are those of"),
    "many bytes": ("files", header(0, 0, 0, (1 << 64) - 1), "its counts are those of"),
    "no UTF-8": ("files", changed("files", lambda d: d[:-1] + b"\xff"), "not UTF-8"),
    "no such file": ("files", encoded("files", ["model.safetensors"], [1]), "integers outside"),
    "a file below 0": ("files", encoded("files", ["model.safetensors"], [-1]), "integers outside"),
    "no parts": ("parts", encoded("parts"), "parts of 0 tensors, not of 3"),
    "too many parts": ("parts", encoded("parts", (), [4]), "a count of 4"),
    "a part without axes": ("parts", encoded("parts", (), [1, 0, 0, 0, 0]), "with 0 axes"),
    "a part too few": ("parts", encoded("parts", (), [1, -1, 0, 1, 0]), "part 1 of 1"),
    "a part below 0": ("parts", encoded("parts", (), [1, -1, 0, 0, -1]), "part -1 of 1"),
    "other axes": ("parts", encoded("parts", (), [1, 1, 1, 0, 1, 0, 0, 0]), "a part with 1 axes"),
    "outside": (
        "parts",
        encoded("parts", (), [1, 2, 1, 0, 9, 1, 0, 12, 0, 0, 0]),
        "the range 0 to 9 on an axis of 4",
    ),
    "backwards": (
        "parts",
        encoded("parts", (), [1, 2, 1, 3, 2, 1, 0, 12, 0, 0, 0]),
        "the range 3 to 2 on an axis of 4",
    ),
    "overlapping": (
        "parts",
        encoded("parts", (), [1, 2, 2, 0, 2, 1, 3, 1, 0, 12, 0, 0, 0]),
        "the range 1 to 3 on an axis of 4",
    ),
}


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    path = tmp_path_factory.mktemp("model") / "model.safetensors"
    save_file({name: torch.zeros(4, 3) for name in "abc"}, path)
    return path


def assert_refused(found, culprit, text):
    """All ranks raise the same error, which names the rank that sent nonsense."""
    assert len({each.text for each in found}) == 1
    for each in found:
        assert each.kind.startswith("SafetensorError ")
        assert REFUSED.format(culprit) in each.text
        assert text in each.text
        assert each.works


@pytest.mark.slow
@pytest.mark.parametrize("name", NONSENSE)
def test_nonsense_is_refused_by_all_ranks(model, name):
    purpose, change, text = NONSENSE[name]
    with Ranks(2, sends, model, 1, purpose, change) as ranks:
        assert_refused(ranks.outcomes(), 1, text)


@pytest.mark.slow
@pytest.mark.parametrize("purpose", ["sources", "files", "opened", "direct", "parts", "end"])
def test_a_pickle_is_not_loaded(model, tmp_path, purpose):
    evil = tmp_path / "evil"
    with Ranks(2, sends, model, 1, purpose, lambda sent: pickle.dumps(Evil(evil))) as ranks:
        assert_refused(ranks.outcomes(), 1, "it begins with b'\\x80")
    assert not evil.exists()
    pickle.loads(pickle.dumps(Evil(evil)))
    assert evil.exists()


def sends_into(rank, path, folder):
    if rank == 1:
        message.encode = lambda *_: pickle.dumps(Evil(folder))
    load_into({"a": torch.zeros(4, 3)}, path, group=dist.group.WORLD, timeout=LIMIT)


@pytest.mark.slow
def test_nor_by_load_into(model, tmp_path):
    with Ranks(2, sends_into, model, tmp_path / "evil") as ranks:
        assert_refused(ranks.outcomes(), 1, "it begins with b'\\x80")
    assert not (tmp_path / "evil").exists()


def claims(rank, path, culprit, length):
    """A rank says that its messages are very long."""
    if rank == culprit:
        frame = length.to_bytes(8, "little") + bytes(4088)
        communicator._frame_of = lambda data: torch.frombuffer(bytearray(frame), dtype=torch.uint8)
    return sends(rank, path, None, "", None)


@pytest.mark.slow
@pytest.mark.parametrize("length", [(1 << 64) - 1, 1 << 40, (256 << 20) + 1])
def test_a_claimed_length_is_not_allocated(model, length):
    with Ranks(2, claims, model, 1, length) as ranks:
        assert_refused(ranks.outcomes(), 1, f"a message of {length} bytes; at most 268435456 are")


def tells(rank, texts):
    with communicator.communicator(dist.group.WORLD, LIMIT) as comm:
        told = comm.gather("test", Message([texts * rank], [rank] * 1000 * rank))
        return [(len(each.texts[0]), len(each.numbers)) for each in told] + [
            len(comm.share("test", lambda: Message(data=bytes(100_000))).data)
        ]


@pytest.mark.slow
def test_long_messages_of_different_ranks():
    expected = [(0, 0), (5000, 1000), (10_000, 2000), 100_000]
    assert values(3, tells, "x" * 5000) == [expected] * 3


@pytest.fixture(scope="module")
def served(tmp_path_factory):
    folder = tmp_path_factory.mktemp("model")
    save_files({name: torch.zeros(4, 3) for name in "abc"}, folder, max_shard_size=48)
    with RangeServer({f"/m/{path.name}": path.read_bytes() for path in folder.iterdir()}) as server:
        yield server


HEADERS = {
    "other counts": (("a",), (1, 0), "the starts of 1 files, not of 3"),
    "no integers": (("a",) * 3, (), "0 integers for 3 files"),
    "more bytes than the file": (("a",) * 3, (1, 2, 1, 0, 1, 0), "2 first bytes of a file with 1"),
    "a size below 0": (("a",) * 3, (-1, 0) * 3, "0 first bytes of a file with -1"),
    "too few bytes": (("a",) * 3, (9, 9) * 3, "0 bytes, too few"),
}


@pytest.mark.slow
@pytest.mark.parametrize("name", HEADERS)
def test_nonsense_about_files_of_a_url(served, name):
    texts, numbers, text = HEADERS[name]
    url = served.url("/m/model.safetensors.index.json")
    change = encoded("headers", texts, numbers)
    with Ranks(2, sends, url, 0, "headers", change) as ranks:
        assert_refused(ranks.outcomes(), 0, text)


SHARDS = {
    "an odd integer": ((), (1,), "other integers than two each"),
    "below": ((), (-2, 0), "negative counts"),
    "too few strings": (("a", "b"), (-1, -1), "2 strings, too few"),
    "many names": (("a", "b", "c"), (1 << 60, -1), "3 strings, too few"),
    "too many strings": (("a", "b", "c", "d"), (-1, -1), "1 too many"),
    "many files": ((), (-1,) * 200_002, "100001 files; a model has at most 100000"),
}


@pytest.mark.slow
@pytest.mark.parametrize("name", SHARDS)
def test_nonsense_about_the_files_behind_a_url(served, name):
    texts, numbers, text = SHARDS[name]

    def change(sent):
        return encode("shards", Message(texts, numbers), MAX * 2)

    with Ranks(2, sends, served.url("/m/"), 0, "shards", change) as ranks:
        assert_refused(ranks.outcomes(), 0, text)


@pytest.mark.slow
def test_a_rank_cannot_send_others_to_another_host(served):
    """They would send their tokens there."""
    with RangeServer({"/m/model.safetensors": b""}) as other:
        url = other.url("/m/model.safetensors")
        change = encoded("shards", ["model", "", url], [-1, -1])
        with Ranks(2, sends, served.url("/m/"), 0, "shards", change) as ranks:
            found = ranks.outcomes()
        assert other.requests == 0
    assert len({each.text for each in found}) == 1
    assert "was named by another process, and is not part of" in found[0].text


@pytest.mark.parametrize(
    ("asked", "named"),
    [
        ("https://a.example/m/", "https://b.example/m/model.safetensors"),
        ("https://a.example/m/", "http://a.example/m/model.safetensors"),
        ("https://a.example/m/", "https://a.example:8443/m/model.safetensors"),
        ("https://a.example/m/", "https://a.example/other/model.safetensors"),
        ("https://a.example/m/", "https://a.example/m/../x.safetensors"),
        ("https://a.example/m/", "https://a.example/m/%2e%2e/x.safetensors"),
        ("https://a.example/m/", "https://a.example/m/x.safetensors?to=elsewhere"),
        ("https://a.example/m/x?sig=1", "https://a.example/m/x?sig=2"),
        ("https://a.example/m/", "hf://m/model/model.safetensors"),
        ("hf://org/repo", "hf://org/other@main/model.safetensors"),
        ("hf://org/repo", "hf://datasets/org/repo@main/model.safetensors"),
        ("hf://org/repo", "https://huggingface.co/org/repo"),
    ],
)
def test_files_that_another_process_cannot_choose(asked, named):
    with pytest.raises(SafetensorError, match="is not part of"):
        reopen(asked, [named], None)


@pytest.mark.parametrize(
    ("asked", "named"),
    [
        ("https://a.example/m/", "https://a.example/m/sub/model.safetensors"),
        ("https://a.example/m/model.safetensors.index.json", "https://a.example/m/1.safetensors"),
        ("https://a.example/m/../x?sig=1", "https://a.example/m/../x?sig=1"),
        ("hf://org/repo", "hf://org/repo@0123abc/model.safetensors"),
        ("hf://org/repo@main/sub", "hf://org/repo@0123abc/sub/model.safetensors"),
    ],
)
def test_files_of_the_url(asked, named):
    assert len(reopen(asked, [named], None)) == 1


def hides(rank):
    """A rank writes what it likes to the store of the group."""
    from safetensors._group import board

    if rank == 1:
        board.Board._propose = _propose_nonsense
    with communicator.communicator(dist.group.WORLD, LIMIT) as comm:
        if rank == 1:
            raise ValueError("x")
        comm.gather("test")


def _propose_nonsense(self, verdict):
    found = self.store.compare_set("verdict", "", "\x1f" * (3 << 20))
    self.store.set("alarm", "")
    return found.decode()


@pytest.mark.slow
def test_a_verdict_has_a_limit():
    with Ranks(2, hides) as ranks:
        found = ranks.outcomes()
    assert len(found[0].text) == (1 << 20) + len("...")
