"""The table of hostile files, which tests/cpp/test_header_hostile.cpp runs too."""

import pytest
from test_differential_errors import ERROR, same_verdict

from support import (
    children,
    file_builder,
    hostile_cases,
    intentional_differences,
    memory,
    operations,
    strategies,
)

# What the text of each error begins with.
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


def check(outcome, case, begin, end=""):
    """Checks that the verdict is the table's, and that an error has the right class and text."""
    if case.expect == "ok":
        outcome.unwrap()
        return
    assert not outcome.ok, f"{case.name}: accepted"
    assert outcome.failure.kind == ERROR, case.name
    text = outcome.failure.text
    assert text.startswith(begin + FIRST_WORDS[case.expect]), f"{case.name}: {text}"
    assert (" occurs twice" in text) == (case.expect == "kDuplicateName"), f"{case.name}: {text}"
    assert text.endswith(end), f"{case.name}: {text}"


def test_every_class_of_error_is_in_the_table():
    assert {case.expect for case in hostile_cases.ALL} == {"ok", *FIRST_WORDS}
    assert len({case.name for case in hostile_cases.ALL}) == len(hostile_cases.ALL) > 3900


@pytest.mark.parametrize("backend", ["mmap", pytest.param("pread", marks=pytest.mark.slow)])
def test_opening_a_file(scratch, backend):
    path = scratch / "hostile.safetensors"
    for case in hostile_cases.LIGHT:
        file_builder.write(path, case.file())
        outcome = operations.run("look", str(path), "np", backend)
        check(outcome, case, "Error while deserializing header: ", f" (in {path})")
        assert "\n" not in str(outcome.failure), case.name


def test_reading_bytes():
    for case in hostile_cases.LIGHT:
        outcome = operations.run("keys_by_bytes", case.file())
        check(outcome, case, "Error while deserializing: ")


@pytest.mark.slow
def test_upstream_agrees(upstream, scratch):
    """Upstream agrees except for intended differences, which the judge explains."""
    path = scratch / "hostile.safetensors"
    for case in hostile_cases.LIGHT:
        content = case.file()
        file_builder.write(path, content)
        ours = operations.run("keys_by_file", str(path))
        same_verdict(ours, upstream.run("keys_by_file", str(path)), content)


def test_the_judge_accepts_what_this_package_accepts():
    """The judge refuses no file that this package accepts."""
    for case in hostile_cases.LIGHT:
        if case.expect == "ok":
            assert intentional_differences.why_refused(case.file()) is None, case.name


@pytest.mark.slow
@pytest.mark.skipif(not memory.can_measure_peak(), reason="the peak cannot be measured")
def test_memory_of_heavy_files(tmp_path):
    """Opening or refusing takes at most 8 times the header and 64 MB."""
    script = """
        import sys
        from safetensors import SafetensorError, safe_open
        from support import memory
        path, expect, allowed = sys.argv[1], sys.argv[2], int(sys.argv[3])
        found = []
        def open_file():
            try:
                safe_open(path, "np")
                found.append("ok")
            except SafetensorError as error:
                found.append(str(error)[:100])
        taken = memory.peak_growth(open_file)
        assert (found == ["ok"]) == (expect == "ok"), found
        assert taken <= allowed, f"{taken} bytes, allowed are {allowed}"
    """
    path = tmp_path / "heavy.safetensors"
    # The C++ tests measure all of them each time.
    for case in hostile_cases.HEAVY[:: 3 if strategies.MULTIPLIER <= 1 else 1]:
        content = case.file()
        file_builder.write(path, content)
        done = children.run_raw(script, path, case.expect, 8 * len(content) + (64 << 20))
        assert done.returncode == 0, f"{case.name}: {done.stderr}"
