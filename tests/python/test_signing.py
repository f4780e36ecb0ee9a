"""`Signed`: sums whose signature is verified before they are parsed."""

import hashlib
import json
import os
import pickle

import pytest

from safetensors import IntegrityError, SafetensorError, safe_open
from safetensors._checking import sums as _sums
from safetensors.signing import Signed
from support import children, cli, keys, pages
from support.file_builder import raw

import model_signing  # isort: skip  # after support.keys, which skips these tests without it


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    return keys.write(tmp_path_factory.mktemp("keys"))


@pytest.fixture(scope="module")
def written(tmp_path_factory):
    """A file and its sums with SHA-256."""
    top = tmp_path_factory.mktemp("written")
    path = cli.write(top / "m.safetensors", {"a": raw("F32", (3,)), "b": raw("U8", (5_000_000,))})
    cli.output("hash", path, "--write", "--algorithm", "sha256")
    return path


@pytest.fixture
def sums(written, made, tmp_path):
    """The sums, signed by P-256 in model-signing's own way."""
    path = tmp_path / "m.sums.json"
    path.write_bytes((written.parent / "m.sums.json").read_bytes())
    sign(path, made["p256"].private)
    return path


def sign(path, private):
    config = model_signing.signing.Config().use_elliptic_key_signer(private_key=private)
    config.sign(path, path.with_name("m.sums.sig"))


def test_reads_signed_sums(sums, made, written):
    """Their SHA-256, and nothing that an attacker could have chosen."""
    found = Signed(key=made["p256"].public)._read_sums(str(sums))
    whole = _sums.read(str(sums))
    assert found.tensors.keys() == whole.tensors.keys() == {"a", "b"}
    for name, each in found.tensors.items():
        assert each.digests == {"sha256": whole.tensors[name].digests["sha256"]}
        assert each.blocks is None
    data = written.read_bytes()
    start = 8 + int.from_bytes(data[:8], "little")
    header = {"sha256": hashlib.sha256(data[:start]).hexdigest()}
    assert found.files["m.safetensors"].header == header
    assert found.whole() == {"sha256": whole.whole()["sha256"]}
    assert Signed.algorithm == "sha256"


def test_arguments(sums, made):
    """Paths of all kinds; exactly one way to verify."""
    public, elsewhere = made["p256"].public, sums.with_name("x")
    sums.with_name("m.sums.sig").rename(elsewhere)
    for signed in (
        Signed(elsewhere, key=str(public)),
        Signed(os.fsencode(elsewhere), key=os.fsencode(public)),
        pickle.loads(pickle.dumps(Signed(str(elsewhere), key=public))),
    ):
        assert len(signed._read_sums(str(sums)).tensors) == 2
    assert repr(Signed(key="k")) == "<Signed by 'k'>"
    for wrong in (
        {},
        {"key": "k", "identity": "i", "issuer": "u"},
        {"key": "k", "certificate_chain": ["c"]},
        {"identity": "i"},
        {"key": "k", "issuer": "u"},
        {"certificate_chain": []},
    ):
        with pytest.raises(TypeError, match="takes one of|go together"):
            Signed("s", **wrong)


def test_certificates(sums, made, tmp_path):
    mine = keys.certify(tmp_path, made["p384"], "mine")
    other = keys.certify(tmp_path, made["p521"], "other")
    model_signing.signing.Config().use_certificate_signer(
        private_key=mine.key, signing_certificate=mine.certificate, certificate_chain=[mine.root]
    ).sign(sums, sums.with_name("m.sums.sig"))
    for chain in (mine.root, [other.root, mine.root]):
        assert Signed(certificate_chain=chain)._read_sums(str(sums)).tensors
    with pytest.raises(SafetensorError, match="its certificate is not trusted"):
        Signed(certificate_chain=[other.root])._read_sums(str(sums))


def test_identities(sums, made, monkeypatch):
    """They reach model-signing. Its servers are stood in for by a key."""
    calls = []

    def use_sigstore_verifier(config, **options):
        calls.append(options)
        return config.use_elliptic_key_verifier(public_key=made["p256"].public)

    monkeypatch.setattr(
        model_signing.verifying.Config, "use_sigstore_verifier", use_sigstore_verifier
    )
    assert Signed(identity="a@b", issuer="https://c")._read_sums(str(sums)).tensors
    assert calls == [{"identity": "a@b", "oidc_issuer": "https://c", "use_staging": False}]


