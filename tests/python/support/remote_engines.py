"""Opens a remote file by each engine, with settings that fail fast, and full of secrets."""

import concurrent.futures
import logging
import pickle
import signal
import time
import traceback

import pytest

from safetensors import SafetensorError
from safetensors._remote.open import open_reader
from support.certificates import certificate

# Each is given to the engines in one place, and must not come out of any.
SECRETS = {
    "query": "CANARY-OF-QUERY",
    "header": "CANARY-OF-HEADER",
    "token": "CANARY-OF-TOKEN",
    "key": "CANARYKEYID0",
    "secret": "CANARY-OF-SECRET-KEY",
    "session": "CANARY-OF-SESSION-TOKEN",
}
FAST = {"tries": 2, "connect_timeout": 2, "idle_timeout": 0.4, "timeout": 1.5}
ENGINES = ("http", "https", "s3")
PATH = "/bucket/model.safetensors"


def open_by(engine, server, **options):
    """Returns the reader of PATH of a server."""
    url, settings = address(engine, server)
    return open_reader(url, FAST | settings | options)


def server_of(engine, kind, *args, **options):
    """Returns a RangeServer, or one of its kind, that speaks what an engine wants."""
    return kind(*args, tls=engine == "https", **options)


def address(engine, server, path=PATH):
    """Returns the URL of a path, and the storage options that lead to the server."""
    if engine == "s3":
        keys = {"access_key_id": SECRETS["key"], "secret_access_key": SECRETS["secret"]}
        keys |= {"session_token": SECRETS["session"], "region": "us-east-1"}
        return f"s3:/{path}", {"endpoint": server.url(), **keys}
    signed = f"{server.url(path)}?signature={SECRETS['query']}"
    options = {"token": SECRETS["token"]}
    if engine == "https":  # without other headers, obstore reads what is longer than 1 MiB
        return signed, options | {"ca_file": str(certificate().authority)}
    return signed, options | {"headers": {"X-Secret": SECRETS["header"]}}


def kind_of(error):
    """Returns the row of the table of errors that an error belongs to."""
    assert isinstance(error, SafetensorError), repr(error)
    for name, kind in [
        ("missing", FileNotFoundError),
        ("denied", PermissionError),
        ("timeout", TimeoutError),
        ("connection", ConnectionError),
    ]:
        if isinstance(error, kind):
            assert error.code == "io"
            return name
    names = {"file_changed": "changed", "io": "io", "invalid_argument": "refused"}
    return names[error.code]


class Words(logging.Handler):
    """Collects all that is logged, for `check`."""

    def __init__(self):
        super().__init__(level=0)
        self.lines = []

    def emit(self, record):
        """Keeps a record's text."""
        self.lines.append(self.format(record))

    def __enter__(self):
        root = logging.getLogger()
        self._level = root.level
        root.addHandler(self)
        root.setLevel(0)
        return self

    def __exit__(self, *_):
        root = logging.getLogger()
        root.removeHandler(self)
        root.setLevel(self._level)

    def check(self, *objects):
        """Fails if a secret is in what was logged, or in any text of the objects."""
        texts = list(self.lines)
        for each in objects:
            texts += [repr(each), str(each)]
            if isinstance(each, BaseException):
                texts += traceback.format_exception(each)
                texts += [repr(vars(each)), repr(each.args), str(pickle.dumps(each))]
        for text in texts:
            found = [secret for secret in SECRETS.values() if secret in text]
            assert not found, f"{found} in {text}"


def cancel_reads(reader, server, count, nbytes):
    """Starts reads that the server does not answer, cancels them, and checks that all end."""
    with concurrent.futures.ThreadPoolExecutor(count) as pool:
        reads = [pool.submit(reader.read, 0, nbytes) for _ in range(count)]
        deadline = time.monotonic() + 20
        while server.requests < count + 1 and time.monotonic() < deadline:
            time.sleep(0.01)
        began = time.monotonic()
        reader.cancel()
        for read in reads:
            with pytest.raises(SafetensorError, match="was cancelled"):
                read.result(20)
        assert time.monotonic() - began < 20


def interrupt(process, server):
    """Sends SIGINT to a child while it reads, and checks that it ends soon, with status 7."""
    while server.requests < 2:
        assert process.poll() is None
        time.sleep(0.01)
    time.sleep(0.2)
    process.send_signal(signal.SIGINT)
    begin = time.monotonic()
    assert process.stdout.readline() == "interrupted\n"
    assert process.wait(20) == 7
    assert time.monotonic() - begin < 10
