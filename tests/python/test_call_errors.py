"""Errors of invalid calls name the argument and have upstream's texts."""

import errno
import os

import numpy as np
import pytest

import safetensors
from safetensors import SafetensorError, safe_open
from safetensors.numpy import save_file
from support import children, operations

SPEC = "safetensors.TensorSpec"
WRONG = [
    "safe_open(path)", "safe_open()", "safe_open(path, 'np', foo=1, bar=2)",
    "safe_open(path, 'np', filename=path)", "safe_open(path, framework='np', filename=path)",
    "safe_open(path, 'np', 'cpu', 'mmap')", "safe_open(path, 'np', **{'a b': 1})",
    "f.get_slice()", "f.get_slice(nam='a')", "f.get_slice('a', name='a')",
    "f.get_slice('a', 'b', foo=1)", "f.get_tensor(foo=3)", "f.keys(1)", "f.keys(a=1)",
    "f.get_tensors(x=1)", "f.__exit__()", "f.__exit__(1, 2)", "f.__exit__(1, 2, 3, 4)",
    "f.get_slice('a').get_shape(1)", "f.get_slice('a').get_dtype(x=1)",
    f"{SPEC}()", f"{SPEC}(1, 2, 3, 4)", f"{SPEC}(dtype='float32', shape=[1])",
    f"{SPEC}(dtype='float32', shape=[1], data_ptr=1, data_len=1, x=1)",
    f"{SPEC}(dtype='float4_e2m1fn_x2', shape=[2**63], data_ptr=1, data_len=1)",
    f"{SPEC}(dtype='float4_e2m1fn_x2', shape=[2**64], data_ptr=1, data_len=1)",
    f"{SPEC}(dtype='float32', shape=[-1], data_ptr=1, data_len=1)",
    "safetensors.serialize()", "safetensors.serialize({}, {}, {})",
    "safetensors.serialize({}, foo=1)", "safetensors.serialize_file({})",
    "safetensors.deserialize(data=b'')", "safetensors.deserialize(b'', b'')",
]  # fmt: skip
DEVICES = [
    "cuda:0:1", "cuda:0:", "cuda::0", "cuda:", "cuda:-1", "cuda:x", "cuda:0 ", "cuda:9" * 9,
    "mps:0:1", "mps:1", "mps:x", "npu:0:1", "xpu:1:", "xla:x", "musa:", "cpu:1", "cpu:0:1", ":0",
    "", "CUDA", "meta:0",
]  # fmt: skip


@pytest.fixture
def path(tmp_path):
    """A file of one tensor."""
    save_file({"a": np.zeros((2, 3), "f4")}, tmp_path / "model.safetensors")
    return str(tmp_path / "model.safetensors")


def same_failure(upstream, source, path):
    """Checks that both raise the same class, and that upstream's text begins ours."""
    source = f"(lambda f: {source})(safe_open(path, 'np'))"
    ours = operations.run("evaluate", source, path=path).failure
    theirs = upstream.evaluate(source, path=path).failure
    assert ours.kind == theirs.kind
    assert ours.text.startswith(theirs.text)


@pytest.mark.parametrize("source", WRONG)
def test_wrong_arguments_are_named(upstream, path, source):
    """Arguments may be missing, unknown, repeated, too many or too large."""
    same_failure(upstream, source, path)


@pytest.mark.parametrize("device", DEVICES)
def test_malformed_devices(upstream, path, device):
    """Class and text are upstream's."""
    pytest.importorskip("torch")
    same_failure(upstream, f"safe_open(path, 'pt', {device!r})", path)


@pytest.mark.parametrize(
    ("settings", "kind", "text"),
    [
        ({"threads": -1}, OverflowError, "argument 'threads'"),
        ({"slots": 2**70}, OverflowError, "argument 'slots'"),
        ({"streams": "x"}, TypeError, "argument 'streams': 'str' object"),
        ({"staging_bytes": 1.5}, TypeError, "argument 'staging_bytes': 'float' object"),
        ({"threads": 2**40}, SafetensorError, "threads must be at most 256"),
        ({"chunk_bytes": 1}, SafetensorError, "the chunk size must be a multiple of 4096"),
        ({"chunks": 1}, TypeError, "io_config() got an unexpected keyword argument 'chunks'"),
        ({None: 1}, TypeError, "keywords must be strings"),
    ],
)
def test_settings_are_named(settings, kind, text):
    """io_config names the wrong argument."""
    before = safetensors.io_config()
    with pytest.raises(kind) as caught:
        safetensors.io_config(**settings)
    assert text in str(caught.value)
    assert safetensors.io_config() == before


