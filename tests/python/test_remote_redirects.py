"""Which redirects HttpReader follows, what it sends where, TLS, and proxies."""

import contextlib
import socket
import sys
import threading
import time

import pytest

from safetensors import SafetensorError
from safetensors._remote import connections
from safetensors._remote.http import HttpReader
from safetensors._remote.settings import Settings
from safetensors._remote.urls import Url
from support.certificates import certificate
from support.misbehaving import MisbehavingServer
from support.servers import Answer, RangeServer, redirect
from support.threads import together

CONTENT = bytes(range(256)) * 100
PATH = "/m.safetensors"
FAST = {"tries": 2, "connect_timeout": 2, "idle_timeout": 2, "timeout": 5}
HEADERS = {"Authorization": "Bearer x", "Cookie": "y=1", "X-Key": "z"}


@pytest.fixture(autouse=True)
def _no_proxies(monkeypatch):
    """The machine's own proxies are not used."""
    for name in ("http_proxy", "https_proxy", "all_proxy", "no_proxy"):
        monkeypatch.delenv(name, raising=False)
        monkeypatch.delenv(name.upper(), raising=False)


def reader_of(url, **options):
    """Returns a reader of a URL."""
    return HttpReader(Url.parse(url), Settings.of(FAST | options))


def check(reader):
    """Opens and reads."""
    assert reader.open(100) == (len(CONTENT), CONTENT[:100])
    assert reader.read(200, 1000) == CONTENT[200:1200]


def sent(request):
    """Returns which of HEADERS a request has."""
    return {name for name in HEADERS if request.headers[name] == HEADERS[name]}


@pytest.mark.parametrize("status", [301, 302, 303, 307, 308])
def test_reads_go_to_the_final_url_without_the_redirect(status):
    with RangeServer({"/deep/m": CONTENT, PATH: redirect("deep/m?sig=1#f", status)}) as server:
        check(reader_of(server.url(PATH)))
        asked = [(request.path, request.query) for request in server.log]
        assert asked == [(PATH, ""), ("/deep/m", "sig=1"), ("/deep/m", "sig=1")]


def test_a_location_that_no_server_would_take():
    """It is not parsed: that may take seconds."""
    with RangeServer({PATH: redirect("/" + "a" * 60_000)}) as server:
        with pytest.raises(SafetensorError, match="a URL of 60,001 characters: 8,192 are allowed"):
            check(reader_of(server.url(PATH)))
        assert server.requests == 1


@pytest.mark.parametrize(("hops", "follows"), [(5, True), (6, False)])
def test_at_most_five_redirects(hops, follows):
    files = {f"/{i}": redirect(f"/{i + 1}") for i in range(hops)} | {f"/{hops}": CONTENT}
    with RangeServer(files) as server:
        if follows:
            return check(reader_of(server.url("/0")))
        with pytest.raises(SafetensorError, match="more than 5 redirects"):
            reader_of(server.url("/0")).open(100)
        assert server.requests == 6
    return None


@pytest.mark.parametrize("mode", ["redirects", "redirects_growing", "redirects_nowhere"])
def test_loops_end(mode):
    with MisbehavingServer(mode, {PATH: CONTENT}) as server:
        with pytest.raises(SafetensorError, match="more than 5 redirects|answered 302 Found"):
            reader_of(server.url(PATH)).open(100)
        assert server.requests <= 6


def test_headers_stay_on_the_first_host():
    """Another port is another host; what follows on the first host again gets none, either."""
    with RangeServer({PATH: CONTENT}) as last, RangeServer({}) as first:
        last.files["/back"] = redirect(first.url("/c"))
        first.files |= {
            "/a": redirect("/b"), "/b": redirect(last.url("/back")), "/c": redirect(last.url(PATH)),
        }  # fmt: skip
        check(reader_of(first.url("/a"), headers=HEADERS))
        assert [sent(request) for request in first.log] == [set(HEADERS), set(HEADERS), set()]
        assert [sent(request) for request in last.log] == [set()] * 3


