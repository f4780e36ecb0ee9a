"""Pickles of objects of public classes have no value of a URL's query."""

import importlib
import inspect
import pickle
import pkgutil

import pytest

import safetensors
from safetensors import SafetensorError, safe_open
from safetensors._paths import without_secrets
from safetensors._verify import verifier_of

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


def _plan(*args):
    from safetensors.plan import Plan

    return Plan(*args, {"headers": {"Authorization": "canary"}})


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


def public_classes():
    """Returns the classes of this package that its public modules have, by name."""
    found = {}
    for info in pkgutil.walk_packages(safetensors.__path__, "safetensors."):
        if any(part.startswith("_") for part in info.name.split(".")):
            continue
        try:
            module = importlib.import_module(info.name)
        except ImportError:
            continue  # a framework that is not installed
        found |= {
            name: each
            for name, each in vars(module).items()
            if inspect.isclass(each)
            and each.__module__.startswith("safetensors")
            and not name.startswith("_")
            and not inspect.isabstract(each)
        }
    return found


WITHOUT_URLS = set()
"""Classes whose objects are made of no file names, or of names that are no URLs."""

NOT_PICKLED = set()
"""Classes whose objects cannot be pickled."""


def test_each_public_class_is_known():
    """A new class that holds names of files belongs to HELD."""
    found = {name for name, each in public_classes().items() if not issubclass(each, BaseException)}
    print(sorted(found))
    assert found == {name for name in HELD if name in found} | WITHOUT_URLS | NOT_PICKLED
