"""load_into: existing tensors get the files' values; if one does not fit, none is changed."""

import shutil
import time

import pytest
import torch

from safetensors import SafetensorError, _core
from safetensors._torch import load_into as module
from safetensors.torch import (
    load_file,
    load_files,
    load_into,
    save_file,
    save_model,
)
from support import children, fake_cuda, file_builder, sharded
from support.threads import together


@pytest.fixture
def targets(tensors):
    """Tensors of the same dtypes and shapes with other values."""
    return {name: torch.full_like(tensor, True) for name, tensor in tensors.items()}


@pytest.fixture
def untouched(targets):
    """Checks after the test that no target has changed."""
    before = {name: tensor.clone() for name, tensor in targets.items()}
    versions = {name: tensor._version for name, tensor in targets.items()}
    yield
    sharded.check(targets, before)
    assert {name: tensor._version for name, tensor in targets.items()} == versions


def replaced(targets, **values):
    """Returns the targets with some replaced: `_3` is the tensor of layer 3."""
    return targets | {f"layers.{key[1:]}.weight": value for key, value in values.items()}


def refused(targets, model, text, **options):
    """Checks that loading raises an error with this text."""
    with pytest.raises(SafetensorError, match=text):
        load_into(targets, model, **options)


def test_values_are_loaded_in_place(model, tensors, targets):
    """The tensors keep their addresses and get the files' values."""
    addresses = {name: tensor.data_ptr() for name, tensor in targets.items()}
    assert load_into(targets, model) == ([], [])
    sharded.check(targets, tensors)
    assert {name: tensor.data_ptr() for name, tensor in targets.items()} == addresses


def test_one_file(model, tensors, targets):
    """A file without an index is loaded, and other names are missing."""
    path = sorted(model.glob("*.safetensors"))[0]
    names = load_file(path).keys()
    load_into({name: targets[name] for name in names}, path)
    sharded.check({n: targets[n] for n in names}, {n: tensors[n] for n in names})


def test_a_models_state(tmp_path):
    """A model's state has parameters that require gradients, and buffers."""
    source = torch.nn.Sequential(torch.nn.Linear(7, 9), torch.nn.BatchNorm1d(9))
    save_file(source.state_dict(), tmp_path / "a.safetensors")
    target = torch.nn.Sequential(torch.nn.Linear(7, 9), torch.nn.BatchNorm1d(9))
    load_into(dict(target.named_parameters()) | dict(target.named_buffers()), tmp_path)
    sharded.check(dict(target.state_dict()), dict(source.state_dict()))
    assert all(parameter.requires_grad for parameter in target.parameters())


def test_autograd_sees_the_writes(tmp_path):
    """A backward pass through overwritten values raises, as after copy_()."""
    save_file({"a": torch.ones(3)}, tmp_path / "a.safetensors")
    weight = torch.full((3,), 2.0, requires_grad=True)
    loss = (weight * weight).sum()
    version = weight._version
    load_into({"a": weight}, tmp_path)
    assert weight._version > version
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        loss.backward()


def test_views_that_are_contiguous(tmp_path):
    """Views of one storage that do not overlap are loaded."""
    save_file({"a": torch.ones(2, 4), "b": torch.full((2, 4), 2.0)}, tmp_path / "a.safetensors")
    memory = torch.zeros(6, 4)
    load_into({"a": memory[1:3], "b": memory[3:5]}, tmp_path)
    assert memory[:, 0].tolist() == [0, 1, 1, 2, 2, 0]


def test_missing_and_unexpected(model, targets, tensors):
    """They are raised if strict, else returned, as by load_state_dict."""
    del targets["layers.5.weight"], targets["layers.11.weight"]
    targets["other"] = torch.zeros(3)
    before = {name: tensor.clone() for name, tensor in targets.items()}
    with pytest.raises(RuntimeError) as caught:
        load_into(targets, model)
    assert str(caught.value) == (
        "Error(s) in loading tensors from files:"
        '\n    Missing key(s) in state_dict: "other"'
        '\n    Unexpected key(s) in state_dict: "layers.11.weight", "layers.5.weight"'
    )
    sharded.check(targets, before)
    missing, unexpected = load_into(targets, model, strict=False)
    assert missing == ["other"]
    assert sorted(unexpected) == ["layers.11.weight", "layers.5.weight"]
    assert targets.pop("other").tolist() == [0, 0, 0]
    sharded.check(targets, {name: tensors[name] for name in targets})


def test_not_strict_opens_only_files_that_are_needed(model, targets, tmp_path):
    """The index tells which files are needed."""
    copied = shutil.copytree(model, tmp_path / "model")
    first, second, third = sorted(copied.glob("*.safetensors"))
    few = {name: targets[name] for name in load_file(second)}
    first.unlink()
    third.unlink()
    missing, unexpected = load_into(few, copied, strict=False)
    assert missing == []
    assert len(unexpected) == len(targets) - len(few)
    sharded.check(few, load_file(second))


