"""`safetensors.delta` on models in files: `diff`, `apply_file`, patches from elsewhere."""

import itertools
import os

import pytest
import torch

from safetensors import SafetensorError, delta, safe_open
from safetensors.torch import load_file, load_files, save_file, save_files
from support import children, cli
from support.servers import RangeServer

SHARD = 60_000


def make_state(step=0):
    """Returns a state, of which each step changes a few values of some tensors."""
    torch.manual_seed(0)
    state = {f"l.{i}.weight": torch.randn(100, 200).bfloat16() for i in range(6)}
    state["bias"] = torch.zeros(33)
    for i in range(step):
        state[f"l.{i}.weight"].view(torch.int16)[i::17, 3] += 1
        state["bias"][i] += 1
    if step:
        del state["l.5.weight"]
        state["new"] = torch.arange(step + 4)
    return state


def equal(found, expected):
    return found.keys() == expected.keys() and all(
        torch.equal(found[name], expected[name]) for name in expected
    )


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """States 0 to 3, each as a file and as a folder of shards, and the patches between them."""
    top = tmp_path_factory.mktemp("models")
    for step in range(4):
        save_file(make_state(step), top / f"{step}.safetensors", {"step": str(step)})
        save_files(make_state(step), top / str(step), max_shard_size=SHARD)
    for step in range(1, 4):
        delta.diff(
            top / f"{step - 1}.safetensors",
            top / str(step),
            top / f"{step}.safetensors-patch",
            labels=(str(step - 1), str(step)),
        ).close()
    return top


def patches(folder, *steps):
    return [folder / f"{step}.safetensors-patch" for step in steps]


@pytest.mark.parametrize("verify", ["blocks", "full", "whole"])
@pytest.mark.parametrize("end", [1, 3])
def test_a_file(folder, tmp_path, verify, end):
    """The output has the bytes that save_file writes."""
    out = tmp_path / "out.safetensors"
    used = patches(folder, *range(1, end + 1))
    delta.apply_file(folder / "0.safetensors", used, out, verify=verify)
    save_file(make_state(end), tmp_path / "expected.safetensors", {"step": "0"})
    assert out.read_bytes() == (tmp_path / "expected.safetensors").read_bytes()
    assert sorted(os.listdir(tmp_path)) == ["expected.safetensors", "out.safetensors"]


@pytest.mark.parametrize("verify", ["blocks", "full", "whole"])
@pytest.mark.parametrize("source", ["0", "0/model.safetensors.index.json"])
def test_shards(folder, tmp_path, verify, source):
    """The same patches fit a model of several files, which stays one of as many."""
    out = tmp_path / "deep" / "out"
    out.parent.mkdir()
    delta.apply_file(folder / source, patches(folder, 1, 2, 3), out, verify=verify, fsync=True)
    assert equal(load_files(out), make_state(3))
    assert len(os.listdir(out)) == len(os.listdir(folder / "0"))
    with pytest.raises(ValueError, match="must be a folder"):
        delta.apply_file(folder / "0", patches(folder, 1), tmp_path / "a.safetensors")


def test_any_number_of_files_on_either_side(folder, tmp_path):
    """Patches are the same bytes, apart from the metadata of single files."""
    found = set()
    for i, (old, new) in enumerate(itertools.product(["0.safetensors", "0"], ["1"])):
        path = tmp_path / f"{i}.safetensors-patch"
        delta.diff(folder / old, folder / new, path).close()
        found.add(path.read_bytes())
    delta.diff(make_state(0), make_state(1), tmp_path / "m.safetensors-patch").close()
    found.add((tmp_path / "m.safetensors-patch").read_bytes())
    assert len(found) == 1


def test_tensors_of_no_byte_and_of_one(tmp_path):
    old = {"one": torch.tensor([3], dtype=torch.uint8), "flag": torch.tensor(True)}
    new = {"one": torch.tensor([4], dtype=torch.uint8), "flag": torch.tensor(False)}
    same = {"none": torch.empty(0, 2), "byte": torch.tensor([9], dtype=torch.int8)}
    paths = [tmp_path / name for name in ("old.safetensors", "new.safetensors", "patch")]
    save_file(old | same, paths[0])
    save_file(new | same, paths[1])
    delta.diff(*paths).close()
    delta.apply_file(paths[0], [paths[2]], tmp_path / "out.safetensors")
    assert equal(load_file(tmp_path / "out.safetensors"), new | same)


