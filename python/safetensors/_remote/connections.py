"""Connections to web servers: proxies, TLS, time limits, and which peers a redirect may reach."""

from __future__ import annotations

import base64
import contextlib
import http.client
import io
import ipaddress
import os
import select
import socket
import ssl
import threading
import urllib.parse
import urllib.request
import weakref
from collections.abc import Callable
from typing import Any

from . import errors
from .retry import Deadline
from .settings import Settings
from .urls import Url

Origin = tuple[str, str, int]

Started = Callable[["Connection"], None]

_LOCAL_NAMES = (".localhost", ".local", ".internal", ".home.arpa")
_NAT64 = ipaddress.ip_network("64:ff9b::/96")


class LimitReached(Exception):
    """All the time that a request may take is used up."""


def is_public(address: str) -> bool:
    """Returns whether an address is of the internet, and not private, loopback or the like."""
    ip = ipaddress.ip_address(address.partition("%")[0])
    if isinstance(ip, ipaddress.IPv6Address):
        if ip.is_site_local:
            return False
        # Addresses that stand for one of IPv4.
        inner = ip.ipv4_mapped or ip.sixtofour
        if inner is None and ip in _NAT64:
            inner = ipaddress.IPv4Address(int(ip) & 0xFFFFFFFF)
        if inner is not None:
            ip = inner
    return ip.is_global and not ip.is_multicast and not ip.is_reserved


def is_loopback(host: str) -> bool:
    """Returns whether a host is this machine, judged by its name or literal address."""
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


class Connection:
    """A connection to one server, by TLS for https. Used by one thread at a time."""

    def __init__(self, sock: socket.socket, origin: Origin, idle: float) -> None:
        """Takes a socket that is connected.

        Args:
            sock: the socket, which the connection closes.
            origin: scheme, host and port.
            idle: the seconds without a byte after which reading raises TimeoutError.
        """
        self.sock = sock
        self.origin = origin
        self.public = False  # whether the peer is of the internet
        self.deadline = Deadline(idle)
        self._idle = idle

    def send(self, data: bytes) -> None:
        """Sends bytes."""
        self._set_timeout()
        self.sock.sendall(data)

    def receive(self, buffer: Any) -> int:
        """Receives some bytes; 0: the peer has closed the connection."""
        self._set_timeout()
        return self.sock.recv_into(buffer)

    def makefile(self, mode: str) -> io.BufferedReader:
        """Returns a file to read from, as http.client wants one."""
        return io.BufferedReader(_Raw(self))

    def is_idle(self) -> bool:
        """Returns whether the peer has neither closed it nor sent what nobody awaits."""
        try:
            poll = select.poll()
            poll.register(self.sock, select.POLLIN)
            return not poll.poll(0)
        except (OSError, ValueError, AttributeError):
            return False

    def stop(self) -> None:
        """Ends what another thread is doing with the connection."""
        with contextlib.suppress(OSError):
            # The class of TLS sockets would drop its state under the other thread's feet.
            socket.socket.shutdown(self.sock, socket.SHUT_RDWR)

    def close(self) -> None:
        """Closes the socket."""
        with contextlib.suppress(OSError):
            self.sock.close()

    def _set_timeout(self) -> None:
        left = self.deadline.left()
        if left <= 0.0:
            raise LimitReached
        self.sock.settimeout(min(self._idle, left))


class _Raw(io.RawIOBase):
    def __init__(self, connection: Connection) -> None:
        self._connection = connection

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        try:
            return self._connection.receive(buffer)
        except TimeoutError:
            if self._connection.deadline.left() <= 0.0:
                raise LimitReached from None
            raise
        finally:
            # Frames that a traceback keeps would hold a pointer to memory of the caller.
            buffer.release()


