"""The real servers answer as the other tests expect of them: ranges, ETag, If-Match."""

import ssl
import time
import urllib.error
import urllib.request

import obstore
import obstore.exceptions
import pytest

from support.certificates import certificate

CONTENT = bytes(range(256)) * 4096


def test_s3(s3):
    store = s3.store("models")
    obstore.put(store, "folder/file", CONTENT)
    answer = obstore.get(store, "folder/file", options={"range": (100, 300)})
    assert bytes(answer.bytes()) == CONTENT[100:300]
    assert answer.meta["size"] == len(CONTENT)
    tag = answer.meta["e_tag"]
    obstore.get(store, "folder/file", options={"range": (0, 9), "if_match": tag})
    obstore.put(store, "folder/file", CONTENT[::-1])
    with pytest.raises(obstore.exceptions.PreconditionError):
        obstore.get(store, "folder/file", options={"range": (0, 9), "if_match": tag})


def test_seaweedfs_checks_keys(seaweedfs):
    obstore.put(seaweedfs.store("models"), "private", CONTENT)
    stranger = seaweedfs._replace(secret="wrong").store("models")
    with pytest.raises(obstore.exceptions.BaseError, match="403"):
        obstore.get(stranger, "private")
    with pytest.raises(urllib.error.HTTPError, match="403"):
        urllib.request.urlopen(f"{seaweedfs.endpoint}/models/private")


def read(url, **headers):
    """Returns the URL in the end, the status, and the body."""
    context = ssl.create_default_context(cafile=certificate().authority)
    request = urllib.request.Request(url, headers=headers)
    options = {"context": context} if url.startswith("https") else {}
    with urllib.request.urlopen(request, timeout=30, **options) as answer:
        return answer.url, answer.status, answer.read()


@pytest.mark.parametrize("scheme", ["http", "https"])
def test_nginx(nginx, web_folder, scheme):
    (web_folder / "file").write_bytes(CONTENT)
    base = getattr(nginx, scheme)
    assert read(f"{base}/file")[1:] == (200, CONTENT)
    assert read(f"{base}/file", Range="bytes=7-9")[1:] == (206, CONTENT[7:10])
    assert read(f"{base}/moved/file") == (f"{base}/file", 200, CONTENT)


def test_nginx_limits(nginx, web_folder):
    (web_folder / "large").write_bytes(CONTENT * 8)  # of 8 MiB, 4 come at once
    begin = time.monotonic()
    read(f"{nginx.http}/slow/large")
    assert time.monotonic() - begin > 0.3

    def read_often():
        for _ in range(100):
            read(f"{nginx.http}/few/large", Range="bytes=0-0")

    with pytest.raises(urllib.error.HTTPError, match="503"):
        read_often()


def test_gcp_storage(gcp_storage):
    store = gcp_storage.store("models")
    gcp_storage.put("models", "folder/file", CONTENT)
    answer = obstore.get(store, "folder/file", options={"range": (100, 300)})
    assert bytes(answer.bytes()) == CONTENT[100:300]
