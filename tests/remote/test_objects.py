"""Object stores on real servers: what is read, versions, credentials, listings."""

import concurrent.futures

import obstore
import pytest

from safetensors import SafetensorError
from safetensors._remote import objects
from safetensors._remote.settings import Settings
from safetensors._remote.urls import Url
from support.object_readers import CANARY, CONTENT, OPTIONS, from_environment, no_credentials

pytestmark = pytest.mark.usefixtures(no_credentials.__name__)


@pytest.fixture(scope="module")
def weed(seaweedfs):
    """SeaweedFS with a bucket of a few objects."""
    store = seaweedfs.make_bucket("weights")
    for name in ("model.safetensors", "folder/b c%20.safetensors", "folder/a.safetensors"):
        obstore.put(store, name, CONTENT)
    obstore.put(store, "folder/notes.txt", b"notes")
    obstore.put(store, "folder/deeper/d.safetensors", b"deeper")
    obstore.put(store, "empty.safetensors", b"")
    return seaweedfs


@pytest.fixture
def at_weed(weed, monkeypatch):
    """The variables that lead to SeaweedFS."""
    for name, value in weed.environment().items():
        monkeypatch.setenv(name, value)
    return weed


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


def test_versions_of_an_object(moto, monkeypatch):
    boto3 = pytest.importorskip("boto3", reason="boto3 is not installed")
    for name, value in moto.environment().items():
        monkeypatch.setenv(name, value)
    client = boto3.client("s3", endpoint_url=moto.endpoint)
    client.create_bucket(Bucket="versions")
    client.put_bucket_versioning(Bucket="versions", VersioningConfiguration={"Status": "Enabled"})
    versions = [
        client.put_object(Bucket="versions", Key="m", Body=body)["VersionId"]
        for body in (CONTENT, CONTENT[::-1])
    ]
    url = "s3://versions/m"
    assert bytes(from_environment(url).open(10)[1]) == CONTENT[::-1][:10]
    for version, body in zip(versions, (CONTENT, CONTENT[::-1]), strict=True):
        opened = from_environment(f"{url}?versionId={version}")
        assert bytes(opened.open(10)[1]) == body[:10]
        assert bytes(opened.read(5, 10)) == body[5:15]
    with pytest.raises(FileNotFoundError, match="NoSuchVersion"):
        from_environment(f"{url}?versionId=none").open(10)


def test_google_cloud_storage(gcp_storage, monkeypatch):
    monkeypatch.setenv("STORAGE_EMULATOR_HOST", gcp_storage.endpoint)
    gcp_storage.put("models", "folder/m.safetensors", CONTENT)
    opened = from_environment("gs://models/folder/m.safetensors")
    size, first = opened.open(10)
    assert (size, bytes(first)) == (len(CONTENT), CONTENT[:10])
    assert bytes(opened.read(100, 50)) == CONTENT[100:150]
    with pytest.raises(FileNotFoundError, match="gs://models/none"):
        from_environment("gs://models/none").open(10)


def assert_no_secret(error):
    """Fails if the key is in the error, or in what it keeps."""
    seen = []
    while error is not None and error not in seen:
        seen.append(error)
        text = f"{error} {error!r} {error.args} {vars(error)}"
        assert CANARY not in text
        assert "Debug source" not in text
        error = error.__cause__ or error.__context__
