"""What notebooks show: trees in which alike siblings are one row, as static HTML."""

import html.parser
import re
import string

import hypothesis
import hypothesis.strategies as st
import numpy as np
import pytest

import safetensors
from safetensors import SafetensorError, _extra, _text, delta, plan, safe_open
from safetensors._outline import html as blocks
from safetensors._outline.contents import base_name
from safetensors._outline.tree import outline_of
from safetensors.numpy import save_file

HOSTILE = {
    "<script>alert(1)</script>": "&lt;script&gt;alert(1)&lt;/script&gt;",
    'x" onload="y': "x&quot; onload=&quot;y",
    "a\u202eb": "a\\u202eb",
    "a\nb\x1b[31m": "a\\nb\\x1b[31m",
    "a&b": "a&amp;b",
}
TAGS = {"div", "span", "b", "i", "details", "summary"}
MAX_NBYTES = 64_000


class Reader(html.parser.HTMLParser):
    """Checks that HTML is static and balanced, and collects its text."""

    def __init__(self, text):
        super().__init__()
        self.open, self.text = [], ""
        self.feed(text)
        self.close()
        assert self.open == []

    def handle_starttag(self, tag, attributes):
        assert tag in TAGS
        assert {name for name, _ in attributes} <= {"style", "open"}
        assert all("url" not in (value or "") for _, value in attributes)
        self.open.append(tag)

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def handle_data(self, data):
        self.text += data


def checked(text):
    """Returns the words of a page as a reader without styles sees them."""
    assert text is not None
    assert len(text.encode()) <= MAX_NBYTES
    return Reader(text).text


def handle_of(tmp_path, tensors, metadata=None, framework="np"):
    path = tmp_path / "model.safetensors"
    save_file(tensors, path, metadata=metadata)
    return safe_open(path, framework)


def layers(count):
    return {
        f"h.{i}.{name}": np.zeros(shape, np.float32)
        for i in range(count)
        for name, shape in (("w", (4, 2)), ("b", 3))
    }


def test_handle(tmp_path):
    with handle_of(tmp_path, layers(4) | {"wte": np.zeros(8, np.float16)}, {"a": "<b>"}) as f:
        words = checked(f._repr_html_())
        assert words.startswith("model.safetensors safetensors · 9 tensors · 52 parameters · 192 B")
        assert "0 … 3" in words
        assert re.search(r"0 … 3 +176 B +4 \u00d7 2 tensors", words)
        assert re.search(r"wte  F16 +16 B", words)
        assert "<b>" in words
        assert str(tmp_path) not in words
        assert f._ipython_key_completions_() == f.keys()
        assert (f.nbytes, f.path) == (192, str(tmp_path / "model.safetensors"))
    assert f._repr_html_() is None
    assert f.path == str(tmp_path / "model.safetensors")
    with pytest.raises(safetensors.SafetensorError, match="File is closed"):
        f.nbytes  # noqa: B018


def test_slice_and_meta(tmp_path):
    with handle_of(tmp_path, {"a.w": np.zeros((3, 4), np.float32)}) as f:
        part, meta = f.get_slice("a.w"), f.get_tensor_meta("a.w")
    assert (part.name, part.ndim, part.nbytes) == ("a.w", 2, 48)
    assert (meta.ndim, meta.nbytes) == (2, 48)
    assert "F32 · [3, 4] · 12 elements · 48 B" in checked(part._repr_html_())
    assert "bytes 0 to 48" in checked(meta._repr_html_())


@pytest.mark.parametrize("name", HOSTILE)
def test_hostile_names_are_escaped(tmp_path, name):
    with handle_of(tmp_path, {name: np.zeros(2)}, {name: name}) as f:
        page = f._repr_html_()
    checked(page)
    assert page.count(HOSTILE[name]) == 3
    assert name not in page or name == HOSTILE[name]


@pytest.mark.parametrize("kind", ["flat", "dots", "long", "groups"])
def test_pages_of_many_names_are_short(tmp_path, kind):
    letters = string.ascii_letters
    names = {
        "flat": [f"{letters[i % 52]}{i * 7919 % 99991}" for i in range(20_000)],
        "dots": ["." * 1_000_000, "." * 999_999 + "x"],
        "long": ["\u202e<" * 50_000 + letters[i] for i in range(50)],
        "groups": [".".join(f"\x00{(i >> k) & 1}" * 40 for k in range(14)) for i in range(1 << 14)],
    }[kind]
    with handle_of(tmp_path, dict.fromkeys(names, np.zeros(1, np.int8))) as f:
        assert f"{len(f):,} tensors" in checked(f._repr_html_())


name_parts = st.lists(st.sampled_from(["", "a", "0", "1", "2", "10", "b7", "é"]), max_size=4)
shapes = st.sampled_from([(2,), (3,), ()])


@hypothesis.given(
    st.dictionaries(name_parts.map(".".join), shapes, max_size=30),
    st.one_of(st.none(), st.integers(0, 40)),
    st.one_of(st.none(), st.integers(1, 4)),
)
def test_rows_have_the_sums_of_their_tensors(shapes_by_name, rows, depth):
    listed = [(n, "F32", s, 4 * int(np.prod(s))) for n, s in shapes_by_name.items()]
    outline = outline_of(listed, rows, depth)
    assert outline.tensors == len(listed)
    assert outline.nbytes == sum(nbytes for *_, nbytes in listed)
    assert sum(row.tensors for row in outline.rows) + outline.omitted == len(listed)

    def visit(row, above, level):
        names = [each if above is None else f"{above}.{each}" for each in (row.first, row.last)]
        if row.type is not None:
            assert row.shape == shapes_by_name[names[0]] == shapes_by_name[names[1]]
            assert row.tensors == row.alike
        else:
            assert sum(n.startswith(f"{names[0]}.") for n in shapes_by_name) * row.alike == (
                row.tensors
            )
        if row.rows:
            assert sum(each.nbytes for each in row.rows) * row.alike == row.nbytes
        for each in row.rows:
            visit(each, names[0], level + 1)
        assert depth is None or level <= depth

    for row in outline.rows:
        visit(row, None, 1)


