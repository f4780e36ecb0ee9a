"""examples/cpp/read_url.cpp, a source over libcurl, on good servers and bad ones."""

import subprocess
from pathlib import Path

import numpy as np
import pytest

from safetensors.numpy import load, save
from support.misbehaving import MisbehavingServer
from support.servers import Answer, RangeServer

PROGRAM = Path(__file__).parents[2] / "build" / "dev" / "examples" / "example_read_url"
if not PROGRAM.exists():
    pytest.skip(
        f"{PROGRAM} is not built: it needs libcurl4-openssl-dev, and cmake --build --preset dev",
        allow_module_level=True,
    )

PATH = "/m.safetensors"
TENSORS = {
    "large": np.arange(5 << 20, dtype=np.uint32),  # 20 MiB: several requests
    "skipped": np.ones(3 << 20, np.uint8),
    "small": np.arange(6, dtype=np.float32).reshape(2, 3),
    "empty": np.zeros((0, 4), np.float16),
}
CONTENT = save(TENSORS, {"a": "b"})


def run(*arguments):
    return subprocess.run(
        [PROGRAM, *arguments], capture_output=True, text=True, timeout=120, check=False
    )


def copied(server, path, *names):
    done = run(server.url(PATH), path, *(names or TENSORS))
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
    return load(path.read_bytes())


def error_of(server, path):
    done = run(server.url(PATH), path, *TENSORS)
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr.count("\n") == 1
    assert not path.exists()
    return done.stderr.rstrip()


def check(found, names=tuple(TENSORS)):
    assert set(found) == set(names)
    for name, array in found.items():
        assert array.dtype == TENSORS[name].dtype
        np.testing.assert_array_equal(array, TENSORS[name])


def test_the_names_take_one_request():
    with RangeServer({PATH: CONTENT}) as server:
        done = run(server.url(PATH))
        assert done.stdout.splitlines() == ["small F32", "large U32", "empty F16", "skipped U8"]
        assert [request.range for request in server.log] == ["bytes=0-65535"]


def test_the_wanted_tensors_only(tmp_path):
    with RangeServer({PATH: CONTENT}) as server:
        check(copied(server, tmp_path / "c", "small"), ["small"])
        assert len(server.log) == 1  # it is behind the header, where the first request reaches
        server.clear()
        check(copied(server, tmp_path / "c", "skipped"), ["skipped"])
        assert len(server.log) == 2
        assert server.bytes_sent < 3.1 * (1 << 20)
        server.clear()
        check(copied(server, tmp_path / "c"))
        assert 3 <= len(server.log) <= 8
        assert server.connections <= len(server.log)
        validators = {request.headers.get("If-Range") for request in server.log[1:]}
        assert len(validators) == 1
        assert None not in validators


def test_a_header_longer_than_the_first_request(tmp_path):
    names = {f"{i:03}" + "x" * 900: np.array([i]) for i in range(100)}
    with RangeServer({PATH: save(names)}) as server:
        done = run(server.url(PATH), tmp_path / "c", *names)
        assert (done.returncode, done.stderr) == (0, "")
    assert load((tmp_path / "c").read_bytes()) == names


FAULTS = ["body_short", "body_reset", "closes", "resets"]


@pytest.mark.parametrize("mode", FAULTS)
@pytest.mark.parametrize("after", [0, 2])
def test_a_server_that_fails_now_and_then(mode, after, tmp_path):
    with MisbehavingServer(mode, {PATH: CONTENT}, after=after, times=2) as server:
        check(copied(server, tmp_path / "c"))


def failing(status, times, headers=()):
    """Answers `times` requests with a status, after the first."""
    seen = []

    def content(request):
        seen.append(request)
        return Answer(status, dict(headers)) if 1 < len(seen) <= 1 + times else CONTENT

    return content


