"""`progress` of functions that read or write much: what is called, and the bar of progress=True."""

import importlib.util
import inspect
import re
import sys

import numpy as np
import pytest

from safetensors import TensorSpec, _progress_bar, delta, serialize_file, sums, update_file
from safetensors.numpy import save_file, save_files
from support import children, cli

torch = pytest.importorskip("torch")
st = importlib.import_module("safetensors.torch")
safe_create = importlib.import_module("safetensors").safe_create

ARRAYS = {f"h.{n}": np.full((3, 1000), n, "f4") for n in range(20)}
NBYTES = 20 * 12_000


@pytest.fixture
def model(tmp_path):
    """A file, its next state, a folder of shards, and patches of both."""
    new = {name: array + (name != "h.3") for name, array in ARRAYS.items()}
    save_file(ARRAYS, tmp_path / "a.safetensors")
    save_file(new, tmp_path / "b.safetensors")
    save_files(ARRAYS, tmp_path / "shards", max_shard_size=50_000)
    with delta.diff(ARRAYS, new, tmp_path / "p.safetensors-patch"):
        return tmp_path


def _module():
    module = torch.nn.Module()
    for name in ARRAYS:
        module.register_buffer(name.replace(".", "_"), torch.zeros(3, 1000))
    return module


def _load_model(folder, **options):
    module = _module()
    st.save_model(module, folder / "module.safetensors")
    st.load_model(module, folder / "module.safetensors", backend="pread", **options)


def _load_into(folder, **options):
    targets = {name: torch.zeros(3, 1000) for name in ARRAYS}
    st.load_into(targets, folder / "shards", **options)


def _save_torch(folder, change=lambda tensor: tensor, **options):
    tensors = {name: change(torch.from_numpy(array)) for name, array in ARRAYS.items()}
    st.save_file(tensors, folder / "saved.safetensors", **options)


def _save_specs(folder, **options):
    specs = {
        name: TensorSpec(
            dtype="float32", shape=each.shape, data_ptr=each.ctypes.data, data_len=each.nbytes
        )
        for name, each in ARRAYS.items()
    }
    serialize_file(specs, folder / "saved.safetensors", **options)


def _in_place(folder, **options):
    save_file(ARRAYS, folder / "c.safetensors")
    options = {"in_place": True, "shared": True, **options}
    delta.apply_file(folder / "c.safetensors", folder / "p.safetensors-patch", **options)


def _update_in_place(folder, **options):
    save_file(ARRAYS, folder / "c.safetensors")
    new = {"h.1": ARRAYS["h.2"], "h.5": ARRAYS["h.6"]}
    update_file(folder / "c.safetensors", new, in_place=True, shared=True, **options)


def _apply(folder, **options):
    arrays = {name: array.copy() for name, array in ARRAYS.items()}
    delta.apply(arrays, folder / "p.safetensors-patch", **options)


def _create(folder, **options):
    with safe_create(folder / "made", ARRAYS, max_shard_size=50_000, **options) as writer:
        for name, array in ARRAYS.items():
            writer.write(name, array)


