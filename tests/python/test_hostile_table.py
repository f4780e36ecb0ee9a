"""The table of hostile files, of which tests/cpp/test_header_hostile.cpp runs every row too."""

import sys

import pytest
from test_differential_errors import ERROR, same_verdict

from support import (
    children,
    file_builder,
    hostile_cases,
    intentional_differences,
    operations,
    strategies,
)

# What the text of each error begins with: Python has no codes.
FIRST_WORDS = {
    "kInvalidHeaderUtf8": "invalid UTF-8 in header: ",
    "kInvalidHeaderJson": "invalid JSON in header: ",
    "kDuplicateName": "invalid JSON in header: ",
    "kHeaderTooLarge": "header too large: ",
    "kHeaderTooSmall": "header too small: ",
    "kInvalidHeaderLength": "invalid header length: ",
    "kInvalidOffset": "invalid offset for tensor `",
    "kInvalidTensorInfo": "invalid shape, data type, or offset for tensor `",
    "kIncompleteData": "incomplete metadata, file not fully covered: ",
    "kOverflow": "overflow computing buffer size from shape and/or element type: tensor `",
    "kMisalignedSlice": "The slice is slicing for subbytes dtypes, ",
}


def check(outcome, recipe, begin, end=""):
    """The verdict is the table's; an error has the right class and words."""
    if recipe.expect == "ok":
        outcome.unwrap()
        return
    assert not outcome.ok, f"{recipe.name}: accepted"
    assert outcome.failure.kind == ERROR, recipe.name
    text = outcome.failure.text
    assert text.startswith(begin + FIRST_WORDS[recipe.expect]), f"{recipe.name}: {text}"
    assert (" stands twice" in text) == (recipe.expect == "kDuplicateName"), (
        f"{recipe.name}: {text}"
    )
    assert text.endswith(end), f"{recipe.name}: {text}"


def test_every_class_of_error_is_in_the_table():
    assert {recipe.expect for recipe in hostile_cases.ALL} == {"ok", *FIRST_WORDS}
    assert len({recipe.name for recipe in hostile_cases.ALL}) == len(hostile_cases.ALL) > 3900


@pytest.mark.parametrize("backend", ["mmap", "pread"])
def test_opening_a_file(scratch, backend):
    path = scratch / "hostile.safetensors"
    for recipe in hostile_cases.LIGHT:
        file_builder.write(path, recipe.file())
        outcome = operations.run("look", str(path), "np", backend)
        check(outcome, recipe, "Error while deserializing header: ", f" (in {path})")
        assert "\n" not in str(outcome.failure), recipe.name


def test_reading_bytes():
    for recipe in hostile_cases.LIGHT:
        outcome = operations.run("keys_by_bytes", recipe.file())
        check(outcome, recipe, "Error while deserializing: ")


def test_official_agrees(official, scratch):
    """But for the wanted differences, of which the judge knows the reason."""
    path = scratch / "hostile.safetensors"
    for recipe in hostile_cases.LIGHT:
        content = recipe.file()
        file_builder.write(path, content)
        ours = operations.run("keys_by_file", str(path))
        same_verdict(ours, official.run("keys_by_file", str(path)), content)


def test_only_the_judge_sees_what_official_overlooks():
    """None of the files that we take is one that the judge would refuse."""
    for recipe in hostile_cases.LIGHT:
        if recipe.expect == "ok":
            assert intentional_differences.why_refused(recipe.file()) is None, recipe.name


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="measures through /proc")
def test_memory_of_heavy_files(tmp_path):
    """No more than 8 times the header and 64 MB, for opening and for being refused."""
    script = """
        import os, pathlib, sys
        from safetensors import SafetensorError, safe_open
        def kept(field):
            status = pathlib.Path("/proc/self/status").read_text()
            return int(status.split(field)[1].split()[0]) * 1024
        path, expect, allowed = sys.argv[1], sys.argv[2], int(sys.argv[3])
        before = kept("VmRSS:")
        try:
            file = safe_open(path, "np")
            found = "ok"
        except SafetensorError as error:
            found = str(error)[:100]
        taken = kept("VmHWM:") - before
        assert (found == "ok") == (expect == "ok"), found
        assert taken <= allowed, f"{taken} bytes, allowed are {allowed}"
    """
    path = tmp_path / "heavy.safetensors"
    # The C++ tests measure all of them each time.
    for recipe in hostile_cases.HEAVY[:: 3 if strategies.MULTIPLIER <= 1 else 1]:
        content = recipe.file()
        file_builder.write(path, content)
        done = children.run_raw(script, path, recipe.expect, 8 * len(content) + (64 << 20))
        assert done.returncode == 0, f"{recipe.name}: {done.stderr}"
