"""Objects of real stores: what is read, versions, credentials, cancelling, the end of a process."""

import concurrent.futures
import gc
import os
import subprocess
import sys
import textwrap
import time

import obstore
import pytest

from safetensors import SafetensorError
from safetensors._remote import objects
from safetensors._remote.settings import Settings
from safetensors._remote.urls import Url
from support import real_servers
from support.misbehaving import MisbehavingServer
from support.object_readers import (
    CANARY,
    CONTENT,
    OPTIONS,
    from_environment,
    no_credentials,
    reader,
)
from support.servers import RangeServer

pytestmark = pytest.mark.usefixtures(no_credentials.__name__)


@pytest.fixture(scope="module")
def weed():
    """SeaweedFS with a bucket of a few objects."""
    with real_servers.seaweedfs() as s3:
        store = s3.make_bucket("weights")
        for name in ("model.safetensors", "folder/b c%20.safetensors", "folder/a.safetensors"):
            obstore.put(store, name, CONTENT)
        obstore.put(store, "folder/notes.txt", b"notes")
        obstore.put(store, "folder/deeper/d.safetensors", b"deeper")
        obstore.put(store, "empty.safetensors", b"")
        yield s3


@pytest.fixture
def at_weed(weed, monkeypatch):
    """The variables that lead to SeaweedFS."""
    for name, value in weed.environment().items():
        monkeypatch.setenv(name, value)
    return weed


# SeaweedFS


def test_one_request_has_the_size_and_the_first_bytes(at_weed):
    opened = from_environment("s3://weights/model.safetensors")
    size, first = opened.open(1000)
    assert (size, bytes(first)) == (len(CONTENT), CONTENT[:1000])
    size, first = opened.open(10**9)
    assert (size, bytes(first)) == (len(CONTENT), CONTENT)
    assert bytes(opened.read(5, 7)) == CONTENT[5:12]
    assert bytes(opened.read(len(CONTENT) - 3, 3)) == CONTENT[-3:]
    assert bytes(opened.read(7, 0)) == b""


def test_names_are_taken_as_they_are_written(at_weed):
    size, _ = from_environment("s3://weights/folder/b c%20.safetensors").open(1)
    assert size == len(CONTENT)


def test_an_empty_object(at_weed):
    assert from_environment("s3://weights/empty.safetensors").open(10) == (0, b"")


def test_a_read_past_the_end_raises(at_weed):
    opened = from_environment("s3://weights/model.safetensors")
    opened.open(1)
    for offset in (len(CONTENT) - 1, len(CONTENT)):
        with pytest.raises(SafetensorError):
            opened.read(offset, 2)


@pytest.mark.parametrize("name", ["nothing", "folder", "folder/"])
def test_missing_objects(at_weed, name):
    with pytest.raises(FileNotFoundError, match=rf"s3://weights/{name}.*404") as raised:
        from_environment(f"s3://weights/{name}").open(10)
    assert isinstance(raised.value, SafetensorError)


def test_a_missing_bucket(at_weed):
    with pytest.raises(FileNotFoundError, match="NoSuchBucket"):
        from_environment("s3://no-such-bucket/x").open(10)


@pytest.mark.parametrize(
    ("options", "used"),
    [
        ({"anonymous": True}, "AccessDenied.*anonymous"),
        (
            {"access_key_id": "wrong", "secret_access_key": CANARY},
            "InvalidAccessKeyId.*access_key_id of storage_options",
        ),
    ],
)
def test_denied_access_names_the_credentials(at_weed, options, used):
    with pytest.raises(PermissionError, match=used) as raised:
        from_environment("s3://weights/model.safetensors", **options).open(10)
    assert_no_secret(raised.value)


def test_a_wrong_secret_of_the_environment(at_weed, monkeypatch):
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", CANARY)
    with pytest.raises(PermissionError, match="SignatureDoesNotMatch.*AWS_ACCESS_KEY_ID") as raised:
        from_environment("s3://weights/model.safetensors").open(10)
    assert_no_secret(raised.value)


