"""`safetensors.delta`: patches of tensors in memory."""

import itertools

import numpy as np
import pytest
import torch

from safetensors import SafetensorError, delta, numpy, safe_create, safe_open, specs_of
from safetensors.torch import save_file
from support.dtype_table import SAVEABLE, torch_dtype

DIGESTS = ("xxh3-128", "sha256")
VERIFY = ("blocks", "full", "whole")


def make_state(seed=0):
    """Returns tensors of several types and sizes."""
    torch.manual_seed(seed)
    return {
        "a.weight": torch.randn(300, 500).bfloat16(),
        "b.weight": torch.randn(70000),
        "b.bias": torch.randn(7),
        "flags": torch.rand(9) > 0.5,
        "ids": torch.arange(100),
        "none": torch.zeros(0, 3),
        "scalar": torch.tensor(3.0, dtype=torch.float64),
        "small": (torch.rand(64) * 255).to(torch.uint8).view(torch.float8_e4m3fn),
    }


def copied(state):
    return {name: tensor.clone() for name, tensor in state.items()}


def bits(tensor):
    """Returns a tensor's elements as integers: NaN is then equal to itself."""
    kinds = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}
    return tensor.view(kinds[tensor.element_size()])


def same(found, expected):
    return found.keys() == expected.keys() and all(
        found[name].dtype == tensor.dtype and torch.equal(bits(found[name]), bits(tensor))
        for name, tensor in expected.items()
    )


def stepped(state, step=1):
    """Returns what a step of training makes of a state: each tensor but `ids` changes."""
    new = copied(state)
    for name, tensor in new.items():
        if name not in ("ids", "none"):
            flat = bits(tensor).reshape(-1)
            flat[min(step % 3, flat.numel() - 1) :: 97] += 1 if tensor.dtype != torch.bool else 0
    new["flags"][step] ^= True
    new["b.weight"][step] = float("nan")
    return new


def layout(new):
    """Returns the state with a tensor added, one removed, one reshaped and one retyped."""
    new = copied(new)
    del new["b.bias"]
    new["c"] = torch.arange(5, dtype=torch.int16)
    new["ids"] = new["ids"].reshape(10, 10)
    new["b.weight"] = new["b.weight"].half()
    return new


def refused(kind, words, tensors, *arguments, **options):
    """Checks that apply raises an error of one line with these words, and changes nothing."""
    before = copied(tensors)
    with pytest.raises(kind) as caught:
        delta.apply(tensors, *arguments, **options)
    assert same(tensors, before)
    text = str(caught.value)
    assert "\n" not in text
    for word in words:
        assert word in text, text
    return caught.value


@pytest.mark.parametrize(("digest", "verify"), list(itertools.product(DIGESTS, VERIFY)))
@pytest.mark.parametrize("change", [stepped, layout])
def test_a_patch_makes_the_new_state(digest, verify, change):
    """Tensors keep their memory, unless they are replaced."""
    old = make_state()
    new = change(stepped(old))
    patch = delta.diff(old, new, digest=digest)
    found = copied(old)
    places = {name: tensor.data_ptr() for name, tensor in found.items()}
    delta.apply(found, patch, verify=verify)
    assert same(found, new)
    for name in ("a.weight", "scalar", "flags"):
        assert found[name].data_ptr() == places[name]
    assert patch.base.startswith(digest + ":")
    refused(delta.AlreadyAppliedError, ["has this patch already"], found, patch, verify=verify)
    delta.apply(found, patch, verify=verify, already="skip")
    assert same(found, new)