def test_reads_of_the_first_host_have_the_headers():
    with RangeServer({PATH: CONTENT}) as server:
        check(reader_of(server.url(PATH), headers=HEADERS))
        assert [sent(request) for request in server.log] == [set(HEADERS)] * 2


@pytest.mark.parametrize(
    ("location", "reason"),
    [
        ("file:///etc/passwd", "scheme 'file'"),
        ("ftp://127.0.0.1/x", "scheme 'ftp'"),
        ("data:,x", "scheme 'data'"),
        ("s3://b/k", "scheme 's3'"),
        ("http://user:CANARY@127.0.0.1/x", "a user or a password"),
        ("http://[::1/x", "redirects to an invalid URL"),
        ("http://a b/x", "invalid host"),
    ],
)
def test_redirects_to_elsewhere(location, reason):
    with RangeServer({PATH: redirect(location)}) as server:
        with pytest.raises(SafetensorError, match=reason) as caught:
            reader_of(server.url(PATH)).open(100)
        assert "CANARY" not in str(caught.value)
        assert server.requests == 1


def test_an_expired_redirect_is_followed_again_once_for_all_threads():
    valid = ["1"]

    def file(request):
        return CONTENT if request.query == f"sig={valid[0]}" else Answer(403)

    def resolve(request):
        return redirect(f"{last.url('/file')}?sig={valid[0]}")

    with RangeServer({"/file": file}) as last, RangeServer({PATH: resolve}) as first:
        reader = reader_of(first.url(PATH))
        check(reader)
        valid[0] = "2"
        assert together(lambda _: reader.read(5, 10), range(8)) == [CONTENT[5:15]] * 8
        assert first.requests == 2
        valid[0] = "3"
        first.files[PATH] = redirect(f"{last.url('/file')}?sig=2")
        with pytest.raises(
            PermissionError, match="answered 403 Forbidden; credentials: anonymous$"
        ):
            reader.read(5, 10)


def test_an_expired_redirect_that_leads_to_another_version():
    valid = ["1"]

    def file(request):
        if request.query != f"sig={valid[0]}":
            return Answer(403)
        return CONTENT if valid[0] == "1" else CONTENT[::-1]

    with RangeServer({"/file": file}) as server:
        server.files[PATH] = lambda request: redirect(f"/file?sig={valid[0]}")
        reader = reader_of(server.url(PATH))
        check(reader)
        valid[0] = "2"
        with pytest.raises(SafetensorError, match="changed while it was being read"):
            reader.read(0, 10)


# The internet, as far as these tests go: 127.0.0.1 is public, the rest of 127/8 is private.


@pytest.fixture
def _public_is_one_address(monkeypatch):
    monkeypatch.setattr(connections, "is_public", lambda address: address == "127.0.0.1")


@pytest.mark.usefixtures("_public_is_one_address")
def test_a_public_server_may_not_lead_to_a_private_one():
    with RangeServer({PATH: CONTENT}, host="127.0.0.2") as private, RangeServer({}) as public:
        public.files |= {
            "/out": redirect(private.url(PATH)),
            "/in": redirect("/out"),
            PATH: CONTENT,
        }
        for path in ("/out", "/in"):
            with pytest.raises(PermissionError, match="redirects to an address that is not of it"):
                reader_of(public.url(path)).open(100)
        assert private.requests == 0
        assert private.connections <= 2
        private.files["/out"] = redirect(public.url("/back"))
        public.files["/back"] = redirect(private.url(PATH))
        # Who names a private server trusts it: it may lead to private ones ...
        check(reader_of(private.url(PATH)))
        private.clear()
        # ... but a public one on the way may not.
        with pytest.raises(PermissionError, match="redirects to an address"):
            reader_of(private.url("/out")).open(100)
        assert [request.path for request in private.log] == ["/out"]


@pytest.mark.usefixtures("_public_is_one_address")
def test_a_kept_connection_to_a_private_server_is_not_lent_to_a_public_one():
    settings = Settings.of(FAST)
    pool = connections.Pool(settings)
    with RangeServer({PATH: CONTENT}, host="127.0.0.2") as private, RangeServer({}) as public:
        check(HttpReader(Url.parse(private.url(PATH)), settings, pool=pool))
        public.files[PATH] = redirect(private.url(PATH))
        with pytest.raises(PermissionError, match="redirects to an address that is not of it"):
            HttpReader(Url.parse(public.url(PATH)), settings, pool=pool).open(100)
        assert private.requests == 2