def test_metadata_of_single_files(folder, tmp_path):
    """A patch has the target's, unless it is the base's; only single files become it."""
    file, shards = tmp_path / "out.safetensors", tmp_path / "out"
    with delta.diff(folder / "0.safetensors", folder / "1.safetensors") as patch:
        assert patch.metadata == {"step": "1"}
        delta.apply_file(folder / "0.safetensors", patch, file)
        delta.apply_file(folder / "0", patch, shards)
    assert file.read_bytes() == (folder / "1.safetensors").read_bytes()
    for path in shards.glob("*.safetensors"):
        with safe_open(path, "pt") as opened:
            assert opened.metadata() == {"format": "pt"}
    with delta.diff(folder / "1.safetensors", file) as patch:
        assert patch.metadata is None


def test_refused(folder, tmp_path):
    """Errors name the patch and the tensor; nothing appears."""
    out = tmp_path / "out.safetensors"
    base = folder / "0.safetensors"

    def check(kind, words, model, used, **options):
        with pytest.raises(kind) as caught:
            delta.apply_file(model, used, out, **options)
        assert os.listdir(tmp_path) in ([], ["wrong.safetensors"])
        for word in words:
            assert word in str(caught.value)

    first = str(folder / "1.safetensors-patch")
    check(delta.WrongBaseError, ["leads to"], base, patches(folder, 1, 3))
    check(delta.WrongBaseError, ["leads to"], base, patches(folder, 2, 1))
    check(delta.AlreadyAppliedError, [first], folder / "1.safetensors", first)
    check(delta.PatchError, ["2.safetensors-patch: tensor `"], base, patches(folder, 2))
    check(delta.PatchError, ["0.safetensors: not a patch"], base, base)
    check(FileNotFoundError, ["none"], base, folder / "none")
    check(FileNotFoundError, ["none"], folder / "none", first)
    check(ValueError, ["verify is"], base, first, verify="no")
    wrong = make_state(0)
    wrong["l.0.weight"].view(torch.int16)[99, 199] ^= 1
    save_file(wrong, tmp_path / "wrong.safetensors")
    said = [first, "`l.0.weight`", "changes nothing"]
    check(delta.WrongBaseError, said, tmp_path / "wrong.safetensors", first)
    wrong["l.4.weight"][0, 0] = 9
    wrong["l.0.weight"] = make_state(0)["l.0.weight"]
    save_file(wrong, tmp_path / "wrong.safetensors")
    said = [first, "does not change"]
    check(delta.WrongBaseError, said, tmp_path / "wrong.safetensors", first, verify="whole")


def test_skip(folder, tmp_path):
    """Patches that the model has are left out, up to all of them."""
    for step in range(4):
        out = tmp_path / f"{step}.safetensors"
        delta.apply_file(
            folder / f"{step}.safetensors", patches(folder, 1, 2, 3), out, already="skip"
        )
        assert equal(load_file(out), make_state(3))


def test_the_output_may_be_the_model(folder, tmp_path):
    """A file and a folder are replaced as a whole; other models are not touched."""
    model = tmp_path / "m.safetensors"
    model.write_bytes((folder / "0.safetensors").read_bytes())
    mapped = load_file(model)
    for step in (1, 2, 3):
        delta.apply_file(model, patches(folder, step), model)
    assert equal(load_file(model), make_state(3))
    assert equal(mapped, make_state(0))
    save_files(make_state(0), tmp_path / "f", max_shard_size=SHARD)
    delta.apply_file(tmp_path / "f", patches(folder, 1), tmp_path / "f")
    assert equal(load_files(tmp_path / "f"), make_state(1))
    (tmp_path / "other").mkdir()
    save_file(make_state(0), tmp_path / "other" / "adapter.safetensors")
    with pytest.raises(SafetensorError, match="two models in one folder"):
        delta.apply_file(tmp_path / "f", patches(folder, 2), tmp_path / "other")
    assert os.listdir(tmp_path / "other") == ["adapter.safetensors"]


class Served:
    """A patch or model that is not a file."""

    def __init__(self, data):
        self.name, self.data = "served", data

    def open(self, nbytes):
        return len(self.data), self.data[:nbytes]

    def read(self, offset, nbytes):
        return self.data[offset : offset + nbytes]