def test_what_a_patch_says():
    old = make_state()
    new = layout(stepped(old))
    patch = delta.diff(old, new, labels=("0", "1"))
    assert (patch.base_label, patch.target_label) == ("0", "1")
    assert patch.names == sorted(set(old) - {"none"} | {"c"})
    entry = patch.entry("a.weight")
    assert (entry.kind, entry.dtype, entry.shape) == ("blocks", "BF16", (300, 500))
    assert (entry.units, entry.changed) == (150_000, len(range(1, 150_000, 97)))
    assert entry.codes["add8"] == 3
    assert entry.nbytes < 96 + 16 + 3 * 16 + 2 * entry.changed + 8
    assert patch.entry("b.bias")[:3] == ("removed", None, None)
    assert patch.entry("b.bias").target is None
    assert patch.entry("b.weight")[:5] == ("whole", "F16", (70000,), 70000, 70000)
    assert patch.entry("c").base is None
    assert repr(patch).startswith("<Patch patch in memory: 8 tensors, xxh3-128:")
    indices, values = patch.changed("a.weight")
    assert (indices == np.arange(1, 150_000, 97)).all()
    assert indices.dtype == np.int64
    assert values is None
    indices, values = patch.changed("b.weight")
    assert len(indices) == 70000
    assert values.dtype == np.float16
    assert [len(each) if each is not None else None for each in patch.changed("b.bias")] == [
        0,
        None,
    ]


def test_set_values_need_no_base():
    """`changed` returns all that a receiver needs."""
    old = make_state()
    new = stepped(old)
    patch = delta.diff(old, new, values="set")
    for name in patch.names:
        indices, values = patch.changed(name)
        found = old[name].reshape(-1).clone()
        units = bits(found)
        units[torch.from_numpy(indices)] = torch.from_numpy(
            values.view(f"i{values.itemsize}" if values.itemsize > 1 else "u1")
        )
        assert torch.equal(units, bits(new[name].reshape(-1)))
    found = copied(old)
    delta.apply(found, patch)
    assert same(found, new)


@pytest.mark.parametrize("dtype", SAVEABLE)
def test_every_dtype(dtype):
    """Also those of NumPy, whose arrays stay arrays."""
    unit = torch.empty(1, dtype=torch_dtype(dtype)).element_size()
    raw = (torch.arange(70000 * unit) % (2 if dtype == "BOOL" else 251)).to(torch.uint8)
    old = {"x": raw.view(torch_dtype(dtype))}
    new = copied(old)
    bits(new["x"])[[0, 5, 69999]] ^= 1
    patch = delta.diff(old, new)
    found = copied(old)
    delta.apply(found, patch, verify="full")
    assert same(found, new)
    found = copied(old)
    bits(found["x"])[5] ^= 8
    if dtype != "BOOL":
        refused(delta.WrongBaseError, ["`x`"], found, patch)


def test_arrays():
    old = {"a": np.arange(100.0), "b": np.zeros((3, 4), np.int32), "c": np.float32(2)}
    new = {"a": old["a"] + 1, "b": old["b"].copy(), "d": np.ones(3)}
    new["b"][1, 2] = -5
    patch = delta.diff(old, new)
    found = {name: np.array(array) for name, array in old.items()}
    kept = found["b"]
    delta.apply(found, patch)
    assert found.keys() == new.keys()
    assert all((found[name] == new[name]).all() for name in new)
    assert found["b"] is kept
    assert isinstance(found["d"], np.ndarray)


def test_the_same_states_give_the_same_bytes(tmp_path):
    """Whatever the order of the tensors; an empty patch is a patch."""
    old, new = make_state(), stepped(make_state())
    paths = [tmp_path / f"{i}.safetensors-patch" for i in range(3)]
    delta.diff(old, new, paths[0]).close()
    order = sorted(new, reverse=True)
    delta.diff({n: old[n] for n in order}, {n: new[n] for n in order}, paths[1]).close()
    assert paths[0].read_bytes() == paths[1].read_bytes()
    assert [path.name for path in tmp_path.iterdir() if path not in paths] == []
    with delta.diff(old, old, paths[2]) as empty:
        assert (empty.names, empty.base) == ([], empty.target)
        found = copied(old)
        delta.apply(found, empty, verify="whole")
        assert same(found, old)


def test_the_file_is_what_the_page_says(tmp_path):
    path = tmp_path / "p.safetensors-patch"
    old = make_state()
    delta.diff(old, layout(stepped(old)), path, labels=("before", None)).close()
    with safe_open(path, "np") as file:
        metadata = file.metadata()
        kinds = {name: file.get_tensor_meta(name) for name in file.offset_keys()}
    assert metadata.keys() == {"format", "patch_version", "base", "target", "base_label"}
    assert (metadata["format"], metadata["patch_version"]) == ("safetensors-patch", "1")
    assert kinds["v/a.weight"].dtype == "BF16"
    assert kinds["v/b.weight"].shape == [70000]
    assert "v/b.bias" not in kinds
    assert all(meta.dtype == "U8" for name, meta in kinds.items() if name.startswith("r/"))


