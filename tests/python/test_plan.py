"""Plans: shards, expert filters, and rules that are applied to headers."""

import fnmatch
import itertools
import json
import os
import pickle
import random

import numpy as np
import pytest

import safetensors.numpy
from safetensors import SafetensorError
from safetensors._rules import match
from safetensors.plan import SKIP, Plan, Shard, experts, resolve
from support import children
from support.range_readers import MemoryReader

NAMES = [
    "embed.weight",
    *(
        f"layers.{layer}.{name}"
        for layer in range(12)
        for name in ("q.weight", "o.weight", "norm.weight", "rotary.inv_freq")
    ),
]


@pytest.fixture
def model(tmp_path):
    """A model in two files with an index."""
    tensors = {name: np.full((4, 6), i, np.float32) for i, name in enumerate(NAMES)}
    halves = [dict(list(tensors.items())[:20]), dict(list(tensors.items())[20:])]
    weight_map = {}
    for i, half in enumerate(halves):
        safetensors.numpy.save_file(half, tmp_path / f"m{i}.safetensors")
        weight_map.update(dict.fromkeys(half, f"m{i}.safetensors"))
    index = tmp_path / "model.safetensors.index.json"
    index.write_text(json.dumps({"metadata": {}, "weight_map": weight_map}))
    return tmp_path


def taken(shard, shape):
    """Returns the elements of `arange` that the part selects."""
    values = np.arange(np.prod(shape, dtype=int)).reshape(shape)
    index = shard.part(shape)
    assert len(index) <= len(shape)
    last = index[-1]
    if isinstance(last, list):
        assert len(last) > 1
        pieces = [values[(*index[:-1], piece)] for piece in last]
        return np.concatenate(pieces, axis=len(index) - 1)
    return values[index]


def chunk(values, dim, rank, world_size):
    torch = pytest.importorskip("torch")
    chunks = torch.chunk(torch.from_numpy(values), world_size, dim)
    if rank < len(chunks):
        return chunks[rank].numpy()
    return np.take(values, [], axis=dim)


@pytest.mark.parametrize("dim", [0, 1, -1, -2])
def test_shard_is_torch_chunk(dim):
    for size, world_size in itertools.product(range(11), range(1, 6)):
        shape = (size, 3) if dim in (0, -2) else (3, size)
        values = np.arange(size * 3).reshape(shape)
        for rank in range(world_size):
            expected = chunk(values, dim, rank, world_size)
            np.testing.assert_array_equal(taken(Shard(dim, rank, world_size), shape), expected)


@pytest.mark.parametrize("blocks", [(8, 2, 2), (5, 0, 3), (7,), 1, 2, 3, [4, 4]])
@pytest.mark.parametrize("dim", [0, 1, -1])
def test_each_block_is_cut_by_itself(blocks, dim):
    sizes = [4] * blocks if isinstance(blocks, int) else blocks
    shape = [2, 2, 2]
    shape[dim] = sum(sizes)
    values = np.arange(np.prod(shape)).reshape(shape)
    for world_size in (1, 2, 3, 4):
        for rank in range(world_size):
            pieces = np.split(values, np.cumsum(sizes)[:-1], axis=dim)
            shares = [chunk(piece, dim, rank, world_size) for piece in pieces]
            expected = np.concatenate(shares, axis=dim)
            np.testing.assert_array_equal(
                taken(Shard(dim, rank, world_size, blocks), shape), expected
            )


def test_shards_of_one_rank_merge_their_blocks():
    assert Shard(0, 0, 1, blocks=(3, 4)).part((7,)) == (slice(0, 7),)
    assert Shard(1, 1, 2, blocks=2).part((5, 8)) == (slice(None), [slice(2, 4), slice(6, 8)])
    assert Shard(0, 3, 4).part((2,)) == (slice(0, 0),)


@pytest.mark.parametrize(
    ("arguments", "error", "text"),
    [
        ((0, 2, 2), ValueError, "rank 2 is not one of 2"),
        ((0, -1, 2), ValueError, "rank -1"),
        ((0, 0, 0), ValueError, "0 ranks"),
        ((0.0, 0, 1), TypeError, "dim is an int, not float"),
        ((0, True, 2), TypeError, "rank is an int, not bool"),
        ((0, 0, 1, 0), ValueError, "blocks is 0"),
        ((0, 0, 1, (2, -2)), ValueError, "negative size: -2"),
        ((0, 0, 1, (2, "3")), TypeError, "blocks is an int, not str"),
    ],
)
def test_bad_shards(arguments, error, text):
    with pytest.raises(error, match=text):
        Shard(*arguments)