def test_methods_of_a_wrong_object(path):
    """Methods are called without an object or with one of another class."""
    with pytest.raises(TypeError, match="unbound method safe_open.keys.. needs an argument"):
        safe_open.keys()
    with pytest.raises(TypeError, match="'keys' for 'safe_open' objects doesn't apply to a 'int'"):
        safe_open.keys(1)


def os_errors(tmp_path):
    """(error, errno, filename) of opening and saving."""
    folder, missing = tmp_path, tmp_path / "missing" / "a"
    calls = {
        lambda: safe_open(missing, "np"): (errno.ENOENT, missing),
        lambda: safe_open(os.fsencode(missing), "np"): (errno.ENOENT, missing),
        lambda: safe_open(folder, "np"): (errno.EISDIR, folder),
        lambda: safe_open("/dev/null", "np"): (errno.ENODEV, "/dev/null"),
        lambda: save_file({}, missing): (errno.ENOENT, missing),
        lambda: save_file({}, folder): (errno.EISDIR, folder),
    }
    for call, expected in calls.items():
        with pytest.raises(OSError, match=".") as caught:
            call()
        yield caught.value, *expected


def test_os_errors_have_their_fields(tmp_path):
    """errno, strerror and filename are set; str() begins with upstream's text."""
    for error, number, path in os_errors(tmp_path):
        assert error.errno == number
        assert error.strerror == os.strerror(number)
        assert error.filename == os.fspath(path)
        assert str(error) == error.args[0]
        assert not str(error).startswith("[Errno")


def test_class_of_an_os_error(tmp_path):
    """Opening raises Python's class; saving raises one that is a SafetensorError too."""
    errors = [error for error, _, _ in os_errors(tmp_path)]
    assert type(errors[0]).__bases__ == (FileNotFoundError,)
    assert type(errors[0]).__module__ == "safetensors._errors"
    assert not isinstance(errors[0], SafetensorError)
    assert type(errors[4]).__bases__ == (SafetensorError, FileNotFoundError)


UNSAVABLE = {
    "torch.zeros(3, dtype=torch.complex128)": ".to(",
    "torch.quantize_per_tensor(torch.ones(3), 0.1, 0, torch.quint8)": ".dequantize()",
    "torch.empty(3, dtype=torch.uint4)": ".to(",
    "torch.zeros(3, device='meta')": "meta device",
}


@pytest.mark.parametrize("source", UNSAVABLE)
@pytest.mark.filterwarnings("ignore")
def test_unsavable_tensors_are_named(upstream, tmp_path, source):
    """The error names the tensor and advises; class and beginning are upstream's."""
    torch = pytest.importorskip("torch")
    call = f"st.save_file({{'fine': torch.zeros(2), 'odd.weight': {source}}}, path)"
    path = str(tmp_path / "out")
    ours = operations.run("evaluate", call, path=path).failure
    theirs = upstream.evaluate(call, path=path).failure
    assert theirs.kind in ours.bases or theirs.kind == ours.kind
    assert ours.text.startswith(theirs.text.strip("'"))
    assert "`odd.weight`" in ours.text
    assert UNSAVABLE[source] in ours.text
    assert not os.path.exists(path)
    assert torch.zeros(1).item() == 0


SHARDED = """
    import os, torch
    import torch.distributed as dist
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.tensor import Shard, distribute_tensor
    from safetensors.torch import load_file, save_file
    store = dist.HashStore()
    dist.init_process_group("gloo", rank=0, world_size=1, store=store)
    part = distribute_tensor(torch.ones(4), init_device_mesh("cpu", (1,)), [Shard(0)])
    try:
        save_file({"w": part}, sys.argv[1])
    except RuntimeError as error:
        print(error)
    save_file({"w": part.full_tensor()}, sys.argv[1])
    print(load_file(sys.argv[1])["w"].tolist())
    dist.destroy_process_group()
"""


@pytest.mark.slow
def test_a_distributed_tensor_is_named(tmp_path):
    """The error names the two ways to save it."""
    torch = pytest.importorskip("torch")
    if not torch.distributed.is_available():
        pytest.skip("this torch has no torch.distributed")
    told, loaded = children.run(SHARDED, tmp_path / "out").splitlines()
    assert told.startswith("Attempted to access the data pointer on an invalid python storage")
    for word in ("`w`", "DTensor", "`.full_tensor()`", "`torch.distributed.checkpoint`"):
        assert word in told
    assert loaded == "[1.0, 1.0, 1.0, 1.0]"