def test_from_elsewhere(folder, tmp_path):
    """Models and patches are read by ranges, too."""
    out = tmp_path / "out.safetensors"
    base = Served((folder / "0.safetensors").read_bytes())
    patch = Served(patches(folder, 1)[0].read_bytes())
    delta.apply_file(base, patch, out)
    assert equal(load_file(out), make_state(1))
    with delta.diff(base, folder / "1.safetensors") as made:
        assert made.names == delta.open_patch(patch).names


MEASURED = """
import resource
from safetensors import delta
before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
{call}
print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before)
"""


@pytest.mark.slow
def test_memory_is_that_of_one_tensor(tmp_path):
    """Of a model of 240 MB in 15 tensors."""
    state = {f"{i}": torch.zeros(4_000_000, dtype=torch.float32) for i in range(15)}
    save_file(state, tmp_path / "a.safetensors")
    for tensor in state.values():
        tensor[::100] += 1
    save_file(state, tmp_path / "b.safetensors")
    calls = ["delta.diff('a.safetensors', 'b.safetensors', 'p.safetensors-patch')"]
    calls.append("delta.apply_file('a.safetensors', 'p.safetensors-patch', 'c.safetensors')")
    for call in calls:
        script = f"import os; os.chdir({str(tmp_path)!r})\n" + MEASURED.format(call=call)
        assert int(children.run(script)) < 60_000  # KiB
    assert (tmp_path / "c.safetensors").read_bytes() == (tmp_path / "b.safetensors").read_bytes()


@pytest.fixture
def of_variants(tmp_path):
    """Two folders whose models have the variant "fp16", which alone differs between them."""
    folders = [tmp_path / "old", tmp_path / "new"]
    for step, folder in enumerate(folders):
        folder.mkdir()
        save_file(make_state(), folder / "model.safetensors")
        save_file(make_state(step), folder / "model.fp16.safetensors")
    return folders


def test_a_variant_of_folders(of_variants, tmp_path):
    """name= and variant= choose the model of a folder, as for load_files."""
    old, new = of_variants
    patch = delta.diff(old, new, tmp_path / "1.safetensors-patch", variant="fp16")
    assert "l.0.weight" in patch.names
    delta.apply_file(old, patch, tmp_path / "out.safetensors", variant="fp16")
    assert equal(load_file(tmp_path / "out.safetensors"), make_state(1))
    plain = delta.diff(old, new)
    assert plain.names == []
    with pytest.raises(SafetensorError, match="bf16"):
        delta.diff(old, new, variant="bf16")
    with pytest.raises(ValueError, match="name and variant choose a model of a folder"):
        delta.apply_file(old / "model.safetensors", patch, tmp_path / "x", name="model")
    with pytest.raises(ValueError, match="and a dict is none"):
        delta.diff(make_state(), make_state(), variant="fp16")
    with pytest.raises(TypeError, match="variant is a str"):
        delta.apply_file(old, patch, in_place=True, variant=1)


def test_a_variant_is_changed_in_place(of_variants, tmp_path):
    old, _ = of_variants
    before, after = make_state(), make_state()
    after["bias"] += 1
    patch = delta.diff(before, after)
    delta.apply_file(old, patch, in_place=True, variant="fp16")
    assert equal(load_file(old / "model.fp16.safetensors"), after)
    assert equal(load_file(old / "model.safetensors"), before)


def test_the_commands_patch_the_variant_that_they_compare(of_variants, tmp_path):
    old, new = of_variants
    path, out = tmp_path / "1.safetensors-patch", tmp_path / "out.safetensors"
    cli.run("diff", old, new, "--variant", "fp16", "--patch", path, status=1)
    cli.run("patch", old, path, "--variant", "fp16", "--output", out)
    assert equal(load_file(out), make_state(1))


def test_a_patch_of_a_url(tmp_path):
    """It is named without what may be secret."""
    before, after = ({"a": torch.full((9,), value)} for value in (1.0, 2.0))
    delta.diff(before, after, tmp_path / "p.safetensors-patch")
    content = (tmp_path / "p.safetensors-patch").read_bytes()
    with (
        RangeServer({"/p": content}) as server,
        delta.open_patch(server.url("/p?sig=canary")) as patch,
    ):
        delta.apply(before, patch)
        assert patch.path == server.url("/p?sig=...")
    assert torch.equal(before["a"], after["a"])