@pytest.mark.usefixtures("_public_is_one_address")
def test_the_peer_counts_and_not_the_name(monkeypatch):
    """A name that resolves to another address the second time (DNS rebinding)."""
    resolve = socket.getaddrinfo
    asked = []

    def rebinding(host, *args, **options):
        if host == "rebinding.example":
            asked.append(host)
            host = "127.0.0.2"
        return resolve(host, *args, **options)

    monkeypatch.setattr(socket, "getaddrinfo", rebinding)
    with RangeServer({PATH: CONTENT}, host="127.0.0.2") as private, RangeServer({}) as public:
        public.files[PATH] = redirect(private.url(PATH, host="rebinding.example"))
        with pytest.raises(PermissionError, match="redirects to an address that is not of it"):
            reader_of(public.url(PATH)).open(100)
        assert asked
        assert private.requests == 0


def test_link_local_addresses_are_not_asked(monkeypatch):
    """The address of cloud metadata services: not even a connection is made."""
    asked = []

    def connect(self, address):
        asked.append(address)
        connect_before(self, ("127.0.0.1", server.port))

    connect_before = socket.socket.connect
    monkeypatch.setattr(socket.socket, "connect", connect)
    with RangeServer({PATH: redirect("http://169.254.169.254/latest/meta-data/")}) as server:
        with pytest.raises(PermissionError, match="redirects to an address that is not of it"):
            reader_of("http://8.8.8.8" + PATH).open(100)
        assert asked == [("8.8.8.8", 80)]
        assert server.requests == 1


def test_a_name_with_several_addresses(monkeypatch):
    """They are tried in turn, and share the time."""
    with RangeServer({PATH: CONTENT}) as server, RangeServer({}, host="127.0.0.2") as gone:
        pass
    with RangeServer({PATH: CONTENT}) as server:
        addresses = [("127.0.0.2", gone.port), ("127.0.0.1", server.port)]
        found = [(socket.AF_INET, socket.SOCK_STREAM, 6, "", address) for address in addresses]
        monkeypatch.setattr(socket, "getaddrinfo", lambda *args, **options: found)
        check(reader_of("http://name.example" + PATH))


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="how Linux fills a backlog")
def test_cancel_ends_a_connection_that_is_being_made():
    """A listener whose backlog is full does not answer."""
    with socket.socket() as listener, contextlib.ExitStack() as stack:
        listener.bind(("127.0.0.1", 0))
        listener.listen(0)
        address = listener.getsockname()
        for _ in range(4):
            waiting = stack.enter_context(socket.socket())
            waiting.setblocking(False)
            waiting.connect_ex(address)
        reader = reader_of(f"http://127.0.0.1:{address[1]}/x", connect_timeout=60, timeout=60)
        caught = []

        def read():
            with contextlib.suppress(SafetensorError):
                reader.open(1)
            caught.append(time.monotonic())

        thread = threading.Thread(target=read)
        thread.start()
        time.sleep(0.3)
        assert not caught
        began = time.monotonic()
        reader.cancel()
        thread.join(30)
        assert caught[0] - began < 5


@pytest.mark.parametrize(
    "address",
    [
        "127.0.0.1", "10.1.2.3", "172.16.0.1", "192.168.1.1", "169.254.169.254", "100.64.0.1",
        "0.0.0.0", "224.0.0.1", "239.1.1.1", "255.255.255.255", "::1", "::", "fe80::1",
        "fe80::1%eth0", "fc00::1", "ff02::1", "ff0e::1", "::ffff:127.0.0.1", "::ffff:10.0.0.1",
        "64:ff9b::7f00:1", "64:ff9b::a9fe:a9fe", "2002:7f00:1::", "2002:a00:1::1",
        "fec0::1", "::127.0.0.1", "240.0.0.1",
        "::ffff:224.0.0.1",
    ],
)  # fmt: skip
def test_addresses_that_are_not_public(address):
    assert not connections.is_public(address)