@pytest.mark.parametrize(
    ("shard", "text"),
    [
        (Shard(2, 0, 2), "no axis 2"),
        (Shard(-3, 0, 2), "no axis -3"),
        (Shard(0, 0, 2, blocks=3), "not a multiple of 3"),
        (Shard(1, 0, 2, blocks=(3, 4)), "add up to 7.*has 6"),
    ],
)
def test_shards_that_do_not_fit(shard, text):
    with pytest.raises(ValueError, match=text):
        shard.part((4, 6))


def test_shards_are_values():
    shard = Shard(0, 1, 4, blocks=[2, 2])
    assert shard == Shard(0, 1, 4, blocks=(2, 2))
    assert hash(shard) == hash(pickle.loads(pickle.dumps(shard)))
    with pytest.raises(AttributeError):
        shard.rank = 2


@pytest.mark.parametrize("placement", ["linear", "round_robin"])
@pytest.mark.parametrize(("num_experts", "world_size"), [(8, 2), (8, 3), (5, 4), (2, 4), (1, 1)])
def test_each_expert_has_one_rank(placement, num_experts, world_size):
    names = [f"m.experts.{i}.up.weight" for i in range(num_experts)]
    owned = []
    for rank in range(world_size):
        is_loaded = experts(num_experts, rank, world_size, placement=placement)
        owned.append([i for i, name in enumerate(names) if is_loaded(name)])
    assert sorted(itertools.chain(*owned)) == list(range(num_experts))
    sizes = [len(each) for each in owned]
    assert sizes == sorted(sizes, reverse=True)
    assert sizes[0] - sizes[-1] <= 1
    if placement == "linear":
        assert list(itertools.chain(*owned)) == list(range(num_experts))
    else:
        assert all(i % world_size == rank for rank, each in enumerate(owned) for i in each)


def test_scales_of_other_experts():
    keeps, drops = experts(4, 0, 2), experts(4, 0, 2, scales="drop")
    for is_loaded in (keeps, drops):
        assert is_loaded("m.experts.1.up.weight")
        assert is_loaded("m.experts.1.up.weight_scale")
        assert is_loaded("m.shared_expert.up.weight")
        assert is_loaded("m.experts.gate_up_proj")
        assert not is_loaded("m.experts.2.up.weight")
    assert keeps("m.experts.2.up.weight_scale")
    assert not drops("m.experts.2.up.weight_scale")
    assert experts(4, 1, 2, pattern=r"ffn_(\d+)_")("ffn_3_up.weight")


@pytest.mark.parametrize(
    ("arguments", "options", "text"),
    [
        ((4, 2, 2), {}, "rank 2 is not one of 2"),
        ((0, 0, 2), {}, "num_experts is 0"),
        ((4, 0, 2), {"placement": "even"}, "placement is 'even'"),
        ((4, 0, 2), {"scales": "no"}, "scales is 'no'"),
        ((4, 0, 2), {"pattern": r"experts"}, "has no group"),
    ],
)
def test_bad_expert_filters(arguments, options, text):
    with pytest.raises(ValueError, match=text):
        experts(*arguments, **options)


def test_more_experts_than_said():
    with pytest.raises(ValueError, match=r"'m.experts.4.up.weight' is of expert 4.*is 4"):
        experts(4, 0, 2)("m.experts.4.up.weight")


def test_first_pattern_that_fits(model):
    plan = resolve(
        model,
        {
            "layers.3.q.weight": slice(1, 2),
            "*.q.weight": Shard(0, 1, 2),
            "layers.1?.o.weight": Shard(1, 0, 2),
            "layers.[12].norm.weight": slice(0, 1),
            "*.rotary.*": SKIP,
            "no.such.tensor": SKIP,
            "no.such.*": SKIP,
            "layers.*": None,
        },
    )
    assert plan["layers.3.q.weight"] == slice(1, 2)
    assert plan["layers.4.q.weight"] == Shard(0, 1, 2)
    assert plan["layers.11.o.weight"] == Shard(1, 0, 2)
    assert plan["layers.1.o.weight"] is None
    assert plan["layers.2.norm.weight"] == slice(0, 1)
    assert plan["layers.3.norm.weight"] is None
    assert "layers.0.rotary.inv_freq" not in plan
    assert "embed.weight" not in plan
    assert len(plan) == 36