def test_a_profile_is_read_by_boto3(at_weed, monkeypatch, tmp_path):
    pytest.importorskip("boto3", reason="boto3 is not installed")
    folder = tmp_path / ".aws"
    folder.mkdir()
    keys = f"aws_access_key_id={at_weed.key}\naws_secret_access_key={at_weed.secret}\n"
    (folder / "credentials").write_text(f"[default]\n{keys}[research]\n{keys}")
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        monkeypatch.delenv(name)
    assert from_environment("s3://weights/model.safetensors").open(1)[0] == len(CONTENT)
    monkeypatch.setenv("AWS_PROFILE", "research")
    assert from_environment("s3://weights/model.safetensors").open(1)[0] == len(CONTENT)
    with pytest.raises(PermissionError, match="profile 'none' of storage_options"):
        from_environment("s3://weights/model.safetensors", profile="none")


def test_another_version_is_noticed(at_weed):
    store = at_weed.store("weights")
    obstore.put(store, "changes.safetensors", CONTENT)
    opened = from_environment("s3://weights/changes.safetensors")
    opened.open(10)
    obstore.put(store, "changes.safetensors", CONTENT[::-1])
    with pytest.raises(SafetensorError, match="changed while it was being read") as raised:
        opened.read(0, 10)
    assert raised.value.code == "file_changed"
    obstore.delete(store, "changes.safetensors")
    with pytest.raises(FileNotFoundError):
        opened.read(0, 10)


def test_listing_a_folder(at_weed):
    def listed(url):
        return objects.listing(Url.parse(url), Settings.of({}, OPTIONS))

    expected = ["a.safetensors", "b c%20.safetensors", "notes.txt"]
    assert listed("s3://weights/folder") == expected
    assert listed("s3://weights/folder/") == expected
    assert listed("s3://weights/nothing") == []
    assert "model.safetensors" in listed("s3://weights")
    with pytest.raises(FileNotFoundError):
        listed("s3://no-such-bucket/folder")


def test_threads_share_a_reader_and_stores_are_shared(at_weed):
    opened = from_environment("s3://weights/model.safetensors")
    opened.open(1)
    with concurrent.futures.ThreadPoolExecutor(16) as pool:
        parts = pool.map(lambda at: bytes(opened.read(at, 1024)), range(0, len(CONTENT), 1024))
        assert b"".join(parts) == CONTENT
    other = from_environment("s3://weights/other.safetensors")
    assert other._bucket._store is opened._bucket._store
    slower = from_environment("s3://weights/other.safetensors", idle_timeout=99.0)
    assert slower._bucket._store is not opened._bucket._store


def test_opening_does_not_leak(at_weed):
    def descriptors():
        gc.collect()
        return len(os.listdir("/proc/self/fd"))

    url = "s3://weights/model.safetensors"
    from_environment(url).open(10)
    before = descriptors()
    for _ in range(300):
        from_environment(url).open(10)
    assert descriptors() <= before + 4


# Cancelling, forks, and the end of the process


def test_cancel_ends_reads_at_once():
    with MisbehavingServer("silent", {"/bucket/m": CONTENT}, after=1, times=8) as server:
        opened = reader("s3://bucket/m", endpoint=server.url())
        opened.open(1)
        with concurrent.futures.ThreadPoolExecutor(8) as pool:
            reads = [pool.submit(opened.read, 0, 1000) for _ in range(8)]
            deadline = time.monotonic() + 5
            while server.requests < 9 and time.monotonic() < deadline:
                time.sleep(0.01)
            began = time.monotonic()
            opened.cancel()
            for each in reads:
                with pytest.raises(SafetensorError, match="was cancelled"):
                    each.result(5)
            assert time.monotonic() - began < 1
        assert bytes(opened.read(0, 10)) == CONTENT[:10]


