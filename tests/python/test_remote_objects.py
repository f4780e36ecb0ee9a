"""Readers of object stores: requests, settings, errors, cancelling, the end of the process."""

import concurrent.futures
import re
import sys
import time

import pytest

from safetensors import SafetensorError
from safetensors._remote import objects
from safetensors._remote.settings import Settings
from safetensors._remote.urls import Url
from support import children
from support.certificates import certificate
from support.delay_proxy import DelayProxy
from support.misbehaving import MisbehavingServer
from support.object_readers import CONTENT, OPTIONS, SHORT, from_environment, no_credentials, reader
from support.remote_engines import cancel_reads
from support.servers import Answer, RangeServer, etag

pytest.importorskip("obstore")
pytestmark = pytest.mark.usefixtures(no_credentials.__name__)


def test_a_server_that_asks_to_slow_down():
    body = b"<?xml?><Error><Code>SlowDown</Code><Message>Reduce your rate</Message></Error>"
    with RangeServer({"/bucket/m": Answer(503, body=body)}) as server:
        with pytest.raises(ConnectionError, match=r"503 SlowDown, after 2 tries in \d+\.\d s"):
            reader("s3://bucket/m", endpoint=server.url(), **SHORT).open(10)
        assert server.requests == 2


def test_a_bucket_in_another_region():
    body = b"<Error><Code>PermanentRedirect</Code><Endpoint>elsewhere</Endpoint></Error>"
    with (
        RangeServer({"/bucket/m": Answer(301, body=body)}) as server,
        pytest.raises(SafetensorError, match="in another region: set AWS_REGION"),
    ):
        reader("s3://bucket/m", endpoint=server.url(), **SHORT).open(10)


def test_what_is_asked_for():
    with RangeServer({"/bucket/folder/m": CONTENT}) as server:
        opened = reader("s3://bucket/folder/m", endpoint=server.url(), headers={"X-A": "b"})
        opened.open(100)
        opened.read(50, 10)
        first, second = server.log
        assert [first.range, second.range] == ["bytes=0-99", "bytes=50-59"]
        assert "If-Match" not in first.headers
        assert second.headers["If-Match"] == etag(CONTENT)
        assert first.headers["User-Agent"].startswith("safetensors/")
        assert first.headers["X-A"] == "b"
        assert first.headers["Authorization"].startswith("AWS4-HMAC-SHA256")
        assert server.connections == 1
        anonymous = reader("s3://bucket/folder/m", endpoint=server.url(), anonymous=True)
        anonymous.open(1)
        assert "Authorization" not in server.log[-1].headers


def test_a_version_is_asked_for():
    with RangeServer({"/bucket/m": CONTENT}) as server:
        opened = reader("s3://bucket/m?versionId=abc%2Fd", endpoint=server.url())
        opened.open(1)
        opened.read(0, 1)
        assert [request.query for request in server.log] == ["versionId=abc%252Fd"] * 2


@pytest.mark.parametrize("query", ["version=1", "versionId=", "versionId=1&x=2", "x", "prefix=a"])
def test_other_queries_are_refused(query):
    with pytest.raises(SafetensorError, match="neither versionId"):
        reader(f"s3://bucket/m?{query}")


@pytest.mark.parametrize("path", ["a//b", "a/../b", "../b", "a/./b"])
def test_paths_that_obstore_refuses(path):
    with pytest.raises(SafetensorError, match="path that obstore does not accept"):
        reader(f"s3://bucket/{path}", endpoint="http://127.0.0.1:1", tries=1).open(1)


def test_options_of_another_store_are_refused():
    with pytest.raises(SafetensorError, match="does not take.*account_name"):
        reader("s3://bucket/m", account_name="x")
    with pytest.raises(SafetensorError, match="takes no token"):
        reader("s3://bucket/m", token="x")
    with pytest.raises(SafetensorError, match="unknown name 'acess_key_id'.*access_key_id"):
        reader("s3://bucket/m", acess_key_id="x")


