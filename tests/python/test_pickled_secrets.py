"""Pickles of objects of public classes have no value of a URL's query."""

import ast
import pickle

import pytest
from test_import_graph import ROOT

from safetensors import SafetensorError, safe_open
from safetensors._checking.verify import verifier_of
from safetensors._paths import without_secrets

torch = pytest.importorskip("torch")

URL = "https://user-files.example/m/model.safetensors?sig=canary&se=canary"

HELD = {
    "Plan": lambda: _plan([URL, "model.safetensors"], {"a": None}),
    "Plan of a URL": lambda: _plan(URL, {}),
    "StorageReader": lambda: _dcp().StorageReader(URL, storage_options={"token": "canary"}),
    "StorageReader of files": lambda: _dcp().StorageReader([URL, "a"], verify=URL),
    "StorageReader of a user": lambda: _dcp().StorageReader("https://me:canary@example/m#canary"),
    "StorageReader with hashes": lambda: _dcp().StorageReader("m", expected_hashes={URL: "0" * 64}),
    "SafetensorError": lambda: _error(lambda: safe_open(URL + "\n", "np")),
    "an error of a file": lambda: _error(lambda: safe_open("http://127.0.0.1:1/?a=canary", "np")),
}
"""What holds URLs that a caller has passed."""


def _plan(filenames, parts):
    from safetensors._load_arguments import LoadArguments
    from safetensors.plan import Plan

    return Plan(parts, LoadArguments(filenames, {"headers": {"Authorization": "canary"}}))


def _dcp():
    import safetensors.dcp

    return safetensors.dcp


def _error(call):
    with pytest.raises(SafetensorError) as caught:
        call()
    return caught.value


@pytest.mark.parametrize("name", HELD)
def test_pickles_have_no_value_of_a_query(name):
    for protocol in range(pickle.HIGHEST_PROTOCOL + 1):
        data = pickle.dumps(HELD[name](), protocol)
        assert b"canary" not in data
        assert type(pickle.loads(data)) is type(HELD[name]())


def test_a_copy_says_what_it_lacks():
    """And sends no request."""
    for made in (_plan(URL, {"a": None}), _dcp().StorageReader(URL)):
        copy = pickle.loads(pickle.dumps(made))
        read = copy.explain if hasattr(copy, "explain") else copy.read_metadata
        with pytest.raises(SafetensorError, match="lacks values of its query, as URLs in error"):
            read()


@pytest.mark.parametrize("query", ["...", "sig=...", "a=1&sig=...&b=2", "sig=...;b=2"])
def test_a_url_of_an_error_text_is_refused(query):
    with pytest.raises(SafetensorError, match="give the whole URL"):
        safe_open(f"https://host.example/x.safetensors?{query}", "np")


@pytest.mark.parametrize(
    ("given", "kept"),
    [
        ("/a/b?c=d", "/a/b?c=d"),
        ("https://h/x", "https://h/x"),
        ("https://h/" + "x" * 600 + "?a=b", "https://h/" + "x" * 600 + "?..."),
        ("s3://bucket/key", "s3://bucket/key"),
        (["https://h/x?a=b", b"c"], ["https://h/x?...", b"c"]),
        (None, None),
    ],
)
def test_what_is_kept(given, kept):
    assert without_secrets(given) == kept


def test_hashes_are_kept():
    hashes = {"model.safetensors": "a" * 64}
    copy = pickle.loads(pickle.dumps(verifier_of(None, hashes)))
    assert copy.digests("model.safetensors") == verifier_of(None, hashes).digests(
        "model.safetensors"
    )


def classes():
    """Yields the file and the tree of each class of the package."""
    for path in sorted(ROOT.rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.ClassDef):
                yield path.relative_to(ROOT).as_posix(), node


def methods_of(node):
    return {each.name: each for each in node.body if isinstance(each, ast.FunctionDef)}


def test_each_class_that_pickles_itself_is_known():
    """A new one belongs to HELD if it holds names of files."""
    own = {"__reduce__", "__reduce_ex__", "__getstate__"}
    found = {(path, node.name) for path, node in classes() if own & methods_of(node).keys()}
    assert found == {
        ("plan.py", "Plan"),
        ("_dcp/reader.py", "StorageReader"),
        ("_checking/verify.py", "FileHashes"),
        ("_pickling.py", "NotPickled"),  # it refuses to
    }


def test_each_public_class_that_takes_files_is_known():
    found = set()
    for path, node in classes():
        init = methods_of(node).get("__init__")
        if init is None or path.startswith(("_remote", "_cli")) or node.name.startswith("_"):
            continue
        types = [ast.unparse(each.annotation or init) for each in init.args.args[1:]]
        if any("Sources" in each or "LoadArguments" in each for each in types):
            found.add(node.name)
    assert found == {"Plan", "StorageReader", "FileTensors"}  # the last has open files
