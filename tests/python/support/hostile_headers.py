"""Files that break the format, one fault each: {name: bytes}.

Wanted differences from upstream are not here but in test_differences_open.py.
"""

import json
import struct

from support.file_builder import entry, from_entries, with_length

F32 = entry("F32", (2,), 0, 8)
EIGHT = bytes(8)


def one(shape=(2,), offsets=(0, 8), dtype="F32", data=EIGHT, drop=None, **more):
    """A file with one tensor `a` and one fault in its entry."""
    fields = {"dtype": dtype, "shape": shape, "data_offsets": offsets, **more}
    fields.pop(drop, None)
    return from_entries({"a": fields}, data)


def text(entry_text, data=EIGHT):
    """A file with one tensor `a` whose entry is given as JSON text."""
    return from_entries('{"a":' + entry_text + "}", data)


def shape_text(dimension, data=EIGHT):
    """A file whose only dimension is given as JSON text."""
    return text('{"dtype":"F32","shape":[' + dimension + '],"data_offsets":[0,8]}', data)


def offset_text(offset):
    """A file whose second offset is given as JSON text."""
    return text('{"dtype":"U8","shape":[8],"data_offsets":[0,' + offset + "]}")


def two(first, second, size):
    """A file with two U8 tensors at the given offsets."""
    entries = {n: entry("U8", (e - b,), b, e) for n, (b, e) in {"a": first, "b": second}.items()}
    return from_entries(entries, bytes(size))


def nested(depth, closed=True):
    """A file with an unknown field nested `depth` deep."""
    inner = "[" * depth + "]" * (depth * closed)
    return text('{"x":' + inner + ',"dtype":"F32","shape":[2],"data_offsets":[0,8]}')


GOOD = from_entries({"a": F32}, EIGHT)
NAME = '{"%s":{"dtype":"F32","shape":[2],"data_offsets":[0,8]}}'

