"""The sums of a model: `hash --write`, `hash --check`, and files of sums from anyone."""

import base64
import copy
import hashlib
import json
import os

import pytest

from safetensors import SafetensorError, _extra
from safetensors._checking import sums
from support import cli
from support.damage import flip, places_of
from support.file_builder import raw

BLOCK = 4 << 20


@pytest.fixture
def model(tmp_path):
    """A file with a tensor of three blocks, others around it, and its sums."""
    tensors = {
        "a": raw("BF16", (7,)),
        "long": raw("U8", (2 * BLOCK + 9,)),
        "none": raw("F32", (0,)),
    }
    path = cli.write(tmp_path / "m.safetensors", {**tensors, "z": raw("I8", (5,))}, {"k": "v"})
    cli.output("hash", path, "--write")
    return path


def checked(path, *words, status=1):
    """Returns the damage as (tensor, begin, end), and the problems."""
    found = cli.parsed("hash", path, "--check", *words, status=status)
    return [(each["tensor"], each["begin"], each["end"]) for each in found["damaged"]], found[
        "problems"
    ]


def test_the_file_is_what_the_page_says(model):
    """Digests, blocks, sizes and the order of keys; the same model gives the same bytes."""
    text = (model.parent / "m.sums.json").read_bytes()
    content = json.loads(text)
    packed = json.dumps(content, sort_keys=True, separators=(",", ":"))
    assert text.decode() == packed + "\n"
    data = model.read_bytes()
    places, start = places_of(model.read_bytes())
    assert content["format"] == "safetensors-sums"
    assert (content["version"], content["block_size"]) == (1, BLOCK)
    header = _extra._xxh3_128(data[:start])
    assert content["files"] == {"m.safetensors": {"size": len(data), "header": header}}
    whole = cli.output("hash", "--whole", model, "--algorithm", "xxh3-128").strip()
    assert content["whole"] == [f"xxh3-128:{whole}"]
    digests = cli.parsed("hash", model, "--algorithm", "xxh3-128")["tensors"]
    for name, (begin, end) in places.items():
        each = content["tensors"][name]
        assert each["file"] == "m.safetensors"
        assert each["digest"] == ["xxh3-128:" + digests[name]]
        assert len(base64.b64decode(each["blocks"])) == 8 * -(-(end - begin) // BLOCK)
    assert cli.output("hash", model, "--write").startswith(f"{model.parent}/m.sums.json: xxh3-128:")
    assert (model.parent / "m.sums.json").read_bytes() == text
    assert "4 tensors as in" in cli.output("hash", model, "--check")


def test_sha256_on_request(model):
    """The sums then have both digests, and either checks the model."""
    cli.output("hash", model, "--write", "--algorithm", "sha256")
    content = json.loads((model.parent / "m.sums.json").read_bytes())
    assert content["whole"][0] == "sha256:" + cli.output("hash", "--whole", model).strip()
    assert [each.partition(":")[0] for each in content["whole"]] == ["sha256", "xxh3-128"]
    data = model.read_bytes()
    start = data[: places_of(data)[1]]
    header = content["files"]["m.safetensors"]["header"]
    assert header == "sha256:" + hashlib.sha256(start).hexdigest()
    assert "(xxh3-128)" in cli.output("hash", model, "--check")
    assert "(sha256)" in cli.output("hash", model, "--check", "--algorithm", "sha256")
    flip(model, 9)
    assert "the header is damaged" in checked(model)[1][0]
    flip(model, 9)
    flip(model, model.stat().st_size - 1)
    assert checked(model, "--algorithm", "sha256") == checked(model)
    assert checked(model)[0][0][0] == "z"


def test_each_flipped_bit_is_found_where_it_is(model):
    """The right tensor and the right block, and nothing else."""
    places, start = places_of(model.read_bytes())
    for name, (begin, end) in places.items():
        damaged_at = {begin, end - 1, min(begin + BLOCK, end - 1)} if begin < end else set()
        for at in damaged_at:
            flip(model, at, at % 8)
            block = begin + (at - begin) // BLOCK * BLOCK
            assert checked(model) == ([(name, block, min(block + BLOCK, end))], [])
            flip(model, at, at % 8)
    for at in (0, 9, start - 1):  # length, header, its last byte
        flip(model, at)
        damaged, (problem,) = checked(model)
        assert not damaged
        assert "m.safetensors: the sums are of another file, or the header is damaged" in problem
        flip(model, at)
    assert checked(model, status=0) == ([], [])


def test_neighbouring_blocks_are_one_range(model):
    """Damage in adjacent blocks is one range; in others, it is several."""
    begin, end = places_of(model.read_bytes())[0]["long"]
    flip(model, begin + 1)
    flip(model, end - 1)
    wanted = [("long", begin, begin + BLOCK), ("long", begin + 2 * BLOCK, end)]
    assert checked(model) == (wanted, [])
    flip(model, begin + BLOCK)
    assert checked(model) == ([("long", begin, end)], [])
    said = cli.run("hash", model, "--check", status=1).stdout
    assert f"tensor `long` is damaged between bytes {begin:,} and {end:,} of the file" in said


def test_sums_of_another_file(model):
    """Another size is no damage; a file written anew after its sums is pointed out."""
    with open(model, "ab") as file:
        file.write(b"x")
    damaged, (problem,) = checked(model)
    assert not damaged
    assert "the sums are of another file: of" in problem
    os.truncate(model, model.stat().st_size - 1)
    flip(model, model.stat().st_size - 1)
    later = os.stat(model.parent / "m.sums.json").st_mtime + 10
    os.utime(model, (later, later))
    assert "is newer than its sums" in cli.run("hash", model, "--check", status=1).stderr


def test_models_of_several_files(tmp_path):
    """The sums are beside the index and name each file; an absent file is a problem."""
    index = cli.sharded(tmp_path / "s")
    cli.output("hash", index, "--write")
    content = json.loads((index.parent / "model.sums.json").read_bytes())
    assert sorted(content["files"]) == ["a.safetensors", "b.safetensors"]
    assert checked(index, status=0) == checked(index.parent, status=0) == ([], [])
    moved = index.parent / "model.sums.json"
    moved = moved.rename(tmp_path / "elsewhere.json")
    assert "No sums of the model" in cli.complaint("hash", index, "--check")
    assert checked(index, moved, status=0) == ([], [])
    flip(index.parent / "b.safetensors", (index.parent / "b.safetensors").stat().st_size - 1)
    assert len(checked(index, moved)[0]) == 1
    (index.parent / "b.safetensors").unlink()
    assert "b.safetensors: the file is missing" in checked(index, moved)[1][0]


def test_a_folder_without_index(tmp_path):
    """Its sums have its model's name, or are `model.sums.json`; a file added later has none."""
    cli.write(tmp_path / "one.safetensors", cli.small())
    cli.output("hash", tmp_path, "--write")
    assert checked(tmp_path, status=0) == ([], [])
    (tmp_path / "one.sums.json").rename(tmp_path / "model.sums.json")
    assert checked(tmp_path, status=0) == ([], [])
    cli.write(tmp_path / "two.safetensors", {"more": raw("U8", (3,))})
    assert "two.safetensors: the sums have no such file" in checked(tmp_path)[1][0]
    cli.output("hash", tmp_path, "--write")
    assert checked(tmp_path, status=0) == ([], [])
    cli.write(tmp_path / "three.safetensors", {"one more": raw("U8", (3,))})
    assert "three.safetensors: the sums have no such file" in checked(tmp_path)[1][0]


def test_streams_have_no_sums(tmp_path):
    """Standard input and URLs are refused."""
    for words in (["-", "--write"], ["-", "--check"], ["https://host/m.safetensors", "--write"]):
        assert "sums are of files" in cli.complaint("hash", *words, stdin=None)
    path = cli.write(tmp_path / "m.safetensors", cli.small())
    assert "not allowed with" in cli.complaint("hash", path, "--write", "--check")


def rebuilt(content):
    """Gives sums the digest of the whole that fits their tensors, as a malicious writer would."""
    digests = {
        name: each["digest"][0].partition(":")[2] for name, each in content["tensors"].items()
    }
    content["whole"] = ["xxh3-128:" + sums.whole_digest(digests, "xxh3-128")]
    return content


HOSTILE = [
    ("format", "safetensors", "`format` is not"),
    ("files", [], "`files` is not an object"),
    ("files", {"m.safetensors": 3}, 'file "m.safetensors" is not an object'),
    ("files", {"m.safetensors": {"size": 1}}, "null is not a digest"),
    ("tensors", None, "`tensors` is not an object"),
    ("tensors", {"a": 1}, 'tensor "a" is not an object'),
    ("whole", [], "there is no digest"),
    ("whole", ["md5:" + "0" * 32], "is not a digest"),
]


@pytest.mark.parametrize(("key", "value", "said"), HOSTILE)
def test_hostile_values(model, key, value, said):
    """Each is refused with one error that names the file."""
    path = model.parent / "m.sums.json"
    content = json.loads(path.read_bytes())
    content[key] = value
    path.write_text(json.dumps(content))
    with pytest.raises(SafetensorError) as raised:
        sums.read(str(path))
    assert said in str(raised.value)
    assert str(path) in str(raised.value)
    if key == "format":
        assert "Invalid sums" in cli.complaint("hash", model, "--check")


def test_hostile_tensors(model):
    """Entries of tensors, also where the digest of the whole fits them."""
    path = model.parent / "m.sums.json"
    good = json.loads(path.read_bytes())
    for key, value, said in [
        ("file", ["m.safetensors"], "its file is not in `files`"),
        ("digest", "xxh3-128:" + "0" * 32, "is not a list"),
        ("digest", ["xxh3-128:" + "0" * 32] * 2, "is not a digest, or the second one"),
        ("blocks", 3, "is not a string"),
    ]:
        bad = copy.deepcopy(good)
        bad["tensors"]["long"][key] = value
        path.write_text(json.dumps(bad))
        with pytest.raises(SafetensorError, match=said):
            sums.read(str(path))
    bad = copy.deepcopy(good)
    bad["tensors"]["long"]["blocks"] = base64.b64encode(bytes(24)).decode()
    bad["tensors"]["z"]["blocks"] = base64.b64encode(bytes(80)).decode()
    path.write_text(json.dumps(bad))
    damaged, problems = checked(model)
    assert not damaged
    assert sum("its digest and its blocks in the sums disagree" in each for each in problems) == 2
    bad = copy.deepcopy(good)
    bad["tensors"]["more"] = bad["tensors"].pop("a")
    path.write_text(json.dumps(rebuilt(bad)))
    damaged, problems = checked(model)
    assert not damaged
    assert "tensor `a` has no digest" in problems[0]
    assert "tensor `more` is not in the file" in problems[1]


@pytest.mark.parametrize(
    ("data", "said"),
    [(b"", "not JSON"), (b" " * 100_000_001, "more than 100,000,000 bytes")],
    ids=["empty", "size"],
)
def test_hostile_bytes(tmp_path, data, said):
    """What is no file of sums is refused."""
    path = tmp_path / "m.sums.json"
    path.write_bytes(data)
    with pytest.raises(SafetensorError, match=said):
        sums.read(str(path))


def test_the_hub_s_digest_of_a_file_is_kept(model):
    """`sha256` of a file is optional, and survives reading and writing."""
    path = model.parent / "m.sums.json"
    content = json.loads(path.read_bytes())
    content["files"]["m.safetensors"]["sha256"] = hashlib.sha256(model.read_bytes()).hexdigest()
    path.write_text(json.dumps(content))
    assert json.loads(sums.read(str(path)).to_bytes()) == content