@pytest.mark.usefixtures("untouched")
def test_wrong_forms(model, targets):
    """The error has both types or both shapes."""
    text = r"'layers\.0\.weight'.*of type torch.float64, the file's is torch.float32"
    refused(replaced(targets, _0=torch.zeros((), dtype=torch.float64)), model, text)
    text = r"'layers\.5\.weight'.*of shape \[7, 1000\], the file's is \[1000, 7\]"
    refused(replaced(targets, _5=torch.zeros(7, 1000, dtype=torch.uint8)), model, text)
    refused(replaced(targets, _5=torch.zeros(7000, dtype=torch.uint8)), model, "of shape")
    refused(replaced(targets, _5=[0]), model, "not a torch.Tensor but <class 'list'>")


@pytest.mark.usefixtures("untouched")
def test_memory_that_cannot_be_written_through(model, targets):
    """Sparse, conjugated, expanded tensors and those without memory are refused."""
    refused(replaced(targets, _5=torch.zeros(7).byte().expand(1000, 7)), model, "may share memory")
    sparse = torch.zeros(1000, 7, dtype=torch.uint8).to_sparse()
    refused(replaced(targets, _5=sparse), model, "not dense")
    conjugated = targets["layers.4.weight"].clone().conj()
    refused(replaced(targets, _4=conjugated), model, "conjugated")
    meta = torch.zeros(1000, 7, dtype=torch.uint8, device="meta")
    refused(replaced(targets, _5=meta), model, "no memory that can be written .it is on meta")


@pytest.mark.usefixtures("untouched")
def test_inference_tensors(model, targets, tensors):
    """They are written to only in inference mode, as by torch."""
    with torch.inference_mode():
        made = {name: torch.zeros_like(tensor) for name, tensor in targets.items()}
    refused(made, model, "inference mode")
    with torch.inference_mode():
        load_into(made, model)
    sharded.check(made, tensors)


@pytest.mark.usefixtures("untouched")
def test_lazily_negated_tensors(model, targets):
    """Their memory holds the negated values, so the file's bytes would be wrong."""
    negated = torch._neg_view(torch.zeros(()))
    assert negated.is_neg()
    assert negated.is_contiguous()
    refused(replaced(targets, _0=negated), model, r"'layers\.0\.weight'.*negated view")


@pytest.mark.usefixtures("untouched")
def test_tensors_that_share_memory(model, targets):
    """Tied tensors, and ones that share a byte, are refused; the error has both names."""
    tied = replaced(targets, _11=targets["layers.5.weight"])
    refused(tied, model, r"'layers\.11\.weight' and 'layers\.5\.weight' share memory")
    memory = torch.zeros(13999, dtype=torch.uint8)
    halves = {"_5": memory[:7000].view(1000, 7), "_11": memory[6999:].view(1000, 7)}
    refused(replaced(targets, **halves), model, r"'layers\.5\.weight' and 'layers\.11\.weight'")


def test_tied_names_that_the_files_lack(model, targets, tensors):
    """They are not missing: they get the values of the tensors that they are tied to."""
    targets["tied"] = targets["layers.5.weight"]
    assert load_into(targets, model) == ([], [])
    sharded.check(targets, tensors | {"tied": tensors["layers.5.weight"]})
    targets["part"] = targets["layers.5.weight"][:1]
    targets["empty"] = torch.zeros(0)
    assert load_into(targets, model, strict=False) == (["part", "empty"], [])


F4 = getattr(torch, "float4_e2m1fn_x2", None)


@pytest.mark.skipif(F4 is None, reason="this torch has no F4")
def test_elements_of_half_a_byte(tmp_path):
    """A torch element holds two values: the last axis in the file must be even."""
    path = tmp_path / "a.safetensors"
    bits = torch.arange(6, dtype=torch.uint8).reshape(2, 3)
    save_file({"a": bits.view(F4)}, path)
    target = torch.zeros(2, 3, dtype=torch.uint8).view(F4)
    assert load_into({"a": target}, path) == ([], [])
    assert torch.equal(target.view(torch.uint8), bits)
    odd = '{"a":{"dtype":"F4","shape":[2,3],"data_offsets":[0,3]}}'
    file_builder.write(path, file_builder.from_entries(odd, bytes(3)))
    for call in (
        lambda: load_into({"a": torch.zeros(2, 2, dtype=torch.uint8).view(F4)}, path),
        lambda: load_file(path),
        lambda: load_file(path, backend="pread"),
    ):
        with pytest.raises(SafetensorError, match="last dim be divisible by 2") as caught:
            call()
        assert (caught.value.path, caught.value.subject) == (str(path), "a")
        assert str(caught.value).endswith(f" (in {path})")