def refused(sums, made, said, key="p256"):
    with pytest.raises(SafetensorError) as raised:
        Signed(key=made[key].public)._read_sums(str(sums))
    text = str(raised.value)
    assert said in text
    assert str(sums) in text
    assert "\n" not in text


def test_refusals(sums, made):
    """One sentence that names both files and the reason."""
    signature = sums.with_name("m.sums.sig")
    refused(sums, made, f"m.sums.json is not as signed in {signature}: Key mismatch", "other")
    good = sums.read_bytes()
    sums.write_bytes(good[:-1])
    refused(sums, made, "the signature is of another file")
    sums.write_bytes(good)
    bundle = signature.read_bytes()
    signature.write_bytes(bundle[:-1])
    refused(sums, made, "it is not a signature of model-signing, or is damaged")
    with pytest.raises(FileNotFoundError, match="No sums of the model"):
        Signed(key=made["p256"].public)._read_sums(str(sums) + "x")
    signature.unlink()
    with pytest.raises(FileNotFoundError, match="m.sums.sig"):
        Signed(key=made["p256"].public)._read_sums(str(sums))
    with pytest.raises(FileNotFoundError, match="none"):
        Signed(key="none")._read_sums(str(sums))
    with pytest.raises(SafetensorError, match="m.sums.json: "):
        Signed(key=sums)._read_sums(str(sums))


def test_a_signature_of_a_folder_or_shards(sums, made):
    """A genuine signature of anything but these bytes as one file is refused."""
    private = made["p256"].private
    signature = sums.with_name("m.sums.sig")
    signature.unlink()
    config = model_signing.signing.Config().use_elliptic_key_signer(private_key=private)
    config.sign(sums.parent, signature)
    refused(sums, made, "the signature is of another file")
    shards = model_signing.hashing.Config().use_shard_serialization(shard_size=100)
    config.set_hashing_config(shards).sign(sums, signature)
    refused(sums, made, "the signature is of another file")
    blake = model_signing.hashing.Config().use_file_serialization(hashing_algorithm="blake3")
    config.set_hashing_config(blake).sign(sums, signature)
    refused(sums, made, "the signature is of another file")


def test_sums_swapped_between_check_and_parse(sums, made, monkeypatch):
    """The bytes that are verified are parsed, whatever the file holds by then."""
    good = sums.read_bytes()
    evil = good.replace(b"sha256:", b"sha256:0")
    parse = _sums.parse

    def swap_and_parse(data, label):
        sums.write_bytes(evil)
        assert data == good
        return parse(data, label)

    monkeypatch.setattr(_sums, "parse", swap_and_parse)
    assert Signed(key=made["p256"].public)._read_sums(str(sums)).tensors
    assert sums.read_bytes() == evil
    # And the other way round: what is read first must be what was signed.
    refused(sums, made, "the signature is of another file")


@pytest.mark.parametrize("part", ["files", "tensors"])
def test_only_sha256_counts(sums, made, part):
    """Signed sums may lack the SHA-256 of a header or a tensor: this is said."""
    content = json.loads(sums.read_bytes())
    if part == "files":
        content["files"]["m.safetensors"]["header"] = "xxh3-128:" + "0" * 32
        said = "has no SHA-256 of the header of `m.safetensors`"
    else:
        digests = content["tensors"]["a"]["digest"]
        content["tensors"]["a"]["digest"] = [each for each in digests if each[0] == "x"]
        content["whole"] = [each for each in content["whole"] if each[0] == "x"]
        said = "has no SHA-256 of tensor `a`"
    sums.write_text(json.dumps(content))
    sign(sums, made["p256"].private)
    refused(sums, made, said)


def test_signed_but_invalid_sums(sums, made):
    """A signature makes no text valid."""
    sums.write_text("{}")
    sign(sums, made["p256"].private)
    refused(sums, made, "Invalid sums")


