"""Corrupts good files: their bytes, the bytes of their header, or its JSON tree.

Edits come from a `random.Random`: drawing each one through Hypothesis takes longer than the
thousands of reads that it is for.
"""

import json

from support import file_builder
from support.dtype_table import TABLE
from support.file_builder import raw

TOKENS = [
    b"null", b"true", b"-1", b"-0", b"0.0", b"1e0", b"1E400", b"18446744073709551615",
    b"18446744073709551616", b"9223372036854775808", b"[]", b"{}", b'""', b'"F32"', b'"f32"',
    b'{"F32":null}', b'["F32",[1],[0,4]]', b"NaN", b"Infinity", b'"\\ud800"', b'"\\u0000"', b"//",
    b'"__metadata__":null,', b'"__metadata__":{"k":"v"},', b'"dtype":"U8",', b'"x":[1,{"y":2}],',
    b'"x":{"y":1,"y":2},', b'"":{"dtype":"U8","shape":[0],"data_offsets":[0,0]},', b'"k":"v",',
    b",", b":", b"]", b"}", b"[", b"{", b" ", b"\n", b"\t", b"\x00", b"\xff", b"\xc3\xa9", b"\\",
]  # fmt: skip
SCALARS = [0, 1, 2, 3, 4, 8, 24, -1, 0.0, 1.5, 2**32, 2**62, 2**63, 2**64 - 1, 2**64, 1e308]
SCALARS += [None, True, "", "k", "\x00", "F32", "__metadata__", "dtype", "shape", "data_offsets"]
SCALARS += [dtype.name for dtype in TABLE]


class Pairs(list):
    """A JSON object as a list of (key, value), so that a key can come twice."""


def corrupted(random):
    """Returns a file with one or two faults, or sometimes with none."""
    content = random.choice(GOOD_FILES)
    kind = random.random()
    if kind < 0.2:
        return corrupt_bytes(content, random)
    header, data = file_builder.split(content)
    if kind < 0.5:
        return file_builder.with_length(corrupt_bytes(header, random), data)
    tree = json.loads(header, object_pairs_hook=Pairs)
    for _ in range(random.choice([0, 1, 1, 1, 2])):
        tree = corrupt_tree(tree, random)
    text = to_text(tree, random, random.choice([0, 0, 0.02])).encode("utf-8", "surrogatepass")
    spaces = b" " * random.randrange(9)
    text += random.choice([b""] * 9 + [spaces] * 4 + [b"\n", b"\t \r", b"\0"])
    if random.random() < 0.1:
        data = corrupt_bytes(data, random)
    in_front = random.choice([b""] * 60 + [b" ", b"\n", b"\t"])
    return file_builder.with_length(in_front + text, data)


def corrupt_bytes(content, random):
    """Returns `content` with one to three places changed."""
    for _ in range(random.choice([1, 1, 1, 2, 3])):
        at = random.choice([0, len(content), *[random.randrange(len(content) + 1)] * 8])
        before, after = content[:at], content[at:]
        kind = random.randrange(7)
        if kind == 0:
            content = (
                before + bytes(byte ^ (1 << random.randrange(8)) for byte in after[:1]) + after[1:]
            )
        elif kind == 1:
            content = before + random.randbytes(1) + after[1:]
        elif kind == 2:
            content = before + random.choice(TOKENS) + after
        elif kind == 3:
            token = random.choice(TOKENS)
            content = before + token + after[len(token) :]
        elif kind == 4:
            content = before + after[random.randrange(12) :]
        elif kind == 5:
            content = content[: at + random.randrange(60)] + after
        else:
            content = before
    return content


def corrupt_tree(node, random):
    """Returns `node` with itself or one of its descendants changed."""
    if not isinstance(node, list) or not node or random.random() < 0.15:
        return corrupt_node(node, random)
    at = random.randrange(len(node))
    copy = type(node)(node)
    if isinstance(node, Pairs):
        key, value = node[at]
        copy[at] = (key, corrupt_tree(value, random))
    else:
        copy[at] = corrupt_tree(node[at], random)
    return copy


def corrupt_node(node, random):
    """Returns another value of the same kind, or of another kind."""
    if random.random() < 0.1:
        return random.choice([*SCALARS, [], Pairs(), Pairs([("F32", None)])])
    if isinstance(node, Pairs):
        return corrupt_pairs(node, random)
    if isinstance(node, list):
        extra = random.choice([0, 1, None, "x", [], -1])
        return random.choice([node[:-1], node[::-1], [*node, extra], node * 2])
    if isinstance(node, int):
        return node + random.choice([-4, -1, 1, 1, 4])
    return random.choice(SCALARS)


def corrupt_pairs(node, random):
    """Returns an object with a pair added, removed, repeated or renamed, or in another order."""
    kind = random.randrange(6)
    if kind == 0 or not node:
        key = random.choice(["", "x", "shape", "__metadata__", "\ud800"])
        return Pairs([*node, (key, random.choice([*SCALARS, [], Pairs()]))])
    at = random.randrange(len(node))
    key, value = node[at]
    others = [*node[:at], *node[at + 1 :]]
    if kind == 1:
        return Pairs(others)
    if kind == 2:
        return Pairs([*node, (key, value)])
    if kind == 3:
        return Pairs([*others, (random.choice([key + "x", "a", "dtype", "__metadata__"]), value)])
    if kind == 4:
        return Pairs(
            [*others, (key, [item for _, item in value] if isinstance(value, Pairs) else 0)]
        )
    return Pairs(random.sample(node, len(node)))


def to_text(node, random, looseness):
    """Returns JSON text, with more white space and escapes the higher `looseness` is (0 to 1)."""
    space = random.choice([" ", "\n", "\t", "\r"]) if random.random() < looseness else ""
    if isinstance(node, Pairs):
        inner = (
            f"{to_text(k, random, looseness)}{space}:{to_text(v, random, looseness)}"
            for k, v in node
        )
        return "{" + f",{space}".join(inner) + "}"
    if isinstance(node, list):
        return "[" + space + ",".join(to_text(item, random, looseness) for item in node) + "]"
    if isinstance(node, str) and random.random() < 4 * looseness:
        return '"' + "".join(f"\\u{ord(c):04x}" for c in node if ord(c) < 2**16) + '"'
    return json.dumps(node, ensure_ascii=random.random() < 0.5)


def _good_files():
    some = {"b": raw("F32", (2, 3)), "a": raw("BF16", (4,)), "": raw("U8", ())}
    odd = {"\\é\n": raw("F4", (2, 3)), "😀": raw("F6_E2M3", (4,)), "e": raw("I64", (0, 2))}
    compact = {"separators": (",", ":")}
    return [
        file_builder.to_bytes({}),
        file_builder.to_bytes({}, {"k": "v"}, **compact),
        file_builder.to_bytes({"a": raw("F32", (2,))}, **compact),
        file_builder.to_bytes(some, {"k": "v", "l": ""}, **compact),
        file_builder.to_bytes(some, {}, reversed, indent=1),
        file_builder.to_bytes(odd, None, ensure_ascii=False),
        file_builder.to_bytes({**odd, **some}, {"é": '"\x00'}, sorted),
    ]


GOOD_FILES = _good_files()
