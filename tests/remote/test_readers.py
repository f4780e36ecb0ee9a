"""Readers on real servers: ranges by many threads, changed objects, refusals, limits, redirects."""

import concurrent.futures
import datetime
import os
import random

import obstore
import pytest

from safetensors import SafetensorError
from safetensors._remote.open import open_reader
from support.certificates import certificate

NAME = "folder/model.safetensors"
CONTENT = random.Random(1).randbytes(20 << 20)
SERVERS = ("seaweedfs", "moto", "gcp_storage", "http", "https")


READERS = []


def opened(url, options=None):
    """Returns a reader, which is closed at the end of the test."""
    READERS.append(open_reader(url, options))
    return READERS[-1]


@pytest.fixture(autouse=True)
def _closed():
    yield
    while READERS:
        READERS.pop().close()


class Place:
    """A file on a server: its URL, the storage options, and how to replace it."""

    def __init__(self, url, options, put):
        self.url, self.options, self.put = url, options, put

    def open(self, **options):
        return opened(self.url, self.options | options)


def s3_options(s3):
    keys = {"access_key_id": s3.key, "secret_access_key": s3.secret}
    return {"endpoint": s3.endpoint, "region": s3.region, **keys}


def place(request, server):
    """Returns the place of NAME on a server."""
    if server in ("seaweedfs", "moto"):
        s3 = request.getfixturevalue(server)
        store = s3.store("models")
        url, options = f"s3://models/{NAME}", s3_options(s3)
        return Place(url, options, lambda content: obstore.put(store, NAME, content))
    if server == "gcp_storage":
        gcs = request.getfixturevalue(server)
        options = {"endpoint": gcs.endpoint, "anonymous": True}
        return Place(f"gs://models/{NAME}", options, lambda new: gcs.put("models", NAME, new))
    path = request.getfixturevalue("web_folder") / NAME
    path.parent.mkdir(exist_ok=True)

    def write(content):
        path.write_bytes(content)
        write.time += 5  # nginx's ETag has the time in seconds
        os.utime(path, (write.time, write.time))

    write.time = 1_700_000_000
    nginx = request.getfixturevalue("nginx")
    options = {"ca_file": str(certificate().authority)}
    return Place(f"{getattr(nginx, server)}/{NAME}", options, write)


@pytest.fixture(params=SERVERS)
def anywhere(request):
    """The place of a file on each server, with CONTENT in it."""
    found = place(request, request.param)
    found.put(CONTENT)
    return found


@pytest.fixture
def web(request):
    """The same on nginx without TLS."""
    found = place(request, "http")
    found.put(CONTENT)
    return found


def test_many_threads(anywhere):
    reader = anywhere.open()
    size, first = reader.open(100_000)
    assert (size, bytes(first)) == (len(CONTENT), CONTENT[:100_000])
    choose = random.Random(2)
    parts = [(choose.randrange(size), choose.choice([1, 1000, 1 << 20])) for _ in range(100)]
    parts = [(begin, min(nbytes, size - begin)) for begin, nbytes in parts] + [(0, size)]
    with concurrent.futures.ThreadPoolExecutor(32) as pool:
        for (begin, nbytes), data in zip(
            parts, pool.map(lambda part: bytes(reader.read(*part)), parts), strict=True
        ):
            assert data == CONTENT[begin : begin + nbytes]


def test_a_replaced_object_is_noticed(anywhere):
    if anywhere.url.startswith("gs:"):
        pytest.skip("gcp-storage-emulator has no ETags")
    reader = anywhere.open()
    reader.open(1000)
    anywhere.put(CONTENT[::-1])
    with pytest.raises(SafetensorError, match="changed while it was being read") as caught:
        reader.read(5000, 1000)
    assert caught.value.code == "file_changed"
    again = anywhere.open()
    assert bytes(again.open(1000)[1]) == CONTENT[::-1][:1000]


def test_an_object_that_became_shorter_is_noticed(anywhere):
    reader = anywhere.open()
    reader.open(1000)
    anywhere.put(CONTENT[:2000])
    # Without an ETag that the emulator would compare, obstore itself notices.
    with pytest.raises(SafetensorError, match="changed while it was being read|only 2000 bytes"):
        reader.read(5000, 1000)


def test_a_missing_object(anywhere):
    missing = Place(anywhere.url.replace("model", "none"), anywhere.options, None)
    with pytest.raises(FileNotFoundError, match=r"none\.safetensors") as caught:
        missing.open().open(1000)
    assert isinstance(caught.value, SafetensorError)


@pytest.mark.parametrize(
    "changes", [{"secret_access_key": "wrong"}, {"access_key_id": "AKIAWRONG"}]
)
def test_wrong_keys(request, changes):
    found = place(request, "seaweedfs")
    found.put(CONTENT)
    with pytest.raises(PermissionError, match="access_key_id of storage_options") as caught:
        found.open(**changes).open(1000)
    for secret in changes.values():
        assert secret not in f"{caught.value!r} {caught.value}"


def test_no_keys(request, seaweedfs):
    found = place(request, "seaweedfs")
    found.put(CONTENT)
    anonymous = {"endpoint": seaweedfs.endpoint, "anonymous": True}
    with pytest.raises(PermissionError, match="anonymous"):
        opened(found.url, anonymous).open(1000)


def test_a_signed_url(request, seaweedfs):
    place(request, "seaweedfs").put(CONTENT)
    store = seaweedfs.store("models")
    signed = obstore.sign(store, "GET", NAME, datetime.timedelta(seconds=60))
    reader = opened(signed)
    assert reader.open(1000)[0] == len(CONTENT)
    assert bytes(reader.read(5000, 1000)) == CONTENT[5000:6000]
    forged = signed[:-1] + ("0" if signed[-1] != "0" else "1")
    with pytest.raises(PermissionError) as caught:
        opened(forged).open(1000)
    signature = signed.rpartition("=")[2]
    assert signature[:-1] not in f"{caught.value!r} {caught.value} {reader!r} {reader.name}"


def test_a_redirect_is_followed_once(web, nginx):
    reader = opened(f"{nginx.http}/moved/{NAME}")
    assert reader.open(1000)[0] == len(CONTENT)
    assert bytes(reader.read(5000, 1000)) == CONTENT[5000:6000]


def test_a_slow_line_is_no_timeout(web, nginx):
    """4 MB a second, of a read that takes longer than the idle timeout."""
    reader = opened(f"{nginx.http}/slow/{NAME}", {"idle_timeout": 1.0})
    reader.open(1000)
    assert bytes(reader.read(0, len(CONTENT) // 2)) == CONTENT[: len(CONTENT) // 2]


def test_a_server_that_is_busy_is_asked_again(web, nginx):
    reader = opened(f"{nginx.http}/few/{NAME}", {"tries": 10})
    reader.open(1000)
    for begin in range(0, 20_000, 1000):
        assert bytes(reader.read(begin, 1000)) == CONTENT[begin : begin + 1000]


def test_an_unknown_authority(request, nginx):
    found = place(request, "https")
    found.put(CONTENT)
    with pytest.raises(ConnectionError, match="certificate"):
        opened(found.url, {"tries": 1}).open(1000)
    assert opened(found.url, {"verify": False}).open(1000)[0] == len(CONTENT)
