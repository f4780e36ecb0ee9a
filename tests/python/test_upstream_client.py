"""The fixture of upstream: it runs upstream, and survives a crash of it."""

import pytest

from support import operations, upstream_client


def test_it_is_the_rust_package(upstream):
    """Its version is upstream's, and its extension is in the directory of the installation."""
    assert upstream.version == upstream_client.VERSION
    found = upstream.evaluate("safetensors._safetensors_rust.__file__").unwrap()
    assert found.startswith(str(upstream_client.directory()))
    assert found != operations.evaluate("safetensors.__file__")


def test_errors_come_with_class_text_and_number(upstream):
    """A Failure has class, text and errno."""
    found = upstream.evaluate("open('no-such-file')").failure
    assert found.kind == "builtins.FileNotFoundError"
    assert "builtins.OSError" in found.bases
    assert (found.errno, "no-such-file" in found.text) == (2, True)


def test_output_does_not_disturb_the_answers(upstream):
    """Replies use a separate pipe."""
    assert upstream.evaluate("print('x' * 100_000) or 5").unwrap() == 5


def test_a_crash_is_reported_and_the_next_call_works(upstream):
    """Another process replaces the one that crashed."""
    peer = upstream_client.Upstream(upstream.target)
    try:
        with pytest.raises(upstream_client.UpstreamCrashed, match=r"died \(7\)"):
            peer.evaluate("__import__('os')._exit(7)")
        assert len(peer.crashes) == 1
        assert peer.evaluate("1 + 1").unwrap() == 2
    finally:
        peer.close()