@pytest.mark.parametrize(
    "address",
    ["8.8.8.8", "2606:4700::1111", "::ffff:8.8.8.8", "64:ff9b::808:808", "2002:808:808::1"],
)
def test_addresses_that_are_public(address):
    assert connections.is_public(address)


# TLS


@pytest.fixture(scope="module")
def tls():
    """A server of https, redirecting to http at /http."""
    with RangeServer({PATH: CONTENT}) as plain:
        files = {PATH: CONTENT, "/http": redirect(plain.url(PATH))}
        with RangeServer(files, tls=True) as server:
            server.plain = plain
            yield server


def test_certificates_are_verified(tls):
    with pytest.raises(ConnectionError, match="the certificate is not accepted: ") as caught:
        reader_of(tls.url(PATH)).open(100)
    assert "tries" not in str(caught.value)
    check(reader_of(tls.url(PATH), ca_file=str(certificate().authority)))
    check(reader_of(tls.url(PATH), verify=False))


def test_certificates_that_cannot_be_read(tls, tmp_path):
    (tmp_path / "bad.pem").write_text("x")
    for name in ("absent.pem", "bad.pem"):
        with pytest.raises(SafetensorError, match="the certificates of ca_file cannot be read: "):
            reader_of(tls.url(PATH), ca_file=tmp_path / name).open(100)


def test_ssl_cert_file(tls, monkeypatch):
    monkeypatch.setenv("SSL_CERT_FILE", str(certificate().authority))
    check(reader_of(tls.url(PATH)))


def test_the_name_in_the_certificate_counts(tls, monkeypatch):
    resolve = socket.getaddrinfo
    monkeypatch.setattr(
        socket, "getaddrinfo", lambda _, *args, **more: resolve(tls.host, *args, **more)
    )
    url = tls.url(PATH, host="other.example")
    with pytest.raises(ConnectionError, match="the certificate is not accepted: Hostname mismatch"):
        reader_of(url, ca_file=str(certificate().authority)).open(100)


def test_https_never_leads_to_http(tls):
    tls.plain.clear()
    with pytest.raises(SafetensorError, match="redirects from https to http"):
        reader_of(tls.url("/http"), verify=False).open(100)
    assert tls.plain.requests == 0


def test_http_may_lead_to_https(tls):
    with RangeServer({PATH: redirect(tls.url(PATH))}) as first:
        check(reader_of(first.url(PATH), verify=False))


@pytest.mark.parametrize("options", [{"token": "x"}, {"headers": {"Cookie": "x"}}])
def test_secrets_need_tls(options):
    with pytest.raises(SafetensorError, match="tokens and cookies are sent by https only"):
        reader_of("http://example.com/x", **options)
    reader_of("https://example.com/x", **options)
    reader_of("http://example.com/x", headers={"X-Key": "x"})


# Proxies


class Proxy:
    """A proxy: forwards requests of http, and tunnels."""

    def __init__(self, target):
        self.target = target
        self.asked = []

    def __enter__(self):
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.url = f"http://me:p%40ss@127.0.0.1:{self._listener.getsockname()[1]}"
        threading.Thread(target=self._serve, daemon=True).start()
        return self

    def __exit__(self, *error):
        self._listener.close()

    def _serve(self):
        with contextlib.suppress(OSError):
            while True:
                client = self._listener.accept()[0]
                threading.Thread(target=self._forward, args=(client,), daemon=True).start()

    def _forward(self, client):
        with client, socket.create_connection(self.target) as server:
            while True:
                head = b""
                while not head.endswith(b"\r\n\r\n"):
                    data = client.recv(1)
                    if not data:
                        return
                    head += data
                lines = head.decode().split("\r\n")
                self.asked.append((lines[0], [line for line in lines if line.startswith("Proxy-")]))
                method, url, version = lines[0].split(" ")
                if method == "CONNECT":
                    client.sendall(b"HTTP/1.1 200 OK\r\n\r\n")
                    back = threading.Thread(target=self._copy, args=(server, client), daemon=True)
                    back.start()
                    self._copy(client, server)
                    return
                path = "/" + url.split("/", 3)[3]
                server.sendall("\r\n".join([f"{method} {path} {version}", *lines[1:]]).encode())
                answer = b""
                while not answer.endswith(b"\r\n\r\n"):
                    answer += server.recv(1)
                length = int(answer.lower().split(b"content-length:")[1].split(b"\r\n")[0])
                client.sendall(answer)
                while length:
                    data = server.recv(length)
                    client.sendall(data)
                    length -= len(data)

    @staticmethod
    def _copy(source, target):
        with contextlib.suppress(OSError):
            while data := source.recv(1 << 16):
                target.sendall(data)
            target.shutdown(socket.SHUT_WR)