LENGTH = {
    "empty file": b"",
    "seven bytes": b"\x01" * 7,
    "length only": struct.pack("<Q", 2),
    "length zero": struct.pack("<Q", 0),
    "length zero and data": struct.pack("<Q", 0) + EIGHT,
    "length above 100 MB": with_length(b"{}", b"", 100_000_001),
    "length exactly 100 MB": with_length(b"{}", b"", 100_000_000),
    "length 2^63": with_length(b"{}", b"", 2**63),
    "length 2^64-8": with_length(b"{}", b"", 2**64 - 8),
    "length 2^64-1": b"\xff" * 8 + b"{}",
    "length past the end": with_length(b"{}", b"", 100),
    "length one past the end": with_length(b"{}", b"", 3),
    "length one short": with_length(b"{}", b"", 1),
    "zip": b"PK\x03\x04" + bytes(100),
    "gguf": b"GGUF\x03\x00\x00\x00" + bytes(100),
    "html": b"<!DOCTYPE html><html></html>",
    "lfs pointer": b"version https://git-lfs.github.com/spec/v1\noid sha256:00\nsize 12\n",
}
JSON = {
    "not UTF-8": with_length(b'{"\xff":1}'),
    "UTF-8 cut short": with_length(b'{"a\xe2\x82'),
    "overlong UTF-8": with_length(b'{"\xc0\xaf":1}'),
    "surrogate in UTF-8": with_length(b'{"\xed\xa0\x80":1}'),
    "above U+10FFFF": with_length(b'{"\xf4\x90\x80\x80":1}'),
    "bad UTF-8 after a fault": with_length(b"[]\xff"),
    "not JSON": from_entries('{"a":'),
    "array": from_entries("[]"),
    "array of pairs": from_entries('[["a",1]]'),
    "number": from_entries("1"),
    "string": from_entries('"{}"'),
    "null": from_entries("null"),
    "byte order mark": from_entries("\ufeff{}"),
    "NUL after": from_entries("{}\x00"),
    "comma after": from_entries("{},"),
    "comment": from_entries("/**/{}"),
    "second object": from_entries("{}{}"),
    "trailing comma": text('{"dtype":"F32","shape":[2],"data_offsets":[0,8],}'),
    "no comma": text('{"dtype":"F32" "shape":[2],"data_offsets":[0,8]}'),
    "no colon": text('{"dtype" "F32","shape":[2],"data_offsets":[0,8]}'),
    "single quotes": from_entries("{'a':1}"),
    "unquoted key": from_entries("{a:1}"),
    "deep and open": nested(100_000, closed=False),
    "deep": nested(1000),
    "lone high surrogate": from_entries(NAME % "\\ud800", EIGHT),
    "lone low surrogate": from_entries(NAME % "\\udc00", EIGHT),
    "two high surrogates": from_entries(NAME % "\\ud800\\ud800", EIGHT),
    "bad escape": from_entries(NAME % "\\x41", EIGHT),
    "short escape": from_entries(NAME % "\\u00", EIGHT),
    "control character": from_entries(NAME % "a\nb", EIGHT),
    "NUL in a name": from_entries(NAME % "a\0b", EIGHT),
    "form feed between tokens": from_entries('{\f"a":1}'),
    "no-break space between tokens": from_entries('{\u00a0"a":1}'),
}
ENTRY = {
    "entry a number": text("1"),
    "entry a string": text('"x"'),
    "entry null": text("null"),
    "entry true": text("true"),
    "entry empty": text("{}"),
    "unknown dtype": one(dtype="F99"),
    "dtype in lower case": one(dtype="f32"),
    "dtype empty": one(dtype=""),
    "dtype with a space": one(dtype="F32 "),
    "dtype a number": one(dtype=1),
    "dtype null": one(dtype=None),
    "dtype an array": one(dtype=["F32"]),
    "no dtype": one(drop="dtype"),
    "no shape": one(drop="shape"),
    "no offsets": one(drop="data_offsets"),
    "shape null": one(shape=None),
    "shape a number": one(shape=2),
    "shape a string": one(shape="2"),
    "shape an object": one(shape={"0": 2}),
    "dimension a string": one(shape=["2"]),
    "dimension null": one(shape=[None]),
    "dimension true": one(shape=[True]),
    "dimension an array": one(shape=[[2]]),
    "dimension -2": shape_text("-2"),
    "dimension -0": shape_text("-0", b""),
    "dimension 2.0": shape_text("2.0"),
    "dimension 2e0": shape_text("2e0"),
    "dimension 02": shape_text("02"),
    "dimension +2": shape_text("+2"),
    "dimension 0x2": shape_text("0x2"),
    "dimension NaN": shape_text("NaN"),
    "dimension Infinity": shape_text("Infinity"),
    "dimension 2^64": shape_text("18446744073709551616"),
    "dimension of 400 digits": shape_text("9" * 400),
    "dimension 2^64-1": shape_text("18446744073709551615"),
    "offset -1": offset_text("-1"),
    "offset 8.0": offset_text("8.0"),
    "offset 2^64": offset_text("18446744073709551616"),
    "offset 2^64-1": offset_text("18446744073709551615"),
    "offset 2^63": offset_text("9223372036854775808"),
    "offsets null": one(offsets=None),
    "offsets an object": one(offsets={"0": 0, "1": 8}),
    "no offset": one(offsets=[]),
    "one offset": one(offsets=[0]),
    "three offsets": one(offsets=[0, 8, 9]),
    "metadata a number": from_entries({"__metadata__": 1, "a": F32}, EIGHT),
    "metadata an array": from_entries({"__metadata__": [], "a": F32}, EIGHT),
    "metadata a string": from_entries({"__metadata__": "x", "a": F32}, EIGHT),
    "metadata value a number": from_entries({"__metadata__": {"k": 1}, "a": F32}, EIGHT),
    "metadata value null": from_entries({"__metadata__": {"k": None}, "a": F32}, EIGHT),
    "metadata value an object": from_entries({"__metadata__": {"k": {}}, "a": F32}, EIGHT),
    "metadata is a tensor": from_entries({"__metadata__": F32}, EIGHT),
}
LAYOUT = {
    "data too long": GOOD + b"x",
    "data too short": GOOD[:-1],
    "no data": GOOD[:-8],
    "data and no tensors": from_entries("{}", EIGHT),
    "hole in front": one(offsets=(4, 12), data=bytes(12)),
    "gap": two((0, 2), (4, 6), 6),
    "overlap": two((0, 4), (2, 6), 6),
    "nested tensors": two((0, 8), (2, 4), 8),
    "end before begin": one(offsets=(8, 0)),
    "end before begin, not at zero": from_entries(
        {"a": entry("U8", (4,), 0, 4), "b": entry("U8", (0,), 4, 2)}, bytes(4)
    ),
    "size too small": one(shape=(3,)),
    "size too large": one(shape=(1,)),
    "scalar of eight bytes": one(shape=()),
    "empty of eight bytes": one(shape=(0, 3)),
    "product overflows": from_entries({"a": entry("F32", (2**62, 4), 0, 0)}),
    "product overflows thrice": from_entries({"a": entry("F32", (2**32,) * 3, 0, 0)}),
    "bytes overflow": from_entries({"a": entry("F64", (2**61,), 0, 0)}),
    "overflow and then zero": from_entries({"a": entry("F32", (2**63, 2**63, 0), 0, 0)}),
    "half a byte of F4": from_entries({"a": entry("F4", (3,), 0, 2)}, bytes(2)),
    "half a byte of F4, rounded down": from_entries({"a": entry("F4", (3,), 0, 1)}, bytes(1)),
    "three quarters of a byte of F6": from_entries({"a": entry("F6_E2M3", (1,), 0, 1)}, b"\0"),
    "F6 too long": from_entries({"a": entry("F6_E3M2", (4,), 0, 4)}, bytes(4)),
}
# Upstream names whichever of the two its hash table gives first.
SAME_BYTES_TWICE = two((0, 4), (0, 4), 4)
REFUSED = {**LENGTH, **JSON, **ENTRY, **LAYOUT}