class Pool:
    """Connections that are kept for the next request. Thread safe.

    Readers of one model share one.
    """

    def __init__(self, settings: Settings) -> None:
        """Makes an empty pool.

        Args:
            settings: time limits, certificates and proxy.
        """
        self.settings = settings
        self.pid = os.getpid()
        self._lock = threading.Lock()
        self._idle: dict[Origin, list[Connection]] = {}
        # Runs before the finalizers of sockets, also where the pool is part of a cycle.
        weakref.finalize(self, _close_all, self._idle)
        self._context: ssl.SSLContext | None = None

    def take(
        self, url: Url, deadline: Deadline, guarded: bool, started: Started
    ) -> tuple[Connection, bool]:
        """Returns a connection to the host of a URL, and whether it was used before.

        Args:
            url: where to.
            deadline: the end of the request.
            guarded: whether the peer must be of the internet.
            started: is called with the connection before anything is sent; may raise.

        Raises:
            SafetensorError: the peer is not one that may be reached.
            OSError: the connection cannot be made.
        """
        origin = (url.scheme, url.hostname, url.port)
        while True:
            with self._lock:
                kept = self._idle.get(origin)
                connection = kept.pop() if kept else None
            if connection is None:
                break
            if connection.is_idle() and (connection.public or not guarded):
                connection.deadline = deadline
                started(connection)
                return connection, True
            connection.close()
        return self._connect(url, origin, deadline, guarded, started), False

    def give_back(self, connection: Connection) -> None:
        """Keeps a connection whose answer was read to its end."""
        with self._lock:
            kept = self._idle.setdefault(connection.origin, [])
            if len(kept) < self.settings.concurrency:
                kept.append(connection)
                return
        connection.close()

    def close(self) -> None:
        """Closes the connections that are not in use."""
        with self._lock:
            _close_all(self._idle)

    def _connect(
        self, url: Url, origin: Origin, deadline: Deadline, guarded: bool, started: Started
    ) -> Connection:
        until = Deadline(min(self.settings.connect_timeout, deadline.left()))
        proxy = self._proxy_of(url)
        place = (url.hostname, url.port) if proxy is None else (proxy.hostname, proxy.port)
        found = socket.getaddrinfo(*place, type=socket.SOCK_STREAM)
        for i, (family, kind, protocol, _, address) in enumerate(found):
            sock = socket.socket(family, kind, protocol)
            connection = Connection(sock, origin, self.settings.idle_timeout)
            try:
                started(connection)
                # The address, not the name, which could resolve to another one the next time.
                connection.public = (
                    is_public(str(address[0])) if proxy is None else _is_public_name(url.hostname)
                )
                if guarded and not connection.public:
                    text = "a server of the internet redirects to an address that is not of it"
                    raise errors.denied(url.name, text)
                try:
                    sock.settimeout(max(until.left() / (len(found) - i), 0.001))
                    sock.connect(address)
                except OSError:
                    if i + 1 == len(found):
                        raise
                    connection.close()
                    continue
                self._prepare(connection, url, proxy, until)
            except BaseException:
                connection.close()
                raise
            connection.deadline = deadline
            return connection
        raise OSError("the name has no address")

    def _prepare(
        self, connection: Connection, url: Url, proxy: _Proxy | None, until: Deadline
    ) -> None:
        """Opens the tunnel through a proxy, and TLS."""
        connection.deadline = until
        connection.sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        if url.scheme != "https":
            return
        try:
            if proxy is not None:
                _open_tunnel(connection, url, proxy)
        except LimitReached:
            raise TimeoutError from None
        connection.sock.settimeout(max(until.left(), 0.001))
        connection.sock = self._tls().wrap_socket(connection.sock, server_hostname=url.hostname)

    def _tls(self) -> ssl.SSLContext:
        with self._lock:
            if self._context is None:
                try:
                    context = ssl.create_default_context(cafile=self.settings.ca_file)
                except OSError as error:
                    text = f"the certificates of ca_file cannot be read: {error.strerror}"
                    raise errors.refused("", text) from None
                context.set_alpn_protocols(["http/1.1"])
                if not self.settings.verify:
                    context.check_hostname = False
                    context.verify_mode = ssl.CERT_NONE
                self._context = context
            return self._context

    def _proxy_of(self, url: Url) -> _Proxy | None:
        text = self.settings.proxy
        if text is None:
            if is_loopback(url.hostname):
                return None
            proxies = urllib.request.getproxies_environment()
            if urllib.request.proxy_bypass_environment(url.host, proxies):  # type: ignore[attr-defined]
                return None
            text = proxies.get(url.scheme)
        return _Proxy(text) if text else None

    def headers_for_proxy(self, url: Url) -> dict[str, str] | None:
        """Returns what a request that is not in a tunnel tells the proxy; None: no proxy."""
        proxy = self._proxy_of(url) if url.scheme == "http" else None
        return None if proxy is None else proxy.headers


def _close_all(idle: dict[Origin, list[Connection]]) -> None:
    while idle:
        for connection in idle.popitem()[1]:
            connection.close()


class _Proxy:
    """A proxy that is reached by HTTP without TLS."""

    def __init__(self, text: str) -> None:
        if "://" not in text:
            text = "http://" + text
        refused = errors.refused("", "the proxy is not an http:// URL, other proxies are not used")
        try:
            parts = urllib.parse.urlsplit(text)
            hostname, port = parts.hostname, parts.port or 80
        except ValueError:
            raise refused from None
        if parts.scheme != "http" or not hostname:
            raise refused
        self.hostname, self.port = hostname, port
        self.headers: dict[str, str] = {}
        if parts.username is not None:
            user = urllib.parse.unquote(parts.username) + ":"
            word = (user + urllib.parse.unquote(parts.password or "")).encode()
            self.headers["Proxy-Authorization"] = "Basic " + base64.b64encode(word).decode()


def _open_tunnel(connection: Connection, url: Url, proxy: _Proxy) -> None:
    host = f"[{url.hostname}]" if ":" in url.hostname else url.hostname
    place = f"{host}:{url.port}"
    lines = [f"CONNECT {place} HTTP/1.1", f"Host: {place}"]
    lines += [f"{name}: {value}" for name, value in proxy.headers.items()]
    connection.send("\r\n".join([*lines, "", ""]).encode("latin-1"))
    answer = http.client.HTTPResponse(connection, method="CONNECT")  # type: ignore[arg-type]
    with contextlib.closing(answer):
        answer.begin()
        if answer.status != 200:
            raise OSError(f"the proxy answered {answer.status}")


def _is_public_name(host: str) -> bool:
    """Judges a host that only the proxy resolves."""
    try:
        return is_public(host)
    except ValueError:
        name = "." + host.rstrip(".")
        # "127.1" and "0x7f000001" are addresses, too.
        is_number = name.rpartition(".")[2][:1].isdigit()
        return name.count(".") > 1 and not is_number and not name.endswith(_LOCAL_NAMES)