@pytest.mark.timed
def test_latency_is_hidden_behind_many_reads():
    content = bytes(1 << 20)
    with RangeServer({"/bucket/m": content}) as server, DelayProxy(server.port, latency=0.1) as far:
        opened = reader("s3://bucket/m", endpoint=far.url())
        opened.open(1)
        with concurrent.futures.ThreadPoolExecutor(32) as pool:
            began = time.monotonic()
            list(pool.map(lambda at: opened.read(at * 8192, 8192), range(128)))
            took = time.monotonic() - began
        assert took < 0.25 * 128 * 0.1  # one after the other: 12.8 s
        assert server.most_at_once <= 32


def test_tls_trusts_what_it_is_told_to(monkeypatch):
    authority = certificate().authority
    with RangeServer({"/bucket/m": CONTENT}, tls=True) as server:
        url, options = "s3://bucket/m", {"endpoint": server.url(), **SHORT}
        with pytest.raises(ConnectionError, match="certificate is not valid"):
            reader(url, **options).open(1)
        assert reader(url, ca_file=authority, **options).open(1)[0] == len(CONTENT)
        assert reader(url, verify=False, **options).open(1)[0] == len(CONTENT)
        monkeypatch.setenv("AWS_CA_BUNDLE", str(authority))
        assert reader(url, **options).open(1)[0] == len(CONTENT)


def test_http_is_used_only_where_the_endpoint_says_so():
    with RangeServer({"/bucket/m": CONTENT}) as server:
        endpoint = f"https://127.0.0.1:{server.port}"
        with pytest.raises(ConnectionError, match="does not speak TLS"):
            reader("s3://bucket/m", endpoint=endpoint, **SHORT).open(1)
        assert server.requests == 0


def test_proxies(monkeypatch):
    url = "s3://bucket/m"
    with RangeServer({"/bucket/m": CONTENT}) as server, DelayProxy(server.port) as proxy:
        # A proxy gets the whole URL: this one passes it on to a server that knows no such path.
        options = {"endpoint": server.url(), **SHORT}
        with pytest.raises(FileNotFoundError):
            reader(url, proxy=proxy.url(), **options).open(1)
        assert server.log[-1].path.startswith("http://")
        monkeypatch.setenv("HTTP_PROXY", "http://127.0.0.1:1")
        with pytest.raises(ConnectionError, match="refused"):
            reader(url, **options).open(1)
        assert reader(url, proxy="", **options).open(1)[0] == len(CONTENT)
        monkeypatch.setenv("NO_PROXY", "127.0.0.1")
        assert reader(url, **options).open(1)[0] == len(CONTENT)


def test_a_server_that_nobody_is():
    with pytest.raises(ConnectionError, match="refused, after 2 tries"):
        reader("s3://bucket/m", endpoint="http://127.0.0.1:1", **SHORT).open(1)
    with pytest.raises(ConnectionError, match="host is not known"):
        reader("s3://bucket/m", endpoint="http://no.such.host.invalid", **SHORT).open(1)


@pytest.mark.parametrize(
    ("url", "options", "text"),
    [
        ("az://c/x", {}, "az://c/x: Account must be specified"),
        ("az://c/x", {"account_name": "a", "account_key": "CANARY !"}, "Invalid Access Key"),
        ("gs://c/x", {"service_account": "/none"}, "Unable to open service account file"),
        ("gs://c/x", {"service_account_key": '{"a": "CANARY"}'}, "missing field `private_key`"),
        ("s3://c/x", {"access_key_id": "a"}, "s3://c/x: Missing SecretAccessKey"),
        ("s3://c/x", {"anonymous": True, "endpoint": "not a URL"}, "is not a URL"),
        ("s3://c/x", {"anonymous": True, "endpoint": "http://a b"}, "invalid host"),
        ("s3://c/x", {"anonymous": True, "endpoint": "ftp://a"}, "http or https, not of ftp"),
        ("s3://c/x", {"anonymous": True, "ca_file": "/dev/null"}, "No certificates found"),
        ("s3://c/x", {"anonymous": True, "proxy": "CANARY !"}, "builder error"),
    ],
)
def test_settings_that_no_store_can_have(url, options, text):
    with pytest.raises(SafetensorError, match=re.escape(text)) as raised:
        objects.reader(Url.parse(url), Settings.of(options, objects.OPTIONS))
    assert raised.value.code == "invalid_argument"
    assert raised.value.__cause__ is raised.value.__context__ is None
    assert "CANARY" not in f"{raised.value!r} {vars(raised.value)}"