def test_wrong_base():
    """A unit that the patch changes, or with `full` another one, or with `whole` any."""
    old = make_state()
    patch = delta.diff(old, {**stepped(old), "ids": old["ids"]})
    found = copied(old)
    bits(found["a.weight"])[0, 1] ^= 4
    error = refused(delta.WrongBaseError, ["patch in memory", "`a.weight`"], found, patch)
    assert (error.code, error.subject, error.path) == ("wrong_base", "a.weight", "patch in memory")
    found = copied(old)
    bits(found["a.weight"])[0, 0] ^= 4  # which stays
    said = ["`a.weight`", "changes nothing", "expected", "found"]
    refused(delta.WrongBaseError, said, found, patch, verify="full")
    delta.apply(found, patch)
    found = copied(old)
    found["ids"][0] = 77  # of which there is no record
    refused(delta.WrongBaseError, ["does not change"], found, patch, verify="whole")
    delta.apply(found, patch, verify="full")


@pytest.mark.parametrize("verify", VERIFY)
def test_other_tensors(verify):
    """Missing and extra tensors, other dtypes and shapes."""
    old = make_state()
    patch = delta.diff(old, layout(stepped(old)))

    def check(words, **change):
        found = {name: t for name, t in {**copied(old), **change}.items() if t is not None}
        refused(delta.WrongBaseError, words, found, patch, verify=verify)

    check(["`a.weight`", "no such tensor"], **{"a.weight": None})
    check(
        ["`a.weight`", "BF16 [300, 500]", "F16 [300, 500]"], **{"a.weight": old["a.weight"].half()}
    )
    check(
        ["`a.weight`", "[300, 500]", "[500, 300]"],
        **{"a.weight": old["a.weight"].reshape(500, 300)},
    )
    check(["`b.weight`", "no such tensor"], **{"b.weight": None})
    check(["`c`", "the base has no such tensor"], c=torch.ones(2))
    check(["`b.bias`", "is not that of the base"], **{"b.bias": torch.ones(7)})
    check(["`ids`", "is not that of the base"], ids=torch.ones(3))
    check(["mixture"], c=torch.arange(5, dtype=torch.int16))
    if verify == "whole":
        check(["too many"], extra=torch.ones(2))
        check(["missing"], none=None)


def test_types_below_a_byte():
    """F4 has pairs of elements as units."""
    old = {"q": torch.arange(70000).to(torch.uint8).view(torch.float4_e2m1fn_x2).view(700, 100)}
    new = {"q": old["q"].clone()}
    new["q"].view(torch.uint8)[3, 4] ^= 0x70
    patch = delta.diff(old, new)
    entry = patch.entry("q")
    assert (entry.dtype, entry.shape, entry.units, entry.changed) == (None, (700, 200), 70000, 1)
    indices, values = patch.changed("q")
    assert (indices.tolist(), values.dtype) == ([304], np.uint8)
    found = {"q": old["q"].clone()}
    delta.apply(found, patch, verify="full")
    assert torch.equal(found["q"].view(torch.uint8), new["q"].view(torch.uint8))
    with pytest.raises(delta.WrongBaseError, match="a type below a byte"):
        delta.apply({"q": torch.zeros(700, 200, dtype=torch.uint8)}, patch)


def chain_of(states, **options):
    labels = [str(i) for i in range(len(states))]
    return [
        delta.diff(*pair, labels=names, **options)
        for pair, names in zip(itertools.pairwise(states), itertools.pairwise(labels), strict=True)
    ]


@pytest.fixture(scope="module")
def states():
    """Five states of a model, with tensors that come, change type, and go."""
    found = [make_state()]
    for step in range(1, 5):
        found.append(stepped(found[-1], step))
    found[2]["b.bias"] = found[2]["b.bias"].double()
    found[3]["b.bias"] = found[2]["b.bias"] + 1
    del found[4]["b.bias"]
    found[1]["new"] = torch.ones(9)
    return found


