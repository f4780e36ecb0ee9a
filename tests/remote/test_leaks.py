"""Thousands of opens of remote files leave neither memory nor descriptors behind."""

import os

import obstore
import pytest

from safetensors import safe_open
from safetensors._remote.open import open_reader
from support import file_builder, memory
from support.certificates import certificate

OPENS = {"http": 10_000, "https": 1000, "s3": 10_000}
CONTENT = file_builder.to_bytes({"a": file_builder.raw("U8", [1000, 1000])})
MAX_GROWTH = 8 << 20  # bytes


@pytest.fixture(params=["http", "https", "s3"])
def address(request):
    """A file's URL on a real server, and the storage options."""
    if request.param == "s3":
        s3 = request.getfixturevalue("seaweedfs")
        obstore.put(s3.store("models"), "leaks.safetensors", CONTENT)
        keys = {"access_key_id": s3.key, "secret_access_key": s3.secret, "region": s3.region}
        return "s3://models/leaks.safetensors", {"endpoint": s3.endpoint, **keys}
    (request.getfixturevalue("web_folder") / "leaks.safetensors").write_bytes(CONTENT)
    nginx = request.getfixturevalue("nginx")
    return f"{getattr(nginx, request.param)}/leaks.safetensors", {
        "ca_file": str(certificate().authority)
    }


def open_and_read(url, options):
    reader = open_reader(url, options)
    size, first = reader.open(1000)
    assert size == len(CONTENT)
    assert bytes(first) == CONTENT[:1000]
    assert bytes(reader.read(5000, 1000)) == CONTENT[5000:6000]
    reader.close()


def open_handle(url, options):
    with safe_open(url, "np", storage_options=options) as f:
        assert f.keys() == ["a"]
        assert f.get_slice("a")[700].sum() > 0


def descriptors():
    return len(os.listdir("/proc/self/fd"))


@pytest.mark.parametrize("way", [open_and_read, open_handle])
def test_opens(way, address):
    for _ in range(500):  # pools and caches fill
        way(*address)
    before, resident = descriptors(), memory.status("VmRSS")
    for _ in range(OPENS[address[0].partition(":")[0]]):
        way(*address)
    assert descriptors() <= before + 4
    assert memory.status("VmRSS") - resident < MAX_GROWTH


def test_readers_that_are_never_closed(address):
    """A reader that is dropped gives its connections back."""
    url, options = address
    before = descriptors()
    for _ in range(200):
        reader = open_reader(url, options)
        reader.open(1000)
        del reader
    assert descriptors() <= before + 16