LOGIN = ["Proxy-Authorization: Basic bWU6cEBzcw=="]


@pytest.mark.parametrize("by", ["option", "HTTP_PROXY", "http_proxy"])
def test_a_proxy_for_http(by, monkeypatch):
    with RangeServer({PATH: CONTENT}) as server, Proxy(("127.0.0.1", server.port)) as proxy:
        options = {"proxy": proxy.url} if by == "option" else {}
        if by != "option":
            monkeypatch.setenv(by, proxy.url)
        check(reader_of("http://name.example/m.safetensors", **options))
        assert proxy.asked == [("GET http://name.example/m.safetensors HTTP/1.1", LOGIN)] * 2
        assert {request.headers["Host"] for request in server.log} == {"name.example"}


def test_a_proxy_for_https(tls, monkeypatch):
    with Proxy(("127.0.0.1", tls.port)) as proxy:
        monkeypatch.setenv("HTTPS_PROXY", proxy.url)
        check(reader_of("https://name.example/m.safetensors", verify=False))
        assert proxy.asked == [("CONNECT name.example:443 HTTP/1.1", LOGIN)]
        tls_headers = [request.headers["Proxy-Authorization"] for request in tls.log]
        assert set(tls_headers) == {None}


def test_no_proxy(monkeypatch):
    """NO_PROXY, loopback, and an empty option."""
    monkeypatch.setenv("HTTP_PROXY", "http://127.0.0.1:9")
    resolve = socket.getaddrinfo
    monkeypatch.setattr(
        socket, "getaddrinfo", lambda _, *args, **more: resolve("127.0.0.1", *args, **more)
    )
    with RangeServer({PATH: CONTENT}) as server:
        check(reader_of(server.url(PATH)))
        url = server.url(PATH, host="name.example")
        with pytest.raises(ConnectionError):
            reader_of(url).open(100)
        check(reader_of(url, proxy=""))
        monkeypatch.setenv("NO_PROXY", "other.example,.example")
        check(reader_of(url))


def test_behind_a_proxy_names_decide():
    hosts = ["10.0.0.1", "localhost", "a.localhost", "127.1", "2130706433", "0x7f.1", "[::1]"]
    hosts += ["metadata", "metadata.google.internal", "printer.local", "localhost."]
    files = {f"/{i}": redirect(f"http://{host}/x") for i, host in enumerate(hosts)}
    with RangeServer(files) as server, Proxy(("127.0.0.1", server.port)) as proxy:
        for path in files:
            with pytest.raises(PermissionError, match="redirects to an address that is not of it"):
                reader_of("http://name.example" + path, proxy=proxy.url).open(100)
        assert server.requests == len(hosts)


@pytest.mark.parametrize(
    "proxy", ["socks5://h:1", "https://h", "http://", "http://h:x", "http://[::1"]
)
def test_other_proxies(proxy):
    with pytest.raises(SafetensorError, match="the proxy is not an http:// URL"):
        reader_of("http://name.example/x", proxy=proxy).open(100)


def test_a_proxy_that_refuses(tls):
    with RangeServer({}) as proxy, pytest.raises(ConnectionError, match="the proxy answered 501"):
        reader_of("https://name.example/x", proxy=proxy.url()).open(100)