@pytest.mark.parametrize("verify", VERIFY)
def test_chains(states, verify):
    patches = chain_of(states)
    found = copied(states[0])
    delta.apply(found, patches, verify=verify)
    assert same(found, states[-1])
    for begin in range(5):
        found = copied(states[begin])
        delta.apply(found, patches, already="skip", verify=verify)
        assert same(found, states[-1])


def test_broken_chains(states):
    patches = chain_of(states)
    skipped, swapped = [patches[0], patches[2]], [patches[1], patches[0]]
    for wrong in (skipped, swapped, [patches[0], patches[0]]):
        said = ["patch in memory", "its base is", "leads to"]
        refused(delta.WrongBaseError, said, copied(states[0]), wrong)
        refused(delta.WrongBaseError, said, copied(states[0]), wrong, already="skip")
    refused(delta.WrongBaseError, ["tensor `"], copied(states[0]), patches[1:])
    refused(SafetensorError, ["tensor `"], copied(states[2]), patches)
    other = make_state(5)
    refused(delta.WrongBaseError, ["neither"], other, patches, already="skip")
    with pytest.raises(ValueError, match="empty"):
        delta.apply(other, [])


def test_labels(states):
    """They are compared if both sides have one; the same labels do not help other content."""
    first = delta.diff(states[0], states[1], labels=("0", "1"))
    second = delta.diff(states[1], states[2], labels=("one", "2"))
    refused(delta.WrongBaseError, ["`one`", "`1`"], copied(states[0]), [first, second])
    other = delta.diff(states[3], states[4], labels=("1", "2"))
    refused(delta.WrongBaseError, ["`1` (xxh3"], copied(states[0]), [first, other])
    unnamed = delta.diff(states[1], states[2])
    found = copied(states[0])
    delta.apply(found, [first, unnamed])
    assert same(found, states[2])
    with pytest.raises(ValueError, match="256"):
        delta.diff(states[0], states[1], labels=("x" * 257, None))


def test_a_later_patch_that_does_not_fit_changes_nothing(states):
    """The second patch fits the first, but says something else of a tensor's base."""
    base, middle = copied(states[0]), copied(states[0])
    middle["ids"][3] = 5
    lie = copied(middle)
    lie["ids"][3] = 6
    target = copied(lie)
    target["ids"][3] = 7
    first, second = delta.diff(base, middle), delta.diff(lie, target)
    second.base = first.target
    error = refused(delta.PatchError, ["`ids`", "its base is"], copied(base), [first, second])
    assert (error.code, error.subject) == ("invalid_patch", "ids")


def test_tracker(tmp_path, states):
    """Patches follow each other; a tensor that stays is not hashed again."""
    tracker = delta.Tracker(states[0], label="0")
    patches = []
    for i, state in enumerate(states[1:], 1):
        patches.append(tracker.diff(state, tmp_path / f"{i}.safetensors-patch", label=str(i)))
    found = copied(states[0])
    delta.apply(found, patches, verify="whole")
    assert same(found, states[-1])
    with delta.diff(states[2], states[3], labels=("2", "3")) as expected:
        assert patches[2].base == expected.base
        assert patches[2].target == expected.target
    assert [patch.target_label for patch in patches] == ["1", "2", "3", "4"]
    assert tracker.label == "4"


def test_a_tracker_hashes_what_changes(monkeypatch, states):
    from safetensors._delta import diff

    tracker = delta.Tracker(states[0])
    hashed = []
    known = diff.digest_of

    def digest_of(spec, data, algorithm):
        hashed.append(spec)
        return known(spec, data, algorithm)

    monkeypatch.setattr(diff, "digest_of", digest_of)
    new = copied(states[0])
    new["ids"][0] = 9
    patch = tracker.diff(new)
    assert (patch.names, hashed) == (["ids"], [])
    assert tracker.diff(new).names == []
    assert hashed == []


def test_a_tracker_survives_errors(tmp_path, states):
    tracker = delta.Tracker(states[0], label="0")
    with pytest.raises(FileNotFoundError):
        tracker.diff(states[1], tmp_path / "none" / "p.safetensors-patch", label="1")
    patch = tracker.diff(states[1], label="1")
    assert (patch.base_label, patch.base) == ("0", delta.diff(states[0], states[0]).base)


