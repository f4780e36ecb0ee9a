"""An independent judge of the files that this package refuses and upstream accepts.

It does not use the package: it reads the header with Python's json.
"""

import json
import struct


class _Repeated(Exception):
    """Raised if an object of the header repeats a key."""


def _object(pairs):
    if len({key for key, _ in pairs}) != len(pairs):
        raise _Repeated
    return dict(pairs)


def why_refused(content):
    """Returns the rule of the format that a file breaks and upstream does not check, or None.

    Also returns None for files that both packages must refuse: comparing them tests that.
    """
    if len(content) < 8:
        return None
    (length,) = struct.unpack_from("<Q", content)
    header = content[8 : 8 + length]
    if header[:1] in (b" ", b"\t", b"\n", b"\r"):
        return "white space before the header"
    if header.rstrip(b" ")[-1:] in (b"\t", b"\n", b"\r"):
        return "trailing bytes other than spaces"
    try:
        parsed = json.loads(header.decode(), object_pairs_hook=_object)
    except _Repeated:
        return "duplicate key"
    except (ValueError, RecursionError):
        return None
    if not isinstance(parsed, dict):
        return None
    for name, entry in parsed.items():
        if name == "__metadata__":
            continue
        if isinstance(entry, list):
            return "entry that is not an object"
        if isinstance(entry, dict) and isinstance(entry.get("dtype"), dict):
            return "dtype that is not a string"
    return None
