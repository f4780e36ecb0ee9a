"""safe_open(verify=): what is compared, and what is said about damage. No framework but NumPy."""

import json
import pickle

import numpy as np
import pytest

from safetensors import IntegrityError, SafetensorError, safe_open
from safetensors._checking import sums as _sums
from safetensors.numpy import load_file, save_file
from support import cli
from support.damage import BLOCK, flip, places_of
from support.range_readers import MemoryReader
from support.threads import together

RANDOM = np.random.default_rng(5)
ARRAYS = {
    "a.bias": RANDOM.standard_normal(7, dtype="<f4"),
    "long": RANDOM.integers(0, 255, (3 * 1024, 4100), dtype="u1"),  # of 4 blocks
    "none": np.zeros((0, 3), "<f8"),
    "scalar": np.array(3, "<i2"),
    "z": RANDOM.integers(0, 9, (1024, 1024), dtype="<i4"),  # of 1 block
}


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    """The bytes of a file and of its sums."""
    path = tmp_path_factory.mktemp("made") / "m.safetensors"
    save_file(ARRAYS, path, {"k": "v"})
    cli.output("hash", path, "--write", "--algorithm", "sha256")
    return path.read_bytes(), (path.parent / "m.sums.json").read_bytes()


@pytest.fixture
def model(made, tmp_path):
    """A file and its sums."""
    path = tmp_path / "m.safetensors"
    path.write_bytes(made[0])
    (tmp_path / "m.sums.json").write_bytes(made[1])
    return path


def same(found, wanted=ARRAYS):
    assert set(found) == set(wanted)
    for name, array in wanted.items():
        np.testing.assert_array_equal(found[name], array)


def whole_digests(path):
    sums = _sums.read(str(path.with_suffix(".sums.json")))
    return {name: f"xxh3-128:{each.digests['xxh3-128']}" for name, each in sums.tensors.items()}


@pytest.mark.parametrize("backend", ["mmap", "auto", "pread", "direct"])
@pytest.mark.parametrize("verify", [True, "xxh3-128", "sha256", "path", "sums", "dict"])
def test_a_good_file_is_read_as_ever(model, verify, backend):
    sums = model.with_suffix(".sums.json")
    verify = {
        "path": sums,
        "sums": _sums.read(str(sums)),
        "dict": whole_digests(model),
    }.get(verify, verify)
    same(load_file(model, backend=backend, verify=verify))
    with safe_open(model, "np", backend=backend, verify=verify) as file:
        assert file.metadata() == {"k": "v"}
        same(dict(file.items()))
        long = file.get_slice("long")
        for index in (np.s_[5:9], np.s_[:, 7:9], np.s_[::500, 1], np.s_[1500:, -3:]):
            np.testing.assert_array_equal(long[index], ARRAYS["long"][index])
        np.testing.assert_array_equal(
            long[[slice(0, 2), slice(3000, 3001)]],
            np.concatenate([ARRAYS["long"][0:2], ARRAYS["long"][3000:3001]]),
        )


@pytest.mark.parametrize("verify", [True, "sha256"])
def test_each_damaged_block_is_found_and_nothing_else_is(model, made, verify):
    places, _ = places_of(made[0])
    for name, (begin, end) in places.items():
        for first in range(begin, end, BLOCK):
            last = min(first + BLOCK, end)
            at = first + (last - first) // 2
            flip(model, at)
            wanted = (first, last) if verify is True else (begin, end)
            with pytest.raises(IntegrityError) as caught:
                load_file(model, verify=verify)
            (damage,) = caught.value.damaged
            assert caught.value.count == 1
            assert damage[:4] == (name, str(model), *wanted)
            assert damage.expected != damage.found
            assert f"tensor `{name}` is damaged between bytes {wanted[0]:,} and" in str(
                caught.value
            )
            assert (caught.value.subject, caught.value.path) == (name, str(model))
            assert caught.value.code == "damaged"
            with safe_open(model, "np", verify=verify) as file:
                for other in set(ARRAYS) - {name}:
                    np.testing.assert_array_equal(file.get_tensor(other), ARRAYS[other])
                for _ in range(2):
                    with pytest.raises(IntegrityError, match=f"`{name}`"):
                        file.get_tensor(name)
            flip(model, at)
    same(load_file(model, verify=verify))