def test_the_package_is_imported_on_use(sums, made):
    """Neither the module nor the class imports it; without it, the error says what to install."""
    code = """
        import safetensors, safetensors.signing
        signed = safetensors.signing.Signed(key=sys.argv[1])
        assert not {"model_signing", "cryptography", "sigstore"} & set(sys.modules)
        sys.modules["model_signing"] = None
        try:
            signed._read_sums(sys.argv[2])
        except ImportError as error:
            print(error)
    """
    said = children.run(code, str(made["p256"].public), str(sums))
    assert said.startswith("signatures need model-signing: pip install model-signing pyOpenSSL")


def test_the_program_of_the_page(made, tmp_path, monkeypatch):
    """The Python program in docs/verify.md, on a model that the page's commands made."""
    torch = pytest.importorskip("torch")
    from safetensors.torch import load_files

    page = pages.Page("docs/verify.md")
    program = page.program("Signed")
    folder = tmp_path / "model"
    cli.write(folder / "model.safetensors", {"a": raw("F32", (3,)), "b": raw("U8", (5_000_000,))})
    cli.output("hash", folder, "--write", "--algorithm", "sha256")
    cli.output("sign", folder, "--key", made["p256"].private)
    (tmp_path / "public.pem").write_bytes(made["p256"].public.read_bytes())
    monkeypatch.chdir(tmp_path)
    assert torch.equal(page.run(program)["tensors"]["a"], load_files(folder)["a"])
    data = (folder / "model.safetensors").read_bytes()
    (folder / "model.safetensors").write_bytes(data[:-1] + bytes([data[-1] ^ 1]))
    with pytest.raises(SafetensorError, match="`b`"):
        page.run(program)
    cli.output("hash", folder, "--write", "--algorithm", "sha256")
    with pytest.raises(SafetensorError, match="the signature is of another file"):
        page.run(program)


def test_loads_of_shards(made, tmp_path):
    """All functions that load take it; the sums of a sharded model are read once for a load."""
    torch = pytest.importorskip("torch")
    from safetensors.torch import load_file, load_files, load_into, stream_files

    index = cli.sharded(tmp_path / "s")
    cli.output("hash", index, "--write", "--algorithm", "sha256")
    cli.output("sign", index.parent, "--key", made["p521"].private)
    signed, plain = Signed(key=made["p521"].public), load_files(index)
    shard = index.parent / "b.safetensors"

    def into(path, verify):
        made = {name: torch.zeros_like(tensor) for name, tensor in plain.items()}
        load_into(made, path, verify=verify)
        return made

    def opened(path, verify):
        with safe_open(path, "pt", verify=verify) as file:
            return {name: file.get_slice(name)[:] for name in file}

    def streamed(path, verify):
        return dict(stream_files(path, verify=verify))

    for load, path in (
        (load_files, index),
        (into, index),
        (streamed, index.parent),
        (load_file, shard),
        (opened, shard),
    ):
        loaded = load(path, verify=signed)
        assert loaded
        for name, tensor in loaded.items():
            assert torch.equal(tensor, plain[name]), name
    data = shard.read_bytes()
    for at in (9, len(data) - 1):  # the header, and a value
        shard.write_bytes(data[:at] + bytes([data[at] ^ 1]) + data[at + 1 :])
        for load, path in ((load_files, index), (into, index), (streamed, index), (opened, shard)):
            with pytest.raises(IntegrityError, match="b.safetensors"):
                load(path, verify=signed)
    shard.write_bytes(data)
    with pytest.raises(SafetensorError, match="Key mismatch"):
        load_files(index, verify=Signed(key=made["p256"].public))


def test_signed_shards_are_read_once(made, tmp_path, monkeypatch):
    pytest.importorskip("torch")
    from safetensors.torch import load_files

    index = cli.sharded(tmp_path / "s")
    cli.output("hash", index, "--write", "--algorithm", "sha256")
    cli.output("sign", index.parent, "--key", made["p521"].private)
    calls, read = [], Signed._read_sums
    monkeypatch.setattr(
        Signed, "_read_sums", lambda self, path: calls.append(path) or read(self, path)
    )
    load_files(index, verify=Signed(key=made["p521"].public))
    assert calls == [str(index.parent / "model.sums.json")]
