"""Signatures by anyone: how large they may be, and what refusing them takes."""

import os

import pytest

from safetensors import SafetensorError
from safetensors.signing import Signed
from support import children, cli, keys, memory
from support.file_builder import raw

from safetensors._checking import model_signing  # isort: skip  # after support.keys, which skips these tests

BUNDLE = (
    '{{"mediaType":"application/vnd.dev.sigstore.bundle.v0.3+json","verificationMaterial":'
    '{{"publicKey":{{"hint":"{hint}"}},"tlogEntries":[{entries}]}},"dsseEnvelope":'
    '{{"payload":"{payload}","payloadType":"x","signatures":[{{"sig":"eA=="}}]}}}}'
)


@pytest.fixture(scope="module")
def pairs(tmp_path_factory):
    return keys.write(tmp_path_factory.mktemp("keys"))


@pytest.fixture
def model(tmp_path, pairs):
    """A signed folder with a file and its sums."""
    path = cli.write(tmp_path / "m" / "model.safetensors", {"a": raw("F32", (3,))})
    cli.output("hash", path, "--write", "--algorithm", "sha256")
    cli.output("sign", path.parent, "--key", pairs["p256"].private)
    return path


def bundle(hint="x", entries="", payload="e30="):
    return BUNDLE.format(hint=hint, entries=entries, payload=payload)


def refused(model, pairs, said):
    with pytest.raises(SafetensorError, match=said):
        Signed(key=pairs["p256"].public)._read_sums(str(model.with_suffix(".sums.json")))


def test_real_signatures_are_far_below_the_limits(model):
    for name in ("model.sig", "model.sums.sig"):
        data = (model.parent / name).read_bytes()
        assert len(data) < 10_000
        assert model_signing._count_entries(data) < 100


def test_a_signature_of_a_file_has_at_most_1_mb(model, pairs):
    signature = model.with_suffix(".sums.sig")
    good = signature.read_bytes()
    signature.write_bytes(good + b" " * (1_000_000 - len(good)))
    assert Signed(key=pairs["p256"].public)._read_sums(str(model.with_suffix(".sums.json")))
    signature.write_bytes(good + b" " * (1_000_001 - len(good)))
    refused(model, pairs, "sums.sig: larger than any signature: more than 1,000,000 bytes")
    said = cli.complaint("verify", model.with_suffix(".sums.json"), "--key", pairs["p256"].public)
    assert "more than 1,000,000 bytes" in said
    # A folder's may be larger.
    folder = model.parent / "model.sig"
    folder.write_bytes(folder.read_bytes() + b" " * 2_000_000)
    signature.write_bytes(good)
    cli.output("verify", model.parent, "--key", pairs["p256"].public)


@pytest.mark.parametrize("entry", ["{}", "[]", "0", '""', '{"a":1}'])
def test_brackets_and_commas_are_counted_before_parsing(model, pairs, entry, monkeypatch):
    monkeypatch.setattr(
        model_signing.verifying.Config, "verify", lambda *_: pytest.fail("it is parsed")
    )
    signature = model.with_suffix(".sums.sig")
    signature.write_text(bundle(entries=",".join([entry] * 10_000)))
    refused(model, pairs, "brackets and commas, a signature at most 10,000")
    folder = model.parent / "model.sig"
    folder.write_bytes(signature.read_bytes())
    said = cli.complaint("verify", model.parent, "--key", pairs["p256"].public)
    assert "brackets and commas" in said


def test_other_than_files(model, pairs):
    signature = model.with_suffix(".sums.sig")
    signature.unlink()
    signature.mkdir()
    refused(model, pairs, "sums.sig: not a file")
    signature.rmdir()
    os.mkfifo(signature)
    refused(model, pairs, "sums.sig: not a file")


def test_the_bytes_that_are_measured_are_parsed(model, pairs, monkeypatch):
    """Whatever takes the place of the signature meanwhile."""
    signature, read = model.with_suffix(".sums.sig"), model_signing._read

    def then_exchanged(path, most_nbytes):
        data = read(path, most_nbytes)
        signature.write_text("[" * 2_000_000)
        return data

    monkeypatch.setattr(model_signing, "_read", then_exchanged)
    assert Signed(key=pairs["p256"].public)._read_sums(str(model.with_suffix(".sums.json")))


MEASURED = """
from safetensors import SafetensorError
from safetensors._checking import model_signing
from support.memory import peak_growth

def verify(path):
    verifier = model_signing.verifier(key=sys.argv[1])
    try:
        assert model_signing.verify_bytes(verifier, b"", "file", path).problem
    except SafetensorError:
        pass

verify(sys.argv[3])  # imports what it needs
print(peak_growth(verify, sys.argv[2]))
"""


@pytest.mark.skipif(not memory.can_measure_peak(), reason="needs Linux's /proc/self/clear_refs")
@pytest.mark.parametrize(
    "text",
    [
        "[" * 900_000,
        bundle(entries="{}," * 290_000 + "{}"),
        bundle(entries="{}," * 4_900 + "{}"),
        bundle(entries="{}", hint="\U0001f600" + "a" * 900_000),
        bundle(payload="AAAA" * 200_000),
    ],
    ids=["nested", "objects", "few objects", "text", "payload"],
)
def test_refusing_a_signature_takes_little_memory(tmp_path, pairs, text):
    (tmp_path / "small").write_text(bundle(), encoding="utf-8")
    path = tmp_path / "large"
    path.write_text(text, encoding="utf-8")
    growth = int(
        children.run(MEASURED, str(pairs["p256"].public), str(path), str(tmp_path / "small"))
    )
    assert growth < 16 * path.stat().st_size + (32 << 20)


@pytest.mark.skipif(not memory.can_measure_peak(), reason="needs Linux's /proc/self/clear_refs")
def test_the_signature_of_a_folder_takes_little_memory(tmp_path, pairs):
    """Of 40 MB: a text in base64."""
    (tmp_path / "small").write_text(bundle(), encoding="utf-8")
    path = tmp_path / "large"
    path.write_text(bundle(hint="\U0001f600", payload="AAAA" * 10_000_000), encoding="utf-8")
    ways = 'verify_bytes(verifier, b"", "file", path)', 'verify(verifier, ".", path)'
    code = MEASURED.replace(*ways)
    growth = int(children.run(code, str(pairs["p256"].public), str(path), str(tmp_path / "small")))
    assert growth < 16 * path.stat().st_size + (32 << 20)