WAYS = {
    "load_files": (lambda f, **o: st.load_files(f / "shards", backend="pread", **o), NBYTES),
    "load_files of views": (lambda f, **o: st.load_files(f / "shards", **o), NBYTES),
    "stream_files": (lambda f, **o: [*st.stream_files(f / "shards", **o)], NBYTES),
    "load_into": (_load_into, NBYTES),
    "load_model": (_load_model, NBYTES),
    "sums.make": (lambda f, **o: sums.make(f / "shards", **o), NBYTES),
    "sums.write": (lambda f, **o: sums.write(f / "a.safetensors", "sha256", **o), NBYTES),
    "delta.diff": (
        lambda f, **o: delta.diff(f / "a.safetensors", f / "b.safetensors", **o).close(),
        NBYTES,
    ),
    "Tracker.diff": (
        lambda f, **o: delta.Tracker(f / "a.safetensors").diff(f / "b.safetensors", **o).close(),
        NBYTES,
    ),
    "delta.apply": (_apply, NBYTES - 12_000),
    "delta.apply_file": (
        lambda f, **o: delta.apply_file(
            f / "a.safetensors", f / "p.safetensors-patch", f / "out.safetensors", **o
        ),
        NBYTES,
    ),
    "delta.apply_file of shards": (
        lambda f, **o: delta.apply_file(f / "shards", f / "p.safetensors-patch", f / "out", **o),
        NBYTES,
    ),
    "delta.apply_file in place": (_in_place, NBYTES - 12_000),
    "update_file": (
        lambda f, **o: update_file(f / "a.safetensors", {"h.1": ARRAYS["h.2"]}, **o),
        None,
    ),
    "update_file in place": (_update_in_place, 24_000),
    "safe_create": (_create, NBYTES),
    "save_file": (lambda f, **o: save_file(ARRAYS, f / "saved.safetensors", **o), None),
    "save_file of torch": (_save_torch, None),
    "save_file of lazily negated tensors": (
        lambda f, **o: _save_torch(f, torch._neg_view, **o),
        None,
    ),
    "save_model": (lambda f, **o: st.save_model(_module(), f / "saved.safetensors", **o), None),
    "serialize_file": (_save_specs, None),
    "save_files": (
        lambda f, **o: save_files(ARRAYS, f / "saved", max_shard_size=50_000, **o),
        NBYTES,
    ),
}
every_way = pytest.mark.parametrize("way", WAYS)


@every_way
def test_the_total_is_constant_and_reached(model, way):
    act, total = WAYS[way]
    told = []
    act(model, progress=lambda *numbers: told.append(numbers))
    if total is None:  # that of the written file
        (path,) = [*model.glob("saved.safetensors")] or [model / "a.safetensors"]
        total = path.stat().st_size
    assert {each for _, each in told} == {total}
    assert [done for done, _ in told] == sorted(done for done, _ in told)
    assert told[-1] == (total, total)
    assert told.count(told[-1]) == 1


@every_way
def test_what_it_raises_comes_out(model, way):
    def stop(done, total):
        raise LookupError("stopped")

    before = {path.name: path.read_bytes() for path in model.glob("*.safetensors")}
    with pytest.raises(LookupError, match="stopped"):
        WAYS[way][0](model, progress=stop)
    for name, data in before.items():
        assert (model / name).read_bytes() == data


@every_way
def test_an_error_in_the_last_call(model, way):
    """Nothing has changed when it is made."""

    def stop(done, total):
        if done == total:
            raise LookupError("stopped")

    before = {path.name: path.read_bytes() for path in model.glob("*.safetensors")}
    with pytest.raises(LookupError, match="stopped"):
        WAYS[way][0](model, progress=stop)
    after = {path.name: path.read_bytes() for path in model.glob("*.safetensors")}
    if "c.safetensors" in after:  # made by the way itself
        before["c.safetensors"] = before["a.safetensors"]
    after.pop("module.safetensors", None)
    assert before == after
    assert not {"made", "out", "saved", "out.safetensors"} & {path.name for path in model.iterdir()}


@every_way
def test_other_values_are_refused(model, way):
    text = "progress is True, False, None or called as"
    if way == "serialize_file":  # has no bar
        text = "not callable"
    else:
        WAYS[way][0](model, progress=False)
        WAYS[way][0](model, progress=True)  # nobody sees it here
    with pytest.raises(TypeError, match=text):
        WAYS[way][0](model, progress=3)


GROWING = """
import sys, time
for name in {blocked!r}:
    sys.modules[name] = None
import numpy as np
from safetensors import safe_create
with safe_create({path!r}, max_shard_size={size}, progress=True) as writer:
    for n in range(5):
        writer.write(str(n), np.zeros(1_000_000, "u1"))
        time.sleep(0.15)  # bars are drawn ten times a second
print("end")
"""
without_specs = pytest.mark.parametrize("size", [None, 1_500_000])


