"""Names of frameworks and devices: this package accepts those that upstream accepts."""

import pytest

from support import file_builder, operations
from support.file_builder import raw

FRAMEWORKS = [
    "pt", "torch", "pytorch", "np", "numpy", "tf", "tensorflow", "jax", "flax", "mlx", "paddle",
    "PT", "Torch", " np", "np ", "ml", "tflow", "", "xyz", None, 5, b"np",
]  # fmt: skip
DEVICES = [
    "cpu", "cuda", "cuda:0", "cuda:7", "cuda:00", "cuda:+1", "cuda:", "cuda:x", "cuda:-1",
    "cuda: 1", "cuda:1.0", "cuda:18446744073709551616", "mps", "mps:0", "mps:1", "xpu", "xpu:0",
    "xpu:x", "npu", "npu:1", "hpu", "hpu:0", "mlu", "mlu:0", "musa", "musa:3", "xla", "xla:1",
    "CPU", "Cuda", "", "vulkan", "privateuseone", "rbln", "sdaa", "gcu", "tpu", "neuron", "ipu",
    "hip", "ort", "mtia", "lazy", "dml", "gaudi", "cpu:1", "gpu",
    0, 1, 7, -1, 2**70, 1.5, None, True, False, [], b"cpu",
]  # fmt: skip


@pytest.fixture(scope="module")
def path(tmp_path_factory):
    """A file with one tensor."""
    folder = tmp_path_factory.mktemp("words")
    return str(file_builder.write(folder / "words.safetensors", {"a": raw("F32", (2,))}))


def same_verdict(upstream, source, **variables):
    """Checks that both open it, or that both raise the same class with upstream's text first."""
    ours = operations.run("evaluate", source, **variables)
    theirs = upstream.evaluate(source, **variables)
    if theirs.ok:
        assert ours.ok, ours.failure
        return
    assert not ours.ok
    assert theirs.failure.kind in (ours.failure.kind, *ours.failure.bases)
    if theirs.failure.kind != "builtins.TypeError":
        assert ours.failure.text.startswith(theirs.failure.text)


@pytest.mark.parametrize("word", FRAMEWORKS, ids=repr)
def test_framework(upstream, path, word):
    """A handle does not import the framework, except Paddle."""
    same_verdict(upstream, "safe_open(path, word).keys()", path=path, word=word)


@pytest.mark.parametrize("word", DEVICES, ids=repr)
@pytest.mark.parametrize("framework", ["pt", "np"])
def test_device(upstream, path, framework, word):
    """A handle does not use the device; NumPy accepts only the CPU."""
    source = "safe_open(path, framework, word).keys()"
    same_verdict(upstream, source, path=path, framework=framework, word=word)


@pytest.mark.parametrize("framework", ["tf", "jax", "mlx"])
def test_other_frameworks_need_their_module(upstream, path, framework):
    """get_tensor imports the framework, and raises if it is not installed."""
    source = "safe_open(path, word).get_tensor('a')"
    theirs = upstream.evaluate(source, path=path, word=framework)
    if theirs.ok:
        pytest.skip(f"{framework} is installed")
    ours = operations.run("evaluate", source, path=path, word=framework)
    assert (ours.failure.kind, ours.failure.text) == (theirs.failure.kind, theirs.failure.text)
