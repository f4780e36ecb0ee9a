"""Intended differences from upstream when opening files: a test for each."""

import errno
import os
import pathlib
import socket
import sys

import pytest

from safetensors import SafetensorError, deserialize, safe_open
from support import children, file_builder, hostile_headers, memory, operations
from support.file_builder import entry, from_entries, raw
from support.hostile_headers import EIGHT, GOOD, text

ENTRY = '{"dtype":"F32","shape":[2],"data_offsets":[0,8]}'
FIELDS = ENTRY[1:-1]
MANY = ",".join(f'"{i}":{{"dtype":"U8","shape":[0],"data_offsets":[0,0]}}' for i in range(500))
DUPLICATES = {
    "names": f'{{"a":{ENTRY},"a":{ENTRY}}}',
    "names, one escaped": f'{{"a":{ENTRY},"\\u0061":{ENTRY}}}',
    "names, both escaped": f'{{"\\ud83d\\ude00":{ENTRY},"😀":{ENTRY}}}',
    "names, far apart": f'{{"a":{ENTRY},{MANY},"a":{ENTRY}}}',
    "empty names": f'{{"":{ENTRY},"":{ENTRY}}}',
    "metadata keys": f'{{"__metadata__":{{"k":"1","k":"2"}},"a":{ENTRY}}}',
    "metadata keys, one escaped": f'{{"__metadata__":{{"k":"1","\\u006b":"1"}},"a":{ENTRY}}}',
    "unknown fields": f'{{"a":{{"x":1,"x":1,{FIELDS}}}}}',
    "keys in an unknown field": f'{{"a":{{"x":{{"y":1,"y":2}},{FIELDS}}}}}',
    "keys deep in an unknown field": f'{{"a":{{"x":[[{{"y":[{{"z":1,"z":1}}]}}]],{FIELDS}}}}}',
}
DUPLICATES_UPSTREAM_REFUSES = {
    "metadata": f'{{"__metadata__":{{}},"__metadata__":{{}},"a":{ENTRY}}}',
    "metadata, one escaped": f'{{"__metadata__":{{}},"\\u005f_metadata__":{{}},"a":{ENTRY}}}',
    "metadata null and again": f'{{"__metadata__":null,"__metadata__":null,"a":{ENTRY}}}',
    "fields": f'{{"a":{{"dtype":"F32",{FIELDS}}}}}',
    "fields, one escaped": f'{{"a":{{"d\\u0074ype":"F32",{FIELDS}}}}}',
}


def refused(content, tmp_path):
    """Returns the error text for a file and for its bytes, which must be equal."""
    path = file_builder.write(tmp_path / "refused.safetensors", content)
    with pytest.raises(SafetensorError) as by_bytes:
        deserialize(content)
    for backend in ("mmap", "pread"):
        with pytest.raises(SafetensorError) as by_file:
            safe_open(path, "np", backend=backend)
        assert str(by_file.value).startswith("Error while deserializing header: ")
    assert str(by_bytes.value).startswith("Error while deserializing: ")
    return str(by_file.value)


@pytest.mark.parametrize("name", DUPLICATES)
def test_duplicate_keys_are_refused(upstream, tmp_path, name):
    """This holds at every level and for every call; upstream keeps one of the values."""
    content = from_entries(DUPLICATES[name], EIGHT)
    assert "duplicate" in refused(content, tmp_path).lower()
    assert upstream.run("keys_by_bytes", content).ok


@pytest.mark.parametrize("name", DUPLICATES_UPSTREAM_REFUSES)
def test_duplicate_keys_that_upstream_refuses_too(upstream, tmp_path, name):
    """Repeated fields of an entry, and a second `__metadata__`."""
    content = from_entries(DUPLICATES_UPSTREAM_REFUSES[name], EIGHT)
    assert "duplicate" in refused(content, tmp_path).lower()
    assert not upstream.run("keys_by_bytes", content).ok


@pytest.mark.parametrize("space", [" ", "\n", "\t", "\r", "        "])
def test_white_space_before_the_header_is_refused(upstream, tmp_path, space):
    """The format says that a header begins with `{`."""
    content = from_entries(space + "{}")
    refused(content, tmp_path)
    assert upstream.run("keys_by_bytes", content).ok


@pytest.mark.parametrize("tail", ["\n", "\t", "\r", " \n ", "  \t"])
def test_trailing_bytes_other_than_spaces_are_refused(upstream, tmp_path, tail):
    """The format pads with spaces only."""
    content = from_entries("{}" + tail)
    refused(content, tmp_path)
    assert upstream.run("keys_by_bytes", content).ok


@pytest.mark.parametrize("entry_text", ['["F32",[2],[0,8]]', '[{"F32":null},[2],[0,8]]'])
def test_an_entry_that_is_not_an_object_is_refused(upstream, tmp_path, entry_text):
    """Upstream accepts the fields of an entry in an array."""
    refused(text(entry_text), tmp_path)
    assert upstream.run("keys_by_bytes", text(entry_text)).ok