def test_without_rules_all_is_whole(model):
    plan = resolve(model)
    assert dict(plan) == dict.fromkeys(NAMES)
    assert list(plan) == list(resolve([model / "m0.safetensors", model / "m1.safetensors"]))


def test_functions_as_rules(model):
    def rule(name, meta):
        assert meta.dtype == "F32"
        return SKIP if name.startswith("layers.1") else Shard(0, 0, meta.shape[0])

    plan = resolve(model, {"*.q.weight": rule})
    assert set(plan) == {f"layers.{i}.q.weight" for i in (0, *range(2, 10))}
    assert set(plan.values()) == {Shard(0, 0, 4)}


def test_keys_filter_before_rules(model):
    seen = []

    def rule(name, meta):
        seen.append(name)

    plan = resolve(model, {"*.q.weight": rule}, keys=lambda name: "layers.3." in name)
    assert list(plan) == seen == ["layers.3.q.weight"]
    assert list(resolve(model, keys=["embed.weight"])) == ["embed.weight"]
    assert dict(resolve(model, {"*": slice(2)}, keys=iter(["embed.weight"]))) == {
        "embed.weight": slice(2)
    }
    # A pattern may fit only tensors that the filter leaves out: they are another rank's.
    assert len(resolve(model, {"*.q.weight": None}, keys=lambda name: False)) == 0


def test_files_without_wanted_tensors_are_not_opened(model):
    (model / "m1.safetensors").unlink()
    assert list(resolve(model, {"embed.*": None})) == ["embed.weight"]
    with pytest.raises(FileNotFoundError, match="layers.11.q.weight"):
        resolve(model, {"layers.11.q.*": None})


@pytest.mark.parametrize(
    ("key", "text"),
    [
        ("layers.3.q.weigth", r"do not contain tensor 'layers.3.q.weigth'; .*`layers.3.q.weight`"),
        ("layers.*.q.weigth", r"fits the pattern 'layers.\*.q.weigth'; .*`layers.0.q.weight`"),
        ("layers.12.*", r"fits the pattern 'layers.12.\*'"),
        ("layers.[a-z].q.weight", r"fits the pattern 'layers.\[a-z\].q.weight'"),
        ("Embed.weight", "did you mean `embed.weight`"),
        ("", r"do not contain tensor ''( \(in .*\))?$"),
    ],
)
def test_typos_raise(model, key, text):
    with pytest.raises(SafetensorError, match=text):
        resolve(model, {key: None, "*": None})
    with pytest.raises(SafetensorError, match=text):
        resolve(model / "m0.safetensors", {"*": None, key: slice(0, 1)})
    if "*" not in key and "[" not in key:
        with pytest.raises(SafetensorError, match=text):
            resolve(model, keys=[key])


def test_a_rule_behind_others_is_no_typo(model):
    plan = resolve(model, {"*": None, "*.q.weight": slice(0, 1), "layers.1?.*": slice(0, 1)})
    assert set(plan.values()) == {None}
    with pytest.raises(TypeError, match="keys is a str"):
        resolve(model, keys="embed.weight")


def test_rules_by_a_slow_oracle():
    """Against trying each pattern on each name."""
    rng = random.Random(1)
    pieces = ["a", "b", "*", "?", "1", "12", "[0-4]", "[!a]", ".", "0", "[", "x.1"]
    letters = ["a", "b", "0", "1", "2", "12", ".", "x", "[", "é", "٣"]
    for round_ in range(300):
        names = {"".join(rng.choices(letters, k=rng.randint(0, 5))) for _ in range(40)}
        if round_ % 10 == 0:
            names |= {"a\nb", "\n", "1\n2"}
        rules = {"".join(rng.choices(pieces, k=rng.randint(1, 4))): i for i in range(6)}
        rules = {
            key: rule
            for key, rule in rules.items()
            if key in names or any(fnmatch.fnmatchcase(name, key) for name in names)
        }
        expected = {}
        for name in names:
            fitting = [key for key in rules if key not in names and fnmatch.fnmatchcase(name, key)]
            if name in rules:
                expected[name] = rules[name]
            elif fitting:
                expected[name] = rules[fitting[0]]
        assert match(rules, names, SKIP) == expected, (rules, names)