def test_what_is_no_tensor_is_refused():
    with pytest.raises(TypeError, match="safe_open or tuple"):
        _extra._outline([1])
    with pytest.raises(ValueError, match="name, type, shape, nbytes"):
        _extra._outline([("a", "F32", (1,))])
    with pytest.raises(TypeError, match="name"):
        _extra._outline([(1, "F32", (1,), 4)])


def test_plan(tmp_path):
    handle_of(tmp_path, layers(2)).close()
    path = tmp_path / "model.safetensors"
    found = plan.resolve(path, {"*.w": plan.Shard(0, 0, 2), "*": None})
    words = checked(found._repr_html_())
    assert "Plan of 4 tensors rank 0 of 2 \u00b7 reads" in words
    assert "for 56 B wanted" in words
    assert "model.safetensors" in words
    assert "parts (2)" in words
    assert found._ipython_key_completions_() == list(found)
    path.unlink()
    assert found._repr_html_() is None


def test_plan_of_a_url_reads_nothing():
    options = plan.LoadArguments("https://example.invalid/m.safetensors")
    assert "Plan of 1 tensor " in checked(plan.Plan({"a": None}, options)._repr_html_())
    of_two = {name: plan.Shard(0, rank, 2) for rank, name in enumerate("ab")}
    assert "rank 0 of 2" not in checked(plan.Plan(of_two, options)._repr_html_())


def test_patch(tmp_path):
    old, new = tmp_path / "old.safetensors", tmp_path / "new.safetensors"
    values = np.zeros(1000, np.float32)
    save_file({"a": values, "b": values, "gone": values}, old)
    changed = values.copy()
    changed[:10] = 1
    save_file({"a": changed, "b": values}, new)
    delta.diff(old, new, tmp_path / "p.safetensors-patch")
    with delta.open_patch(tmp_path / "p.safetensors-patch") as patch:
        words = checked(patch._repr_html_())
    assert "2 tensors differ" in words
    assert "1.00% changes" in words
    assert "removed" in words
    assert str(tmp_path) not in words


def test_summary(tmp_path):
    tensors = layers(3) | {"ids": np.zeros(5, np.int64)}
    with handle_of(tmp_path, tensors) as f:
        of_handle = safetensors.summary(f)
    of_path = safetensors.summary(tmp_path / "model.safetensors")
    of_dict = safetensors.summary(tensors)
    for each in (of_handle, of_path, of_dict):
        assert (each.tensors, each.parameters, each.nbytes) == (7, 38, 172)
        assert each.dtypes == {"F32": 33, "I64": 5}
        checked(each._repr_html_())
    assert repr(of_path) == repr(of_handle)
    assert repr(of_path).splitlines() == [
        "model.safetensors: safetensors, 7 tensors, 38 parameters, 172 B, 36.21 bits per weight",
        "  F32  6 tensors  33  132 B",
        "  I64   1 tensor   5   40 B",
    ]
    assert safetensors.summary(tmp_path).title == tmp_path.name
    assert base_name("https://me:pw@a.example/m/x.safetensors?sig=a/b#c") == "x.safetensors"
    packed = safetensors.summary({"qweight": np.zeros((2, 3), np.int32)})
    assert repr(packed).startswith("tensors: dict, 1 tensor, 6 elements, 24 B\n")
    assert repr(safetensors.summary({})) == "tensors: dict, 0 tensors, 0 B"
    with pytest.raises(FileNotFoundError):
        safetensors.summary(tmp_path / "none.safetensors")
    with pytest.raises(TypeError, match="found int"):
        safetensors.summary(3)
    (tmp_path / "two").mkdir()
    for name in "ab":
        save_file(tensors, tmp_path / "two" / f"{name}.safetensors")
    with pytest.raises(SafetensorError, match="several models"):
        safetensors.summary(tmp_path / "two")


def test_a_loader_shows_its_state(tmp_path):
    pytest.importorskip("torch")
    with handle_of(tmp_path, {"a": np.zeros(2)}, framework="pt") as f:
        loader = f.prefetch()
        assert repr(loader) == "<PrefetchLoader of 1 tensor>"
        loader.close()
        assert repr(loader) == "<PrefetchLoader of 1 tensor, closed>"


def test_a_histogram_of_nothing_is_empty():
    assert "height:0.0%" in blocks.histogram([0, 0], 0, 1)
    assert blocks.types_bar([]) == ""


def test_numbers_beyond_the_last_unit():
    assert [_text.size(n) for n in (999, 999_949, 999_950, 10**18)] == [
        "999 B",
        "999.9 kB",
        "1.0 MB",
        "1,000.0 PB",
    ]
    assert [_text.rounded(n) for n in (999, 999_499, 999_500, 10**18)] == [
        "999",
        "999 k",
        "1.00 M",
        "1,000 Q",
    ]