@without_specs
def test_without_specs_the_total_grows(tmp_path, size):
    told = []
    with safe_create(
        tmp_path / "made", max_shard_size=size, progress=lambda *numbers: told.append(numbers)
    ) as writer:
        for name, array in ARRAYS.items():
            writer.write(name, array)
            writer.write(name + ".large", np.zeros(1_000_000, "u1"))
    assert told == sorted(told)
    totals = [total for _, total in told]
    assert totals == sorted(totals)
    assert totals[0] < totals[-1] == told[-1][0]
    assert totals[-1] >= NBYTES + 20_000_000


@without_specs
@pytest.mark.parametrize("blocked", [(), ("tqdm",), ("tqdm", "rich")])
def test_without_specs_the_bar_has_no_total(tmp_path, size, blocked):
    """It goes on after the first tensor, with which both numbers were equal."""
    if "tqdm" not in blocked:
        pytest.importorskip("tqdm")
    elif "rich" not in blocked:
        pytest.importorskip("rich")
    program = GROWING.format(blocked=blocked, path=str(tmp_path / "made"), size=size)
    shown = cli.in_terminal([sys.executable, "-c", program])
    assert max(float(n) for n in re.findall(r"([\d.]+)(?:/\?)? ?MB?[^/]", shown)) >= 3
    assert "%" not in shown
    assert shown.rstrip().endswith("end")


@without_specs
def test_a_writer_that_is_discarded_removes_its_bar(tmp_path, monkeypatch, size):
    hidden = []

    class Bar:
        def advance(self, nbytes):
            assert not hidden

        def hide(self):
            hidden.append(True)

    monkeypatch.setattr(_progress_bar, "can_be_seen", lambda: True)
    monkeypatch.setattr(_progress_bar._TqdmBar, "made", lambda *_: Bar())
    writer = safe_create(tmp_path / "made", max_shard_size=size, progress=True)
    for name in "ab":
        writer.write(name, np.zeros(1_000_000, "u1"))
    assert not hidden
    writer.abort()
    assert hidden


def test_a_stream_has_a_length(model):
    stream = st.stream_files(model / "shards")
    assert len(stream) == 20
    next(stream)
    assert len(stream) == 19
    stream.close()
    assert len(stream) == 0
    assert [*stream] == []


def test_signatures_are_kept():
    for function in (st.load_files, st.load_into, update_file, delta.apply_file):
        assert "progress" in inspect.signature(function).parameters
        assert function.__doc__


BAR = """
import sys
for name in {blocked!r}:
    sys.modules[name] = None
import numpy as np
from safetensors import sums
try:
    sums.make({path!r}, progress={progress})
except ZeroDivisionError:
    print("stopped")
from safetensors._progress_bar import Progress
bar = Progress("hashing")
for done in range(0, 101, 10):
    bar._next = 0
    bar(done * 10**6, 10**8)
print("end")
"""


@pytest.mark.parametrize("blocked", [(), ("tqdm",), ("tqdm", "rich")])
def test_a_bar_on_a_terminal(model, blocked):
    if "tqdm" not in blocked:
        pytest.importorskip("tqdm")
    elif "rich" not in blocked:
        pytest.importorskip("rich")
    program = BAR.format(blocked=blocked, path=str(model / "shards"), progress="True")
    shown = cli.in_terminal([sys.executable, "-c", program])
    assert "hashing" in shown
    assert "%" in shown or "MB" in shown
    assert shown.rstrip().endswith("end")


def test_a_pipe_sees_no_bar(model):
    program = f"from safetensors import sums\nsums.make({str(model / 'shards')!r}, progress=True)"
    done = children.run_raw(program)
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