def test_a_dtype_that_is_not_a_string_is_refused(upstream, tmp_path):
    """Upstream accepts an object with the dtype as its only key."""
    content = text('{"dtype":{"F32":null},"shape":[2],"data_offsets":[0,8]}')
    refused(content, tmp_path)
    assert upstream.run("keys_by_bytes", content).ok


def test_metadata_null_is_accepted(upstream, tmp_path):
    """mlx writes it. Both packages return None as the metadata."""
    path = file_builder.write(tmp_path / "null.st", hostile_headers.ACCEPTED["metadata null"])
    for peer in (operations, upstream):
        answer = peer.run("look", str(path), "np", "mmap").unwrap()
        assert (answer["keys"], answer["metadata"]) == (["a"], None)


def test_unknown_fields_are_skipped(tmp_path):
    """Unknown fields may have any JSON value and any position."""
    for value in ("null", "1e5", '"F32"', "[[[]]]", '{"dtype":"U8","shape":[9]}', "-0.5", "1e300"):
        for at in (0, 1, 2, 3):
            fields = ['"dtype":"F32"', '"shape":[2]', '"data_offsets":[0,8]']
            fields.insert(at, f'"extra":{value}')
            path = file_builder.write(tmp_path / "fields.st", text("{" + ",".join(fields) + "}"))
            with safe_open(path, "np") as handle:
                assert handle.get_slice("a").get_shape() == [2]


OPEN = """
    import contextlib, sys
    from safetensors import SafetensorError, safe_open
    from support import memory

    def open_file():
        with contextlib.suppress(SafetensorError):
            safe_open(sys.argv[1], "np")

    print(memory.peak_growth(open_file))
"""
HEAVY = {
    "numbers": "[" + "0," * 2_000_000 + "0]",
    "empty arrays": "[" + "[]," * 1_300_000 + "[]]",
    "empty objects": "[" + "{}," * 1_300_000 + "{}]",
    "one key": "[" + '{"":0},' * 600_000 + "0]",
    "strings": "[" + '"",' * 1_300_000 + "0]",
    "one long string": '"' + "x" * 4_000_000 + '"',
    "escapes": '"' + "\\n" * 2_000_000 + '"',
    "keys": "{" + ",".join(f'"{i}":0' for i in range(400_000)) + "}",
}


@pytest.mark.skipif(not memory.can_measure_peak(), reason="the peak cannot be measured")
@pytest.mark.parametrize("name", HEAVY)
def test_memory_while_parsing_is_a_small_multiple_of_the_header(tmp_path, name):
    """A 4 MB header takes at most 8 times 4 MB; upstream takes 182 MB for `one key`."""
    content = text('{"x":' + HEAVY[name] + "," + FIELDS + "}")
    path = file_builder.write(tmp_path / "heavy.st", content)
    assert int(children.run(OPEN, path)) < 8 * len(content)


@pytest.mark.parametrize("opening", ["[", '{"a":'])
def test_nesting_is_bounded(tmp_path, opening):
    """A header of brackets is refused without a stack overflow."""
    depth = 20_000_000 // len(opening)
    refused(from_entries('{"a":' + opening * depth), tmp_path)


def open_in_child(path):
    """Returns what a fresh process prints when it opens `path`; a hang fails the test."""
    code = (
        "import safetensors\n"
        "for backend in ('mmap', 'pread'):\n"
        "    try: safetensors.safe_open(sys.argv[1], 'np', backend=backend)\n"
        "    except (OSError, safetensors.SafetensorError) as error:\n"
        "        print(type(error).__name__, getattr(error, 'errno', None), error)\n"
    )
    lines = children.run(code, path, timeout=20).splitlines()
    assert len(lines) == 2, "opened, or an error of two lines"
    assert lines[0] == lines[1]
    return lines[0]


def test_a_directory_is_an_is_a_directory_error(upstream, tmp_path):
    """Upstream: OSError, "No such device", no errno."""
    for backend in ("mmap", "pread"):
        with pytest.raises(IsADirectoryError) as caught:
            safe_open(tmp_path, "np", backend=backend)
        assert caught.value.errno == errno.EISDIR
        assert str(tmp_path) in str(caught.value)
    theirs = upstream.evaluate("safe_open(path, 'np')", path=str(tmp_path)).failure
    assert (theirs.kind, theirs.errno) == ("builtins.OSError", None)


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="no named pipes here")
def test_a_named_pipe_is_refused_at_once(tmp_path):
    """Upstream waits for a writer for ever."""
    os.mkfifo(tmp_path / "pipe")
    assert str(tmp_path / "pipe") in open_in_child(tmp_path / "pipe")


@pytest.mark.skipif(not hasattr(socket, "AF_UNIX"), reason="no sockets in the file system here")
def test_a_socket_is_refused(tmp_path, monkeypatch):
    """The error names it, and no connection is tried."""
    # A socket's path may be no longer than 107 bytes.
    monkeypatch.chdir(tmp_path)
    with socket.socket(socket.AF_UNIX) as server:
        server.bind("socket")
        assert str(tmp_path / "socket") in open_in_child(tmp_path / "socket")


