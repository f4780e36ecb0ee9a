"""Measures the memory and the reads of this process with Linux's /proc.

Tests measure memory in a child process.
"""

import gc
import os
import pathlib


def can_measure_peak():
    """Whether `peak_growth` works here."""
    try:
        _reset_peak()
    except OSError:
        return False
    return True


def peak_growth(call, *args, **options):
    """Returns by how many bytes the peak during the call exceeds the memory in use before it."""
    gc.collect()
    _reset_peak()
    before = status("VmRSS")
    call(*args, **options)
    return status("VmHWM") - before


def status(field):
    """Returns a field of /proc/self/status in bytes."""
    text = pathlib.Path("/proc/self/status").read_text()
    return int(text.split(field + ":")[1].split()[0]) << 10


def bytes_read():
    """Returns how many bytes this process has read by system calls.

    It costs one read of a fixed size, so that `bytes_read_by` can leave that out.
    """
    fd = os.open("/proc/self/io", os.O_RDONLY)
    try:
        return int(os.read(fd, 40).split()[1])
    finally:
        os.close(fd)


def bytes_read_by(call):
    """Returns how many bytes this process reads by system calls during the call."""
    start, again = bytes_read(), bytes_read()
    call()
    return bytes_read() - again - (again - start)


def _reset_peak():
    """Sets VmHWM to the memory in use now."""
    pathlib.Path("/proc/self/clear_refs").write_text("5")