@pytest.mark.parametrize("options", [{"anonymous": True}, {"sas_key": "sig=CANARY"}])
def test_without_an_account_of_azure_the_error_says_where_to_name_it(options):
    with pytest.raises(
        SafetensorError, match="Account must be specified: set AZURE_STOR"
    ) as caught:
        objects.reader(Url.parse("az://c/x"), Settings.of(options, objects.OPTIONS))
    assert "account_name of storage_options" in str(caught.value)
    assert "CANARY" not in str(caught.value)


def test_no_credentials(monkeypatch):
    """The error names what a user of the command line can set, which works."""
    with RangeServer({"/bucket/m": CONTENT}) as server:  # refuses PUT, by which AWS gives tokens
        monkeypatch.setenv("AWS_METADATA_ENDPOINT", server.url())
        monkeypatch.setenv("AWS_ENDPOINT_URL", server.url())
        opened = from_environment("s3://bucket/m", **SHORT)
        with pytest.raises(PermissionError, match="no credentials were found") as caught:
            opened.open(1)
        text = str(caught.value)
        for name in ("AWS_PROFILE", "AWS_SKIP_SIGNATURE=true", "{'anonymous': True}"):
            assert name in text
        for names in (["AWS_SKIP_SIGNATURE"], ["AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"]):
            for name in names:
                assert name in text
                monkeypatch.setenv(name, "true")
            assert from_environment("s3://bucket/m", **SHORT).open(10)[1] == CONTENT[:10]
            for name in names:
                monkeypatch.delenv(name)


@pytest.mark.parametrize(
    ("url", "names"),
    [
        ("gs://bucket/m", ["GOOGLE_APPLICATION_CREDENTIALS", "GOOGLE_SKIP_SIGNATURE=true"]),
        ("az://container/m", ["AZURE_STORAGE_ACCOUNT_NAME", "AZURE_STORAGE_CONNECTION_STRING"]),
        ("abfs://c@account.dfs.core.windows.net/m", ["AZURE_STORAGE_SAS_TOKEN"]),
    ],
)
def test_no_credentials_of_other_stores(url, names, no_metadata):
    with pytest.raises(SafetensorError) as caught:
        from_environment(url, **SHORT).open(1)
    assert all(name in str(caught.value) for name in [*names, "{'anonymous': True}"])


@pytest.fixture
def no_metadata(monkeypatch):
    """Lets the services that give credentials to instances be unreachable: by a closed port."""
    monkeypatch.setenv("HTTP_PROXY", "http://127.0.0.1:9")
    monkeypatch.setenv("NO_PROXY", "")


def test_obstore_is_named_where_it_is_missing(monkeypatch):
    monkeypatch.setitem(sys.modules, "obstore", None)
    with pytest.raises(ImportError, match=r"s3:// needs obstore.*pip install obstore"):
        reader("s3://bucket/m")


def test_cancel_ends_reads_at_once():
    with MisbehavingServer("silent", {"/bucket/m": CONTENT}, after=1, times=8) as server:
        opened = reader("s3://bucket/m", endpoint=server.url())
        opened.open(1)
        cancel_reads(opened, server, 8, 1000)
        assert bytes(opened.read(0, 10)) == CONTENT[:10]


READ = """
from safetensors._remote import objects
from safetensors._remote.settings import Settings
from safetensors._remote.urls import Url
options = dict(endpoint=sys.argv[1], access_key_id="a", secret_access_key="b")
opened = objects.reader(Url.parse("s3://bucket/m"), Settings.of(options, objects.OPTIONS))
opened.open(1)
opened.read(0, 1000)
"""


@pytest.mark.slow
def test_processes_end_well_right_after_a_read():
    with RangeServer({"/bucket/m": CONTENT}) as server:
        for _ in range(20):
            done = children.run_raw(READ, server.url(), timeout=20)
            assert (done.returncode, done.stderr) == (0, "")


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
