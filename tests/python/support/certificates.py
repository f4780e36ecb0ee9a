"""Certificates for TLS servers on the loopback interface, made by the program `openssl`."""

import atexit
import functools
import pathlib
import shutil
import ssl
import subprocess
import tempfile
import threading
from typing import NamedTuple

import pytest

# The names and addresses that a server may have in a test. Tests patch the resolver for the names.
NAMES = ("localhost", "files.example.com", "other.example.net")
ADDRESSES = ("127.0.0.1", "127.0.0.2", "::1")


class Certificate(NamedTuple):
    """Paths of a server's chain and key, and of the authority that a client must trust."""

    chain: pathlib.Path
    key: pathlib.Path
    authority: pathlib.Path

    def server_context(self):
        """Returns the SSL context of a server with this certificate."""
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(self.chain, self.key)
        return context


_making = threading.Lock()


def certificate():
    """Returns a certificate for NAMES and ADDRESSES. Skips the test where openssl is missing."""
    with _making:
        return _made()


@functools.cache
def _made():
    if shutil.which("openssl") is None:
        pytest.skip("the program openssl, which makes the server's certificate, is missing")
    folder = pathlib.Path(tempfile.mkdtemp(prefix="certificate-"))
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    new = ["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1"]
    new += ["-nodes", "-days", "2"]
    ca = ["-keyout", "ca.key", "-out", "ca.pem", "-subj", "/CN=Tests of safetensors"]
    ca += ["-addext", "keyUsage=critical,keyCertSign"]
    # rustls refuses an authority's certificate as a server's own: these are two.
    names = [f"DNS:{name}" for name in NAMES] + [f"IP:{address}" for address in ADDRESSES]
    leaf = ["-keyout", "leaf.key", "-out", "leaf.pem", "-subj", "/CN=localhost"]
    leaf += ["-CA", "ca.pem", "-CAkey", "ca.key", "-addext", "basicConstraints=critical,CA:FALSE"]
    leaf += ["-addext", f"subjectAltName={','.join(names)}"]
    for options in (ca, leaf):
        done = subprocess.run([*new, *options], cwd=folder, capture_output=True, text=True)
        assert done.returncode == 0, done.stderr
    return Certificate(folder / "leaf.pem", folder / "leaf.key", folder / "ca.pem")