def tied_model():
    """Two layers that share their weight."""
    made = torch.nn.Sequential(
        torch.nn.Linear(5, 5), torch.nn.BatchNorm1d(5), torch.nn.Linear(5, 5)
    )
    made[2].weight = made[0].weight
    return made


def test_a_module(tmp_path):
    """Parameters and buffers are loaded, also tied ones, which save_model writes once."""
    source, target = tied_model(), tied_model()
    save_model(source, tmp_path / "model.safetensors")
    assert load_into(target, tmp_path) == ([], [])
    sharded.check(target.state_dict(), source.state_dict())
    assert target[2].weight is target[0].weight


def test_a_module_without_memory(tmp_path):
    """The error says how to allocate memory."""
    save_model(tied_model(), tmp_path / "model.safetensors")
    with torch.device("meta"):
        target = tied_model()
    with pytest.raises(SafetensorError, match=r"on meta.*`to_empty\(\)` of the module"):
        load_into(target, tmp_path, strict=False)
    target.to_empty(device="cpu")
    target[2].weight = target[0].weight
    assert load_into(target, tmp_path) == ([], [])


@pytest.mark.usefixtures("untouched")
def test_a_truncated_or_missing_shard(model, targets, tmp_path):
    """All files are opened before the first tensor is written."""
    copied = shutil.copytree(model, tmp_path / "model")
    last = sorted(copied.glob("*.safetensors"))[-1]
    last.write_bytes(last.read_bytes()[:-1])
    refused(targets, copied, str(last))
    last.unlink()
    with pytest.raises(FileNotFoundError):
        load_into(targets, copied)


def test_a_shard_that_is_truncated_during_the_load(model, targets, tensors, tmp_path, monkeypatch):
    """Nothing is written after the error, and the next load works."""
    copied = shutil.copytree(model, tmp_path / "model")
    last = sorted(copied.glob("*.safetensors"))[-1]

    real = module.open_tensors

    def open_and_cut(*args):
        opened = real(*args)
        children.run("import os; os.truncate(sys.argv[1], 600)", last)
        return opened

    monkeypatch.setattr(module, "open_tensors", open_and_cut)
    with pytest.raises((SafetensorError, OSError), match=last.name):
        load_into(targets, copied)
    monkeypatch.undo()
    after = {name: tensor.clone() for name, tensor in targets.items()}
    time.sleep(0.05)
    sharded.check(targets, after)
    load_into(targets, model)
    sharded.check(targets, tensors)


def test_one_group_for_each_device(model, targets, tensors, monkeypatch):
    """Targets may be on several devices: each device's tensors are one group."""
    asked = []

    def fake(groups, progress):
        for device, requests in groups:
            asked.append((device, {name for _, name, _, _ in requests}))
            assert all(str(tensor.device) == device for *_, tensor in requests)

    monkeypatch.setattr(_core, "_load_groups", fake)
    monkeypatch.setattr("safetensors._torch.load_into.address_of", lambda tensor: 1)
    monkeypatch.setattr("safetensors._torch.load_into._check_overlaps", lambda tensors: None)
    there = {name for i, name in enumerate(targets) if i % 3 == 0}
    for name in there:
        targets[name] = targets[name].to("meta")
    load_into(targets, model)
    assert sorted(asked) == [("cpu", targets.keys() - there), ("meta", there)]


def test_cuda(cuda, model, targets, tensors, monkeypatch):
    """The engine writes to the existing tensors, and none is allocated."""
    there = {targets[name].data_ptr() for i, name in enumerate(targets) if i % 2 == 0}
    where = {True: "cuda:1", False: "cpu"}
    monkeypatch.setattr(module, "_device", lambda tensor: where[tensor.data_ptr() in there])
    told = []
    load_into(targets, model, progress=lambda *args: told.append(args))
    sharded.check(targets, tensors)
    assert cuda.made == []
    copied = [tensor.nbytes for tensor in targets.values() if tensor.data_ptr() in there]
    assert cuda.stat(fake_cuda.COPIED_BYTES) == sum(copied)
    assert told[-1] == (sum(tensor.nbytes for tensor in tensors.values()),) * 2


def test_threads(model, tensors):
    """Each thread has its own targets."""
    made = [{name: torch.zeros_like(t) for name, t in tensors.items()} for _ in range(4)]
    together(lambda one: load_into(one, model), made)
    for one in made:
        sharded.check(one, tensors)


def test_into_views_of_the_same_file(tmp_path):
    """Private mappings of a file can be overwritten; the file does not change."""
    path = tmp_path / "a.safetensors"
    save_file({"a": torch.arange(5000.0)}, path)
    content = path.read_bytes()
    mapped = load_files(path)
    mapped["a"].zero_()
    load_into(mapped, path)
    assert mapped["a"].tolist() == list(range(5000))
    assert path.read_bytes() == content