@pytest.mark.parametrize("status", [408, 429, 500, 502, 503])
def test_a_busy_server(status, tmp_path):
    with RangeServer({PATH: failing(status, 2, [("Retry-After", "1")])}) as server:
        check(copied(server, tmp_path / "c"))


def test_a_server_that_fails_for_good(tmp_path):
    with RangeServer({PATH: failing(503, 1000)}) as server:
        text = error_of(server, tmp_path / "c")
        assert "status 503, attempt 5" in text
        assert server.url(PATH) in text


@pytest.mark.parametrize("status", [403, 404, 410])
def test_statuses_that_stay(status, tmp_path):
    with RangeServer({PATH: Answer(status)}) as server:
        assert error_of(server, tmp_path / "c") == f"status {status} (in {server.url(PATH)})"
        assert len(server.log) == 1


def test_errors_show_no_secrets(tmp_path):
    with RangeServer({PATH: Answer(403)}) as server:
        url = server.url(PATH, userinfo="me:secret")
        done = run(f"{url}?token=secret", tmp_path / "c", "small")
        assert (done.returncode, done.stderr) == (1, f"status 403 (in {server.url(PATH)})\n")


def test_nobody_listens():
    with RangeServer({}) as server:
        url = server.url(PATH)
    done = run(url)
    assert done.returncode == 1
    assert "attempt 5" in done.stderr
    done = run("file:///etc/passwd")
    assert (done.returncode, done.stdout) == (1, "")
    assert "attempt 1" in done.stderr


def test_a_server_without_ranges(tmp_path):
    with MisbehavingServer("ignores_ranges", {PATH: CONTENT}) as server:
        text = error_of(server, tmp_path / "c")
        assert text.startswith("the server does not serve ranges of the file")
        assert len(server.log) == 1


CHANGES = [
    "replaced",
    "replaced_ignoring_if_match",
    "replaced_without_etag",
    "etag_changes",
    "total_changes",
]


@pytest.mark.parametrize("mode", CHANGES)
@pytest.mark.parametrize("after", [1, 2])
def test_a_file_that_changes_in_the_middle(mode, after, tmp_path):
    with MisbehavingServer(mode, {PATH: CONTENT}, after=after) as server:
        assert "the file has changed since it was opened" in error_of(server, tmp_path / "c")


@pytest.mark.parametrize("mode", ["no_etag", "no_validators", "weak_etag"])
def test_servers_that_say_less(mode, tmp_path):
    with MisbehavingServer(mode, {PATH: CONTENT}) as server:
        check(copied(server, tmp_path / "c"))


def test_redirects(tmp_path):
    with (
        RangeServer({PATH: CONTENT}) as target,
        MisbehavingServer("redirects", {PATH: CONTENT}, location=target.url(PATH)) as server,
    ):
        check(copied(server, tmp_path / "c"))
        server.location = None  # to itself
        assert "redirect" in error_of(server, tmp_path / "d")


WRONG = [
    "range_misnamed",
    "range_shifted",
    "range_shorter",
    "range_unnamed",
    "range_malformed",
    "total_unknown",
    "range_multipart",
    "gzip_claimed",
]


@pytest.mark.parametrize("mode", WRONG)
@pytest.mark.parametrize("after", [0, 1])
def test_other_bytes_than_wanted_are_refused(mode, after, tmp_path):
    with MisbehavingServer(mode, {PATH: CONTENT}, after=after) as server:
        text = error_of(server, tmp_path / "c")
        assert "answers with other bytes" in text or "has changed" in text


@pytest.mark.parametrize("mode", ["body_endless", "body_longer"])
def test_bodies_without_an_end(mode, tmp_path):
    with MisbehavingServer(mode, {PATH: CONTENT}, after=1) as server:
        found = run(server.url(PATH), tmp_path / "c", *TENSORS)
        assert found.returncode in (0, 1)  # 0: libcurl cuts the body at its length
        if found.returncode == 0:
            check(load((tmp_path / "c").read_bytes()))
        else:
            assert "answers with other bytes" in found.stderr