def test_all_damage_is_named_once(model, made):
    places, _ = places_of(made[0])
    long = places["long"][0]
    for at in (places["a.bias"][0], long, long + BLOCK, long + 3 * BLOCK, places["z"][1] - 1):
        flip(model, at)
    with pytest.raises(IntegrityError, match="3 other ranges") as caught:
        load_file(model, verify=True)
    found = [(each.tensor, each.begin, each.end) for each in caught.value.damaged]
    assert sorted(found) == sorted(
        [
            ("a.bias", *places["a.bias"]),
            ("long", long, long + 2 * BLOCK),
            ("long", long + 3 * BLOCK, places["long"][1]),
            ("z", *places["z"]),
        ]
    )
    copy = pickle.loads(pickle.dumps(caught.value))
    assert type(copy) is IntegrityError
    assert isinstance(copy, (SafetensorError, ValueError))
    assert copy.damaged == caught.value.damaged
    assert (str(copy), copy.count, copy.code) == (str(caught.value), 4, "damaged")


def test_at_most_20_ranges_are_listed(tmp_path):
    path = tmp_path / "m.safetensors"
    save_file({f"t{i}": np.full(9, i, "u1") for i in range(30)}, path)
    cli.output("hash", path, "--write")
    for begin, _ in places_of(path.read_bytes())[0].values():
        flip(path, begin)
    with pytest.raises(IntegrityError) as caught:
        load_file(path, verify=True)
    assert len(caught.value.damaged) == 20
    assert caught.value.count == 30


def test_other_files_are_told_from_damage(model):
    flip(model, 20)
    with pytest.raises(IntegrityError, match="another file, or its header is damaged") as caught:
        safe_open(model, "np", verify=True)
    assert (caught.value.damaged, caught.value.count) == ([], 0)
    with open(model, "ab") as file:
        file.write(b"\0")
    with pytest.raises(IntegrityError, match=r"of another file: of [\d,]+ bytes, this one has"):
        safe_open(model, "np", verify=True)


def test_each_byte_of_the_sums(tmp_path):
    """Damaged sums are an error, or change nothing that is compared. They accuse no tensor."""
    path = tmp_path / "m.safetensors"
    save_file({"a": ARRAYS["a.bias"], "none": ARRAYS["none"]}, path)
    cli.output("hash", path, "--write", "--algorithm", "sha256")
    sums = tmp_path / "m.sums.json"
    good = sums.read_bytes()
    refused, accused = 0, []
    for at in range(len(good)):
        flip(sums, at, at % 7)
        try:
            load_file(path, verify=True)
        except SafetensorError as error:
            refused += 1
            accused += getattr(error, "damaged", [])
        sums.write_bytes(good)
    assert accused == []
    assert refused > len(good) * 0.6


def test_missing_sums_and_digests_are_errors(model, tmp_path):
    sums = model.with_suffix(".sums.json")
    content = json.loads(sums.read_bytes())
    other = tmp_path / "other" / "x.safetensors"
    other.parent.mkdir()
    save_file(ARRAYS, other)
    with pytest.raises(FileNotFoundError, match="No sums of the model: .*x.sums.json") as caught:
        load_file(other, verify=True)
    assert isinstance(caught.value, SafetensorError)
    with pytest.raises(FileNotFoundError):
        load_file(model, verify=tmp_path / "none.json")
    none = tmp_path / "none.safetensors"
    with pytest.raises(FileNotFoundError, match="No such file or directory: .*none.safetensors"):
        load_file(none, verify=True)
    save_file(ARRAYS, tmp_path / "model.safetensors")
    cli.output("hash", tmp_path / "model.safetensors", "--write")
    with pytest.raises(SafetensorError, match="has no digest by sha256"):
        load_file(tmp_path / "model.safetensors", verify="sha256")
    for bad in (3, 1.5, object(), [sums]):
        with pytest.raises(TypeError, match="verify is True"):
            load_file(model, verify=bad)
    with pytest.raises(SafetensorError, match="not a digest"):
        load_file(model, verify={"z": "md5:00"})
    assert content["files"]


