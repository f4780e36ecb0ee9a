"""DelayProxy: a TCP proxy that makes the way to a server on the loopback interface long or narrow.

    with RangeServer(files) as server, DelayProxy(server.port, latency=0.05) as proxy:
        read(proxy.url("/model.safetensors"))

It suits protocols of requests and answers: what a client sends is held back by `latency` seconds,
what the server sends is not.
"""

import contextlib
import socket
import threading
import time

BLOCK = 1 << 16


class DelayProxy:
    """Passes connections on to `port`. `bandwidth`: bytes a second that all answers share."""

    def __init__(self, port, *, latency=0.0, bandwidth=None, scheme="http"):
        self._target = ("127.0.0.1", port)
        self._latency = latency
        self._bandwidth = bandwidth
        self._scheme = scheme
        self._lock = threading.Lock()
        self._stopping = threading.Event()
        self._free_at = 0.0  # when the narrow way has passed on all that it was given
        self._open = set()
        self._threads = []
        self.connections = 0
        self.most_at_once = 0  # connections
        self.bytes_received = 0  # from the server

    def url(self, path=""):
        """Returns the URL of a path, by way of this proxy."""
        return f"{self._scheme}://127.0.0.1:{self.port}{path}"

    def __enter__(self):
        self._listener = socket.create_server(("127.0.0.1", 0), backlog=128)
        self.port = self._listener.getsockname()[1]
        self._start(self._accept)
        return self

    def __exit__(self, *_):
        self._stopping.set()
        self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        with self._lock:
            for connection in self._open:
                _cut(connection)
        while self._threads:
            self._threads.pop().join()

    def _start(self, function, *args):
        thread = threading.Thread(target=function, args=args)
        self._threads.append(thread)
        thread.start()

    def _accept(self):
        with contextlib.suppress(OSError):  # the listener was closed
            while True:
                client, _ = self._listener.accept()
                self._start(self._pass_on, client)

    def _pass_on(self, client):
        with client, contextlib.suppress(OSError), socket.create_connection(self._target) as server:
            pair = {client, server}
            for connection in pair:
                connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            with self._lock:
                if self._stopping.is_set():
                    return
                self._open |= pair
                self.connections += 1
                self.most_at_once = max(self.most_at_once, len(self._open) // 2)
            back = threading.Thread(target=self._pump, args=(server, client, self._narrow))
            back.start()
            self._pump(client, server, self._wait)
            back.join()
            with self._lock:
                self._open -= pair

    def _pump(self, source, target, hold):
        with contextlib.suppress(OSError):
            while block := source.recv(BLOCK):
                hold(len(block))
                target.sendall(block)
        _cut(source)
        _cut(target)

    def _wait(self, _):
        if self._latency:
            self._stopping.wait(self._latency)

    def _narrow(self, nbytes):
        with self._lock:
            self.bytes_received += nbytes
            if not self._bandwidth:
                return
            self._free_at = max(self._free_at, time.monotonic()) + nbytes / self._bandwidth
            wait = self._free_at - time.monotonic()
        self._stopping.wait(wait)


def _cut(connection):
    with contextlib.suppress(OSError):
        connection.shutdown(socket.SHUT_RDWR)