def test_plans_are_immutable_values(model):
    plan = resolve(model, {"*.q.weight": Shard(0, 1, 2, blocks=2), "embed.*": [slice(0, 2)]})
    copy = pickle.loads(pickle.dumps(plan))
    assert isinstance(copy, Plan)
    assert dict(copy) == dict(plan)
    assert copy["embed.weight"] == [slice(0, 2)]
    assert repr(plan) == "<Plan of 13 tensors>"
    with pytest.raises(TypeError):
        plan["embed.weight"] = None
    with pytest.raises(KeyError):
        plan["no"]
    assert dict(resolve(model, plan)) == dict(plan)
    assert pickle.loads(pickle.dumps(SKIP)) is SKIP
    assert repr(SKIP) == "SKIP"


def test_plans_need_no_framework():
    children.run(
        """
        import safetensors.plan
        for name in ("torch", "numpy", "safetensors._remote", "ssl", "asyncio"):
            assert name not in sys.modules, name
        """
    )


def test_what_a_load_reads(model):
    """Each file's parts, and the gaps between them that are cheaper to read than to skip."""
    rules = {"*.q.weight": Shard(0, 1, 2), "embed.weight": None, "layers.1?.o.weight": SKIP}
    plan = pickle.loads(pickle.dumps(resolve(model, rules)))
    found = plan.explain()
    assert [os.path.basename(each.file) for each in found] == ["m0.safetensors", "m1.safetensors"]
    assert [each.tensors for each in found] == [6, 7]
    assert [each.wanted_bytes for each in found] == [5 * 48 + 96, 7 * 48]
    assert found[0].largest == "embed.weight"
    assert len(resolve(model, {"embed.weight": None}).explain()) == 1
    with pytest.raises(ValueError, match="add up to 3"):
        resolve(model, {"embed.weight": Shard(0, 0, 1, blocks=(1, 2))}).explain()


def test_gaps_that_a_load_reads(tmp_path):
    """By default, gaps of 48 KiB are read; with gap_bytes=0 only what alignment adds."""
    tensors = {f"t{i}": np.zeros((4, 4096), np.float32) for i in range(6)}
    safetensors.numpy.save_file(tensors, tmp_path / "a.safetensors")
    plan = resolve(tmp_path, {"*": Shard(0, 1, 4)})
    (found,) = plan.explain()
    (exact,) = plan.explain(gap_bytes=0)
    assert found.wanted_bytes == exact.wanted_bytes == 6 * 16384
    assert exact.wanted_bytes <= exact.read_bytes <= exact.wanted_bytes + 6 * 2 * 4096
    assert found.read_bytes >= 6 * 16384 + 5 * 49152
    assert found.requests < exact.requests


def test_torch_is_not_needed(model):
    """Neither for plans nor for what files hold; to open a file for torch it is."""
    code = """
        sys.modules["torch"] = None
        from safetensors import safe_open, specs_of
        from safetensors.plan import resolve

        print(sum(reads.wanted_bytes for reads in resolve(sys.argv[1]).explain()))
        print(len(specs_of(sys.argv[1])))
        try:
            safe_open(sys.argv[1] + "/m0.safetensors", "pt")
        except ImportError:
            print("refused")
    """
    found = children.run(code, model).split()
    assert found == [str(len(NAMES) * 96), str(len(NAMES)), "refused"]


def test_gaps_within_a_block(tmp_path):
    """With gap_bytes=0, blocks of a local file are still read as a whole; other files are not."""
    tensors = {f"t{i:03}": np.zeros(1000, np.uint8) for i in range(100)}
    path = tmp_path / "a.safetensors"
    safetensors.numpy.save_file(tensors, path)
    keys = list(tensors)[::2]
    (local,) = resolve(path, keys=keys).explain(gap_bytes=0)
    (other,) = resolve(MemoryReader(path.read_bytes()), keys=keys).explain(gap_bytes=0)
    assert local.wanted_bytes == other.wanted_bytes == other.read_bytes == 50_000
    assert other.requests == 50
    assert local.read_bytes % 4096 == 0
    assert local.requests < other.requests