# Odd, but good: both packages open them.
ACCEPTED = {
    "no tensors": from_entries("{}"),
    "spaces after": from_entries("{}" + " " * 100),
    "white space inside": from_entries(
        '{ \t\r\n"a" : ' + json.dumps(F32, indent="\t") + "\n}", EIGHT
    ),
    "metadata null": from_entries({"__metadata__": None, "a": F32}, EIGHT),
    "metadata empty": from_entries({"__metadata__": {}, "a": F32}, EIGHT),
    "metadata last": from_entries({"a": F32, "__metadata__": {"k": "v"}}, EIGHT),
    "metadata escaped": from_entries('{"\\u005f_metadata__":{"k":"v"}}'),
    "escapes in a name": from_entries(
        NAME % '\\u0061\\n\\"\\\\\\/\\b\\f\\r\\t\\ud83d\\ude00', EIGHT
    ),
    "NUL escaped in a name": from_entries(NAME % "a\\u0000b", EIGHT),
    "empty name": from_entries(NAME % "", EIGHT),
    "escaped field": text('{"\\u0064type":"F32","sh\\u0061pe":[2],"data_offsets":[0,8]}'),
    "escaped dtype": text('{"dtype":"F\\u00332","shape":[2],"data_offsets":[0,8]}'),
    "unknown fields": one(x={"y": [1, 2, {}], "z": [None, True, False, "s", -1.5e-3]}, Dtype=0),
    "unknown field first": text('{"":{},"dtype":"F32","shape":[2],"data_offsets":[0,8]}'),
    "unknown huge integers": text(
        '{"x":[18446744073709551616,-9223372036854775809],' + json.dumps(F32)[1:]
    ),
    "zero and then a product above 2^64": from_entries(
        {"a": entry("F32", (0, 2**63, 2**63), 0, 0)}
    ),
    "zero dimensions": from_entries({"a": entry("F32", (0, 5, 2**40), 0, 0)}),
    "empty tensors at both ends": from_entries(
        {"a": entry("F32", (0,), 0, 0), "b": F32, "c": entry("I64", (0,), 8, 8)}, EIGHT
    ),
    "scalar": from_entries({"a": entry("F32", (), 0, 4)}, bytes(4)),
    "F6": from_entries({"a": entry("F6_E2M3", (4,), 0, 3)}, bytes(3)),
    "F4": from_entries({"a": entry("F4", (2, 3), 0, 3)}, bytes(3)),
    "many dimensions": from_entries({"a": entry("U8", (1,) * 100, 0, 1)}, b"\0"),
}