def test_modules(states):
    """The state dict of a module changes the module, but cannot gain tensors."""
    module = torch.nn.Sequential(torch.nn.Linear(30, 30), torch.nn.Linear(30, 30))
    module[1].weight = module[0].weight  # the same memory has two names
    new = {name: tensor.clone() for name, tensor in module.state_dict().items()}
    new["0.weight"] += 1
    new["1.weight"] += 1
    patch = delta.diff(module.state_dict(), new)
    delta.apply(module.state_dict(), patch)
    assert same(module.state_dict(), new)
    more = delta.diff(new, {**new, "x": torch.ones(1)})
    with pytest.raises(ValueError, match="`x` is new, removed.*not to the state dict"):
        delta.apply(module.state_dict(), more)
    other = {**new, "1.weight": new["1.weight"] + 1}
    with pytest.raises(ValueError, match="share memory"):
        delta.apply(
            module.state_dict(),
            delta.diff(new, {**other, "0.weight": new["0.bias"] * other["0.weight"]}),
        )


def test_tensors_that_cannot_be_changed():
    old = {"a": torch.arange(12.0).reshape(3, 4)}
    patch = delta.diff(old, {"a": old["a"] + 1})
    refused(ValueError, ["`a`", "contiguous"], {"a": old["a"].t().contiguous().t()}, patch)
    array = old["a"].numpy().copy()
    array.flags.writeable = False
    with pytest.raises(ValueError, match="`a` is read-only"):
        delta.apply({"a": array}, patch)
    big = old["a"].numpy().astype(">f4")
    with pytest.raises(ValueError, match="`a` is not contiguous"):
        delta.apply({"a": big}, patch)
    with pytest.raises(TypeError, match="`a`"):
        delta.apply({"a": [1.0]}, patch)


def test_arguments(tmp_path):
    state = {"a": torch.ones(2)}
    with pytest.raises(ValueError, match="digest is 'md5'"):
        delta.diff(state, state, digest="md5")
    with pytest.raises(ValueError, match="values is 'xor'"):
        delta.diff(state, state, values="xor")
    with pytest.raises(ValueError, match="must not end with .safetensors"):
        delta.diff(state, state, tmp_path / "p.safetensors")
    patch = delta.diff(state, state)
    with pytest.raises(ValueError, match="verify is 'all'"):
        delta.apply(state, patch, verify="all")
    with pytest.raises(ValueError, match="already is 'no'"):
        delta.apply(state, patch, already="no")
    with pytest.raises(SafetensorError):
        patch.entry("b")
    save_file(state, tmp_path / "m.safetensors")
    with pytest.raises(delta.PatchError, match=r"m.safetensors: not a patch"):
        delta.open_patch(tmp_path / "m.safetensors")


def test_errors_are_classes_of_this_package():
    import pickle

    assert issubclass(delta.WrongBaseError, delta.PatchError)
    assert issubclass(delta.AlreadyAppliedError, delta.PatchError)
    assert issubclass(delta.PatchError, (SafetensorError, ValueError))
    error = pickle.loads(pickle.dumps(delta.WrongBaseError("text")))
    assert (type(error), str(error)) == (delta.WrongBaseError, "text")


def test_a_dtype_that_numpy_lacks_changes_nothing(tmp_path):
    """A new tensor that cannot be made: refused before the others are written."""
    old = {"a": np.arange(9.0), "z": np.ones(3)}
    new = {"a": np.arange(9.0) + 1, "z": np.ones(3) + 1}
    with safe_create(
        tmp_path / "new.safetensors", {**specs_of(new), "f6": ("F6_E2M3", (4,))}
    ) as writer:
        for name, array in {**new, "f6": bytes(3)}.items():
            writer.write(name, array)
    numpy.save_file(old, tmp_path / "old.safetensors")
    path = tmp_path / "p.safetensors-patch"
    delta.diff(tmp_path / "old.safetensors", tmp_path / "new.safetensors", path).close()
    tensors = {name: array.copy() for name, array in old.items()}
    with pytest.raises(ValueError, match="`f6` is F6_E2M3"):
        delta.apply(tensors, path)
    assert tensors.keys() == old.keys()
    assert all(np.array_equal(tensors[name], old[name]) for name in old)