@pytest.mark.parametrize("device", ["/dev/null", "/dev/zero", "/dev/urandom"])
def test_a_device_is_refused_at_once(device):
    """/dev/zero would have been read as an endless file."""
    if not os.path.exists(device):
        pytest.skip(f"no {device} here")
    assert device in open_in_child(device)


def sparse_file(path, size):
    """A file of one U8 tensor of `size` bytes that takes no space on disk."""
    header = from_entries({"a": entry("U8", (size,), 0, size)})
    path.write_bytes(header)
    try:
        os.truncate(path, len(header) + size)
    except OSError as error:
        pytest.skip(f"this file system has no sparse files of that size: {error}")
    return path


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc/sys/vm")
def test_a_file_larger_than_memory_opens(tmp_path):
    """64 GB are mapped private and writable without a reservation of memory."""
    if pathlib.Path("/proc/sys/vm/overcommit_memory").read_text().strip() == "2":
        pytest.skip("vm.overcommit_memory=2 counts every private mapping")
    path = sparse_file(tmp_path / "huge.st", 64 << 30)
    with safe_open(path, "np") as handle:
        tensor = handle.get_tensor("a")
        assert tensor.shape == (64 << 30,)
        assert tensor[-1] == 0
        tensor[-1] = 7
        assert handle.get_slice("a")[-1:].tolist() == [7]
    with safe_open(path, "np", backend="pread") as handle:
        assert handle.get_slice("a")[-2:].tolist() == [0, 0]


def os_error(path, kind, number):
    """Returns the error for `path`, after checking its class, errno and file name."""
    found = []
    for backend in ("mmap", "pread"):
        with pytest.raises(kind) as caught:
            safe_open(path, "np", backend=backend)
        assert caught.value.errno == number
        assert caught.value.filename == os.fspath(path)
        assert os.fspath(path) in str(caught.value)
        found.append(str(caught.value))
    assert found[0] == found[1]
    return found[0]


def test_missing_file_keeps_errno(upstream, tmp_path):
    """Upstream's text, with ENOENT, which upstream does not set."""
    path = str(tmp_path / "missing.st")
    assert os_error(path, FileNotFoundError, errno.ENOENT).startswith(
        f"No such file or directory: {path}"
    )
    theirs = upstream.evaluate("safe_open(path, 'np')", path=path).failure
    assert theirs.errno is None


def test_a_file_as_folder_is_a_not_a_directory_error(upstream, tmp_path):
    """errno is ENOTDIR; upstream reports every file that cannot be opened as missing."""
    path = str(file_builder.write(tmp_path / "file.st", GOOD) / "x")
    assert os_error(path, NotADirectoryError, errno.ENOTDIR)
    theirs = upstream.evaluate("safe_open(path, 'np')", path=path).failure
    assert theirs.kind == "builtins.FileNotFoundError"


def test_permission_denied_is_a_permission_error(tmp_path):
    """errno is EACCES; the test as root opens the file as another user."""
    path = file_builder.write(tmp_path / "secret.st", GOOD)
    path.chmod(0)
    superuser = hasattr(os, "geteuid") and os.geteuid() == 0
    if superuser:
        os.seteuid(65534)
    try:
        os_error(path, PermissionError, errno.EACCES)
    finally:
        if superuser:
            os.seteuid(0)


def test_a_loop_of_links_keeps_errno(tmp_path):
    """An errno without its own class raises OSError with that errno."""
    (tmp_path / "loop").symlink_to("loop")
    os_error(tmp_path / "loop", OSError, errno.ELOOP)


def test_a_truncated_download_says_how_much_is_missing(tmp_path):
    """The error has the bytes that the header needs, those of the file, and the likely reason."""
    full = file_builder.to_bytes({"a": raw("U8", (5_000_000,), bytes(5_000_000))})
    message = refused(full[:1_500_000], tmp_path)
    assert message.startswith("Error while deserializing header: incomplete metadata, file not")
    assert f"expects {len(full):,} bytes, has 1,500,000: truncated?" in message
    assert "refused.safetensors" in message


LFS = b"version https://git-lfs.github.com/spec/v1\noid sha256:%064d\nsize 548105171\n" % 7
MISTAKEN = {
    "a Git LFS pointer": (LFS, "git", "lfs"),
    "a pickle": (b"\x80\x02}q\x00(X\x01\x00\x00\x00aq\x01K\x01u." + bytes(40), "pickle", ""),
}


@pytest.mark.parametrize("name", MISTAKEN)
def test_other_files_are_named(upstream, tmp_path, name):
    """The error has upstream's text and the name of the other format."""
    content, *words = MISTAKEN[name]
    message = refused(content, tmp_path)
    theirs = upstream.run("keys_by_file", str(tmp_path / "refused.safetensors")).failure
    assert message.startswith(theirs.text)
    added = message[len(theirs.text) :].lower().replace("refused.safetensors", "")
    assert all(word in added for word in words), message