def test_a_dict_compares_what_it_names(model, made):
    digests = whole_digests(model)
    places, _ = places_of(made[0])
    flip(model, places["z"][0])
    found = load_file(model, verify={name: digests[name] for name in digests if name != "z"})
    assert found["z"][0, 0] != ARRAYS["z"][0, 0]
    with pytest.raises(IntegrityError) as caught:
        load_file(model, verify={"z": digests["z"], "elsewhere": digests["z"]})
    assert caught.value.damaged[0][:4] == ("z", str(model), *places["z"])
    with pytest.raises(IntegrityError, match="`none`"):
        load_file(model, verify={"none": digests["z"]})


def test_signed_sums_are_used_by_their_algorithm(model, made):
    class Signed:
        algorithm = "sha256"

        def _read_sums(self, path):
            assert path == str(model.with_suffix(".sums.json"))
            return _sums.read(path)

    same(load_file(model, verify=Signed()))
    flip(model, places_of(made[0])[0]["long"][0])
    with pytest.raises(IntegrityError) as caught:
        load_file(model, verify=Signed())
    assert caught.value.damaged[0].expected.startswith("sha256:")


@pytest.mark.parametrize("verify", ["sums", "sha256"])
def test_readers_of_ranges(model, made, verify):
    """Each byte is requested once; sums are given by their path."""
    sums = _sums.read(str(model.with_suffix(".sums.json")))
    if verify == "sha256":
        sums = sums._replace(
            tensors={
                name: each._replace(digests={"sha256": each.digests["sha256"]}, blocks=None)
                for name, each in sums.tensors.items()
            }
        )
    with pytest.raises(ValueError, match="beside local files only"):
        safe_open(MemoryReader(made[0]), "np", verify=True)
    reader = MemoryReader(made[0])
    with safe_open(reader, "np", verify=sums) as file:
        same(file.get_tensors())
    times = np.zeros(len(made[0]), "i4")
    for offset, nbytes in reader.reads:
        times[offset : offset + nbytes] += 1
    assert times.max() == 1
    with safe_open(MemoryReader(made[0]), "np", verify=sums) as file:
        np.testing.assert_array_equal(
            file.get_slice("long")[1500:1510, 9], ARRAYS["long"][1500:1510, 9]
        )
    damaged = bytearray(made[0])
    begin, end = places_of(made[0])[0]["z"]
    damaged[begin + 77] ^= 4
    with safe_open(MemoryReader(bytes(damaged)), "np", verify=sums) as file:
        np.testing.assert_array_equal(file["long"], ARRAYS["long"])
        with pytest.raises(IntegrityError) as caught:
            file.get_tensors()
        assert caught.value.damaged[0][:4] == ("z", "memory://model", begin, end)


def test_two_threads_on_one_handle(model, made):
    """Both get good values or the error, whoever compares a block first."""
    begin, _ = places_of(made[0])[0]["long"]
    flip(model, begin + 3 * BLOCK)
    with safe_open(model, "np", verify=True) as file:

        def work(_):
            for row in range(0, 3000, 50):
                rows = file.get_slice("long")[row : row + 2]
                assert (rows == ARRAYS["long"][row : row + 2]).all()
            with pytest.raises(IntegrityError):
                file.get_slice("long")[3 * BLOCK // 4100 + 1]

        together(work, range(2))
    with safe_open(model, "np", verify={"z": whole_digests(model)["z"]}) as file:
        for found in together(lambda _: file["z"], range(2)):
            np.testing.assert_array_equal(found, ARRAYS["z"])
