"""Puts Python functions in place of the calls that the compiled module makes of the C library.

The module finds a function of another library by an entry of its global offset table, which the
loader has filled in: a context of `replaced` changes the entry. Linux, 64 bits.
"""

import contextlib
import ctypes
import os
import struct
import sys

import pytest

from safetensors import _core

_RELOCATIONS = {6, 7, 1025, 1026}  # GLOB_DAT and JUMP_SLOT of x86-64 and aarch64
_DT_SYMTAB, _DT_STRTAB, _DT_RELA, _DT_RELASZ, _DT_PLTRELSZ, _DT_JMPREL = 6, 5, 7, 8, 2, 23

_INT, _TEXT, _SIZE, _VOID = ctypes.c_int, ctypes.c_char_p, ctypes.c_size_t, ctypes.c_void_p
_TYPES = {
    "fchmod": (_INT, _INT, _INT),
    "fcntl": (_INT, _INT, _INT, ctypes.c_long),
    "flock": (_INT, _INT, _INT),
    "fsync": (_INT, _INT),
    "ftruncate": (_INT, _INT, ctypes.c_int64),
    "mkdirat": (_INT, _INT, _TEXT, _INT),
    "openat": (_INT, _INT, _TEXT, _INT, _INT),
    "pwrite": (ctypes.c_ssize_t, _INT, _VOID, _SIZE, ctypes.c_int64),
    "renameat": (_INT, _INT, _TEXT, _INT, _TEXT),
    "unlinkat": (_INT, _INT, _TEXT, _INT),
}
_libc = ctypes.CDLL(None, use_errno=True)


def _word(address):
    return ctypes.c_uint64.from_address(address)


def _load_address():
    path = os.path.realpath(_core.__file__)
    with open("/proc/self/maps", encoding="utf-8") as maps:
        begins = [line for line in maps if line.rstrip().endswith(path)]
    return int(begins[0].partition("-")[0], 16)


def _dynamic(base):
    """Returns the entries of the module's dynamic section, by tag."""
    offset, size, count = struct.unpack_from("<Q14xHH", ctypes.string_at(base + 32, 28))
    for i in range(count):
        header = ctypes.string_at(base + offset + i * size, 56)
        kind, _, _, address = struct.unpack_from("<IIQQ", header)
        if kind == 2:  # PT_DYNAMIC
            break
    found, at = {}, base + address
    while tag := _word(at).value:
        found[tag] = _word(at + 8).value
        at += 16
    return found


def _entries():
    """Returns the addresses of the entries of each function."""
    base = _load_address()
    dynamic = _dynamic(base)

    def place(tag):  # glibc adds the base, musl does not
        return dynamic[tag] if dynamic[tag] >= base else base + dynamic[tag]

    found = {}
    for begin, size in ((_DT_RELA, _DT_RELASZ), (_DT_JMPREL, _DT_PLTRELSZ)):
        if begin not in dynamic:
            continue
        table = ctypes.string_at(place(begin), dynamic[size])
        for offset, info, _ in struct.iter_unpack("<QQq", table):
            if info & 0xFFFFFFFF in _RELOCATIONS:
                name = _word(place(_DT_SYMTAB) + (info >> 32) * 24).value & 0xFFFFFFFF
                text = ctypes.string_at(place(_DT_STRTAB) + name).decode()
                found.setdefault(text.removesuffix("64"), []).append(base + offset)
    return found


def _set(entry, value):
    page = os.sysconf("SC_PAGE_SIZE")
    begin = entry // page * page
    if _libc.mprotect(_VOID(begin), _SIZE(page), 3) != 0:  # the loader has made it read-only
        raise OSError(ctypes.get_errno(), "mprotect")
    _word(entry).value = value


@contextlib.contextmanager
def replaced(calls):
    """Calls `call(function, args)` instead of these functions, by name.

    `function` is the one of the C library. An OSError that `call` raises makes the function fail
    with its errno. Paths are bytes, and the bytes of a pwrite are an address.
    """
    if not sys.platform.startswith("linux") or sys.maxsize < 1 << 32:
        pytest.skip("the compiled module's table of functions is read on Linux with 64 bits only")
    entries, kept = _entries(), []
    try:
        for name, call in calls.items():
            kind = ctypes.CFUNCTYPE(*_TYPES[name], use_errno=True)
            for entry in entries[name]:
                original = _word(entry).value
                made = kind(_failing(call, kind(original)))
                kept.append((entry, original, made))
                _set(entry, ctypes.cast(made, _VOID).value)
        yield
    finally:
        for entry, original, _ in kept:
            _set(entry, original)


def _failing(call, function):
    def checked(*args):
        found = function(*args)
        if found == -1:
            number = ctypes.get_errno()
            raise OSError(number, os.strerror(number))
        return found

    def called(*args):
        try:
            return call(checked, args)
        except OSError as error:
            ctypes.set_errno(error.errno)
            return -1

    return called