def run_script(text, server):
    """Runs a script in a process of its own that reads s3://bucket/m, and returns its output."""
    head = f"""
import os, sys, threading, time
from safetensors._remote import objects
from safetensors._remote.settings import Settings
from safetensors._remote.urls import Url
def reader():
    options = dict(endpoint={server.url()!r}, access_key_id="a", secret_access_key="b")
    return objects.reader(Url.parse("s3://bucket/m"), Settings.of(options, objects.OPTIONS))
opened = reader()
opened.open(1)
"""
    done = subprocess.run(
        [sys.executable, "-c", head + textwrap.dedent(text)],
        capture_output=True,
        text=True,
        timeout=20,
    )
    assert (done.returncode, done.stderr) == (0, "")
    return done.stdout


@pytest.mark.slow
def test_processes_end_well_right_after_a_read():
    with RangeServer({"/bucket/m": CONTENT}) as server:
        for _ in range(20):
            run_script("opened.read(0, 1000)", server)


# Other stores


def test_versions_of_an_object_by_moto(monkeypatch):
    boto3 = pytest.importorskip("boto3", reason="boto3 is not installed")
    with real_servers.moto() as s3:
        for name, value in s3.environment().items():
            monkeypatch.setenv(name, value)
        client = boto3.client("s3", endpoint_url=s3.endpoint)
        client.create_bucket(Bucket="weights")
        client.put_bucket_versioning(
            Bucket="weights", VersioningConfiguration={"Status": "Enabled"}
        )
        versions = [
            client.put_object(Bucket="weights", Key="m", Body=body)["VersionId"]
            for body in (CONTENT, CONTENT[::-1])
        ]
        url = "s3://weights/m"
        assert bytes(from_environment(url).open(10)[1]) == CONTENT[::-1][:10]
        for version, body in zip(versions, (CONTENT, CONTENT[::-1]), strict=True):
            opened = from_environment(f"{url}?versionId={version}")
            assert bytes(opened.open(10)[1]) == body[:10]
            assert bytes(opened.read(5, 10)) == body[5:15]
        with pytest.raises(FileNotFoundError, match="NoSuchVersion"):
            from_environment(f"{url}?versionId=none").open(10)


def test_google_cloud_storage_by_its_emulator(monkeypatch):
    with real_servers.gcp_storage() as gcs:
        monkeypatch.setenv("STORAGE_EMULATOR_HOST", gcs.endpoint)
        gcs.make_bucket("weights")
        gcs.put("weights", "folder/m.safetensors", CONTENT)
        opened = from_environment("gs://weights/folder/m.safetensors")
        size, first = opened.open(10)
        assert (size, bytes(first)) == (len(CONTENT), CONTENT[:10])
        assert bytes(opened.read(100, 50)) == CONTENT[100:150]
        with pytest.raises(FileNotFoundError, match="gs://weights/none"):
            from_environment("gs://weights/none").open(10)


def test_azure_asks_the_endpoint_for_the_container():
    with RangeServer({"/account/container/folder/m": CONTENT}) as server:
        options = {"endpoint": server.url("/account"), "account_name": "account"}
        settings = Settings.of({**options, "account_key": "c2VjcmV0"}, OPTIONS)
        for scheme in ("az", "abfs", "abfss", "adl"):
            opened = objects.reader(Url.parse(f"{scheme}://container/folder/m"), settings)
            size, first = opened.open(10)
            assert (size, bytes(first)) == (len(CONTENT), CONTENT[:10])
            assert bytes(opened.read(7, 3)) == CONTENT[7:10]
            assert server.log[-1].headers["Authorization"].startswith("SharedKey account:")


def assert_no_secret(error):
    """Fails if the key is in the error, or in what it keeps."""
    seen = []
    while error is not None and error not in seen:
        seen.append(error)
        text = f"{error} {error!r} {error.args} {vars(error)}"
        assert CANARY not in text
        assert "Debug source" not in text
        error = error.__cause__ or error.__context__
