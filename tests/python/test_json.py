"""The JSON of strangers: what it costs, and what of it is refused."""

import ast
import json
import pathlib
import time
import tracemalloc

import pytest

import safetensors
from safetensors import SafetensorError, _json
from support import children, memory

PACKAGE = pathlib.Path(safetensors.__file__).parent
MB = 1 << 20


def many(nbytes, value):
    """A list of about so many bytes, of values that may contain their number."""
    count = nbytes // (len(value % 0 if "%" in value else value) + 1)
    return "[" + ",".join(value % i if "%" in value else value for i in range(count)) + "]"


SHAPES = {
    "empty objects": lambda n: many(n, "{}"),
    "empty lists": lambda n: many(n, "[]"),
    "lists of one": lambda n: many(n, "[0]"),
    "lists of five": lambda n: many(n, "[0,0,0,0,0]"),
    "objects of one": lambda n: many(n, '{"":0}'),
    "objects of one key each": lambda n: many(n, '{"k%07d":0}'),
    "objects of six": lambda n: many(n, '{"a":0,"b":0,"c":0,"d":0,"e":0,"f":0}'),
    "one object": lambda n: '{"x":0' + many(n, '"%07d":0')[1:-1].join(",}"),
    "floats": lambda n: many(n, "1e5"),
    "integers": lambda n: many(n, "1%06d"),
    "long integers": lambda n: many(n, "9" * 999),
    "long floats": lambda n: "[0." + "1" * n + "]",
    "short strings": lambda n: many(n, '"ab"'),
    "strings of Latin-1": lambda n: many(n, '"aé"'),
    "strings of two bytes": lambda n: many(n, '"中a"'),
    "strings of four bytes": lambda n: many(n, '"a😀"'),
    "escapes": lambda n: '["' + "\\n" * (n // 2) + '"]',
    "escaped pairs": lambda n: many(n, r'"\ud83d\ude00"'),
    "escaped quotes": lambda n: '["' + '\\"' * (n // 2),
    "a wide character": lambda n: '["' + "a" * n + '😀"]',
    "deep lists": lambda n: "[" * n,
    "deep objects": lambda n: '{"":' * (n // 4),
    "brackets in strings": lambda n: '["' + "[" * n + '"]',
    "sharding": lambda n: "{" + many(n, '"layers.%06d.w":{"saved_offsets":[0,0]}')[1:-1] + "}",
}
REFUSED = (SafetensorError, ValueError)


def load(text):
    """Parses, and returns whether it was accepted."""
    try:
        _json.loads(text, "file.json")
    except REFUSED:
        return False
    return True


@pytest.mark.parametrize("shape", SHAPES)
def test_the_estimate_of_memory_is_not_too_low(shape):
    """For the objects of this version of Python."""
    text = SHAPES[shape](1 << 18)
    data = text.encode()
    needed = _json.most_memory(text, len(data))
    tracemalloc.start()
    try:
        load(data)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert peak + len(data) <= needed + (1 << 16)


PEAK = """
    import sys, test_json
    from support import memory

    def read(path):
        test_json.load(open(path, "rb").read())

    test_json.load(b"[]")
    for path in sys.argv[1:]:
        print(memory.peak_growth(read, path))
"""


@pytest.mark.skipif(not memory.can_measure_peak(), reason="the peak cannot be measured")
def test_memory(tmp_path):
    """At most 8 times the text and 64 MB, the text included; of `{},{},...` at most 8 times."""
    shapes = ("empty objects", "objects of one", "one object", "short strings", "a wide character")
    paths = []
    for i, shape in enumerate(shapes):
        paths.append(tmp_path / str(i))
        paths[-1].write_text(SHAPES[shape](6 * MB), encoding="utf-8")
    taken = [int(line) for line in children.run(PEAK, *paths).split()]
    too_much = {
        shape: nbytes
        for shape, path, nbytes in zip(shapes, paths, taken, strict=True)
        if nbytes > 8 * path.stat().st_size + 64 * MB
    }
    assert not too_much
    assert taken[0] <= 8 * paths[0].stat().st_size


@pytest.mark.timed
@pytest.mark.parametrize("shape", SHAPES)
def test_time_is_linear(shape):
    """Eight times the text takes far less than 64 times as long."""

    def seconds(nbytes):
        data = SHAPES[shape](nbytes).encode()
        best = float("inf")
        for _ in range(3):
            begun = time.process_time()
            load(data)
            best = min(best, time.process_time() - begun)
        return best

    assert seconds(8 << 13) < 30 * max(seconds(1 << 13), 0.0005)


def test_values():
    """What json.loads returns, of text and of bytes, with or without a byte order mark."""
    text = json.dumps({"a": [1, -2.5, "é😀\ud83d\ude00", None, True, {}], "b": {"c": 10**30}})
    for each in (text, text.encode(), b"\xef\xbb\xbf" + text.encode()):
        assert _json.loads(each, "x") == json.loads(text)
    assert _json.loads('{"a": NaN, "b": [Infinity, -Infinity]}', "x")["b"][1] == float("-inf")
    assert _json.loads('{"a":1,"a":2}', "x", object_of=dict) == {"a": 2}
    assert _json.loads('{"a":1,"a":2}', "x", object_of=list) == [("a", 1), ("a", 2)]
    assert _json.loads("[" * 127 + "]" * 127, "x")
    assert _json.loads(json.dumps(['["' * 200, "\\" * 3 + '"[' * 200]), "x")
    assert _json.loads("[" + "9" * 1000 + "]", "x") == [10**1000 - 1]
    assert _json.loads(r'"\\ud800 \\\\ud800 \ud83d\ude00"', "x") == r"\ud800 \\ud800 😀"


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("[" * 128 + "]" * 128, "nested deeper than 127 levels"),
        ('{"a":' * 128, "nested deeper than 127 levels"),
        ("[" * 300_000, "nested deeper than 127 levels"),
        (many(6 * MB, "{}"), "so many values"),
        (many(12 * MB, '"ab"'), "so many values"),
        ("9" * 1001, "an integer of 1,001 digits; the limit is 1,000"),
        ("-" + "9" * 1_000_000, "an integer of 1,000,001 digits"),
        ('{"x": {"a": 1, "b": 2, "a": 1}}', "the key 'a' twice"),
        (r'{"\u0061": 1, "a": 1}', "the key 'a' twice"),
        (r'["\ud800"]', "half of a surrogate pair at character 2"),
        (r'["\ud800\ud800"]', "half of a surrogate pair"),
        (r'["\udc00\ud800"]', "half of a surrogate pair"),
        (r'["\\\uDCFF"]', "half of a surrogate pair"),
        (" " * 100_000_001, "has 100,000,001 bytes; the limit is 100,000,000"),
    ],
    ids=lambda value: value[:20] if isinstance(value, str) else None,
)
def test_refused(text, found):
    """The limits, each with an error of the wanted class that names the text."""
    with pytest.raises(SafetensorError, match=f"^dir/x: the JSON .*{found}"):
        _json.loads(text, "dir/x")
    with pytest.raises(KeyError, match=found):
        _json.loads(text.encode(), "dir/x", error=KeyError)


@pytest.mark.parametrize(
    "text",
    [
        b"",
        b"{",
        b"[1,]",
        b"[1]x",
        b'{"a"}',
        b"'a'",
        b"\xff",
        b'"\xed\xa0\x80"',
        '"a"'.encode("utf-16"),
    ],
)
def test_not_json(text):
    """A ValueError: a caller may know what an incomplete file means."""
    with pytest.raises(ValueError, match="decode|Expecting|Extra data|delimiter"):
        _json.loads(text, "x")


def parses(node):
    """Whether a node of a syntax tree uses a parser of JSON."""
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
        return node.func.attr in ("json", "raw_decode") and not node.args  # response.json()
    if isinstance(node, ast.Attribute):
        of_module = isinstance(node.value, ast.Name) and node.value.id == "json"
        return of_module and node.attr not in ("dumps", "dump")
    if isinstance(node, ast.ImportFrom):
        return (node.module or "") in ("json", "json.decoder", "json.scanner")
    if isinstance(node, ast.Import):
        return any(each.name in ("json.decoder", "orjson", "ujson") for each in node.names)
    return False


def test_nothing_else_parses_json():
    """All modules call _json.loads, which has the limits."""
    found = {
        path.relative_to(PACKAGE).as_posix()
        for path in PACKAGE.rglob("*.py")
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        if parses(node)
    }
    assert found == {"_json.py"}
    for text in ("json.load(f)", "from json import loads", "import orjson", "answer.json()"):
        assert any(map(parses, ast.walk(ast.parse(text)))), text
