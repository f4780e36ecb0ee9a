"""`sign` and `verify`: they and model-signing verify what the other signs."""

import base64
import io
import json
import os
import subprocess
import sys
import types
import warnings

import pytest

from safetensors._cli.main import main
from support import children, cli, keys
from support.file_builder import raw

import model_signing  # isort: skip  # after support.keys, which skips these tests without it


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    return keys.write(tmp_path_factory.mktemp("keys"))


@pytest.fixture
def folder(tmp_path):
    """A model with a file in a subfolder, an empty and a hidden one, and files of git."""
    top = tmp_path / "model"
    cli.write(top / "model.safetensors", {"a": raw("F32", (3,)), "b": raw("U8", (70_000,))})
    for name in ("config.json", "sub/tokens.txt", ".hidden", ".git/HEAD", ".gitignore"):
        (top / name).parent.mkdir(exist_ok=True)
        (top / name).write_text(f"text of {name}")
    (top / "empty").touch()
    return top


FILES = [".hidden", "config.json", "empty", "model.safetensors", "sub/tokens.txt"]


@pytest.fixture
def run(capsys, monkeypatch):
    """Runs a command line in this process, which has imported model-signing. A status of None is
    any."""
    monkeypatch.setattr(warnings, "showwarning", warnings.showwarning)

    def run(*words, status=0):
        capsys.readouterr()
        try:
            found = main([os.fspath(word) for word in words])
        except SystemExit as error:
            found = error.code
        done = capsys.readouterr()
        assert status in (None, found), (done.out, done.err)
        return types.SimpleNamespace(stdout=done.out, stderr=done.err)

    return run


def refused(run, *words):
    """Returns the only line of a command that fails."""
    done = run(*words, status=2)
    assert done.stdout == ""
    assert done.stderr.count("\n") == 1, done.stderr
    return done.stderr


def verdict(run, path, key, *words, status=1):
    return json.loads(run("verify", path, "--key", key, "--json", *words, status=status).stdout)


def differences(run, path, key, *words):
    found = verdict(run, path, key, *words)
    assert found["problem"] == "the files differ from those that were signed"
    return found["added"], found["removed"], found["changed"]


def theirs(*words, status=0):
    """Runs model-signing's own command line."""
    command = [sys.executable, "-m", "model_signing", *map(os.fspath, words)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == status, (done.stdout, done.stderr)
    return done.stdout + done.stderr


@pytest.mark.parametrize("curve", keys.CURVES)
def test_theirs_verifies_ours(run, folder, made, curve):
    """By their interface, with the configuration from the signature, for each curve."""
    private, public = made[curve]
    done = run("sign", folder, "--key", private)
    assert done.stdout == f"{folder}/model.sig\n"
    config = model_signing.verifying.Config().use_elliptic_key_verifier(public_key=public)
    config.verify(folder, folder / "model.sig")
    assert run("verify", folder, "--key", public).stdout == (
        f"{folder}: 5 files as signed in {folder}/model.sig\n"
    )
    (folder / "config.json").write_text("other")
    config = model_signing.verifying.Config().use_elliptic_key_verifier(public_key=public)
    with pytest.raises(ValueError, match="Hash mismatch for .*config.json"):
        config.verify(folder, folder / "model.sig")


@pytest.mark.parametrize("curve", keys.CURVES)
def test_ours_verifies_theirs(run, folder, made, curve):
    private, public = made[curve]
    config = model_signing.signing.Config().use_elliptic_key_signer(private_key=private)
    config.sign(folder, folder.parent / "elsewhere.sig")
    elsewhere = ("--signature", folder.parent / "elsewhere.sig")
    assert verdict(run, folder, public, *elsewhere, status=0)["files"] == 5
    (folder / "config.json").write_text("other")
    assert differences(run, folder, public, *elsewhere) == ([], [], ["config.json"])


@pytest.mark.slow
def test_command_lines_of_both(run, folder, made):
    """Their command line verifies ours, and ours what theirs signed."""
    private, public = made["p384"]
    signature = folder / "model.sig"
    run("sign", folder, "--key", private)
    options = ("--signature", signature, "--public_key", public)
    theirs("verify", "key", folder, *options)
    (folder / "new").touch()
    assert "new" in theirs("verify", "key", folder, *options, status=1)
    signature.unlink()
    theirs("sign", "key", folder, "--signature", signature, "--private_key", private)
    assert verdict(run, folder, public, status=0)["files"] == 6


@pytest.mark.parametrize("curve", ["p256", "p521"])
def test_certificates(run, folder, made, tmp_path, curve):
    """Both verify a certificate's signature by its root, and by no other root."""
    mine = keys.certify(tmp_path, made[curve], "mine")
    other = keys.certify(tmp_path, made["other"], "other")
    signature = folder / "model.sig"
    chain = "--certificate-chain"
    mine_by_root = ("--certificate", mine.certificate, chain, mine.root)
    run("sign", folder, "--key", mine.key, *mine_by_root)
    assert "5 files as signed" in run("verify", folder, chain, mine.root).stdout
    assert "5 files as" in run("verify", folder, chain, other.root, chain, mine.root).stdout
    done = run("verify", folder, chain, other.root, status=1)
    assert "its certificate is not trusted" in done.stdout
    config = model_signing.verifying.Config().use_certificate_verifier(
        certificate_chain=[mine.root]
    )
    config.verify(folder, signature)
    signature.unlink()
    model_signing.signing.Config().use_certificate_signer(
        private_key=mine.key, signing_certificate=mine.certificate, certificate_chain=[mine.root]
    ).sign(folder, signature)
    run("verify", folder, chain, mine.root)
    (folder / "empty").write_text("x")
    done = run("verify", folder, chain, mine.root, status=1)
    assert done.stdout.splitlines()[1:] == ["  ! empty (changed)"]
    assert "does not match" in refused(
        run, "sign", folder, "--key", made["other"].private, *mine_by_root
    )


@pytest.mark.parametrize("name", FILES)
def test_each_class_of_file(run, folder, made, name):
    """A change, a removal and an addition are told apart, wherever the file is."""
    private, public = made["p256"]
    run("sign", folder, "--key", private)
    path = folder / name
    old = path.read_bytes()
    path.write_bytes(old + b"x")
    assert differences(run, folder, public) == ([], [], [name])
    path.write_bytes(bytes([old[0] ^ 1]) + old[1:] if old else b"")
    assert differences(run, folder, public) == ([], [], [name]) if old else True
    path.unlink()
    assert differences(run, folder, public) == ([], [name], [])
    path.with_name("x" + path.name).write_bytes(old)
    added = os.path.relpath(path.with_name("x" + path.name), folder)
    assert differences(run, folder, public) == ([added], [name], [])
    path.with_name("x" + path.name).rename(path)
    assert verdict(run, folder, public, status=0)["files"] == 5


def test_what_a_signature_leaves_out(run, folder, made):
    """Files of git, the signature itself, and paths that the user names."""
    private, public = made["p256"]
    signature = folder / "sub" / "my.sig"
    words = ("--signature", signature, "--ignore-paths", folder / "config.json")
    run("sign", folder, "--key", private, *words)
    for name in (".git/HEAD", ".git/new", ".gitignore", "config.json"):
        (folder / name).write_text("changed")
    assert verdict(run, folder, public, "--signature", signature, status=0)["files"] == 4
    (folder / ".cache").mkdir()
    (folder / ".cache" / "lock").touch()
    words = ("--signature", signature)
    assert differences(run, folder, public, *words) == ([".cache/lock"], [], [])
    run("verify", folder, "--key", public, *words, "--ignore-paths", folder / ".cache")


def test_the_list_of_differences(run, folder, made):
    """One line for each file; names are escaped."""
    private, public = made["p256"]
    (folder / "sub" / "tokens.txt").unlink()
    (folder / "gone").touch()
    run("sign", folder, "--key", private)
    (folder / "gone").unlink()
    (folder / "config.json").write_text("x")
    (folder / "a\x1b[2J").touch()
    done = run("verify", folder, "--key", public, status=1)
    assert done.stdout.splitlines() == [
        f"{folder}: not as signed in {folder}/model.sig: the files differ from those that were "
        "signed",
        "  + a\\x1b[2J (added)",
        "  - gone (removed)",
        "  ! config.json (changed)",
    ]


def test_other_ways_of_hashing(run, folder, made):
    """A signature says how its files were hashed: theirs may be of shards of files."""
    private, public = made["p256"]
    config = model_signing.signing.Config().use_elliptic_key_signer(private_key=private)
    shards = model_signing.hashing.Config().use_shard_serialization(shard_size=1000)
    config.set_hashing_config(shards.set_ignored_paths(paths=["model.sig"]))
    config.sign(folder, folder / "model.sig")
    assert verdict(run, folder, public, status=0)["files"] == 4  # an empty file has no shards
    with open(folder / "model.safetensors", "r+b") as file:
        file.seek(69_000)
        file.write(b"\xff")
    assert differences(run, folder, public) == ([], [], ["model.safetensors"])
    blake = model_signing.hashing.Config().use_file_serialization(hashing_algorithm="blake3")
    config.set_hashing_config(blake.set_ignored_paths(paths=["model.sig"]))
    config.sign(folder, folder / "model.sig")
    assert verdict(run, folder, public, status=0)["files"] == 5
    (folder / "empty").write_text("x")
    assert differences(run, folder, public) == ([], [], ["empty"])


def test_single_files(run, folder, made):
    """FILE.sig is beside FILE; model-signing verifies it, too."""
    private, public = made["p256"]
    path = folder / "config.json"
    assert run("sign", path, "--key", private).stdout == f"{path}.sig\n"
    assert "1 file as signed" in run("verify", path, "--key", public).stdout
    config = model_signing.verifying.Config().use_elliptic_key_verifier(public_key=public)
    config.verify(path, f"{path}.sig")
    path.write_text("x")
    assert f"! {path} (changed)" in run("verify", path, "--key", public, status=1).stdout
    other = ("--signature", f"{path}.sig")
    assert differences(run, folder / "empty", public, *other) == ([], [], ["."])
    assert differences(run, folder, public, *other)[1] == ["."]


def test_symlinks(run, folder, made):
    """Links are refused, unless they are allowed when signing or when verifying."""
    private, public = made["p256"]
    (folder / "link").symlink_to("config.json")
    assert "is a symlink" in refused(run, "sign", folder, "--key", private)
    assert not (folder / "model.sig").exists()
    run("sign", folder, "--key", private, "--allow-symlinks")
    assert verdict(run, folder, public, status=0)["files"] == 6
    (folder / "link").unlink()
    (folder / "link").write_bytes((folder / "config.json").read_bytes())
    run("sign", folder, "--key", private)
    (folder / "link").unlink()
    (folder / "link").symlink_to("config.json")
    assert "is a symlink" in verdict(run, folder, public)["problem"]
    assert verdict(run, folder, public, "--allow-symlinks", status=0)["files"] == 6


def test_pipes(run, folder, made):
    """Reading one would wait for a writer."""
    private, public = made["p256"]
    run("sign", folder, "--key", private)
    os.mkfifo(folder / "pipe")
    assert "pipe" in verdict(run, folder, public)["problem"]
    assert "cannot be signed" in refused(run, "sign", folder, "--key", private)


def test_wrong_keys(run, folder, made):
    """Another key, and keys that cannot sign."""
    private, public = made["p256"]
    run("sign", folder, "--key", private)
    for name in ("other", "p384"):
        assert "Key mismatch" in verdict(run, folder, made[name].public)["problem"]
    good = (folder / "model.sig").read_bytes()
    bundle = json.loads(good)
    other = json.loads(signed_by(folder, made["other"].private))
    bundle["dsseEnvelope"]["signatures"] = other["dsseEnvelope"]["signatures"]
    (folder / "model.sig").write_text(json.dumps(bundle))
    assert "made by another key" in verdict(run, folder, public)["problem"]
    (folder / "model.sig").write_bytes(good)
    for name in ("secp256k1", "ed25519", "rsa"):
        words = ("--key", made[name].private)
        assert f"{name}.pem: " in refused(run, "sign", folder, *words)
        assert f"{name}.pub: " in refused(run, "verify", folder, "--key", made[name].public)
    assert "p256.pub: " in refused(run, "sign", folder, "--key", public)
    assert "No such file" in refused(run, "sign", folder, "--key", folder / "none")
    assert (folder / "model.sig").read_bytes() == good


def signed_by(folder, private):
    config = model_signing.signing.Config().use_elliptic_key_signer(private_key=private)
    config.sign(folder, folder.parent / "temporary.sig")
    return (folder.parent / "temporary.sig").read_bytes()


def payload_with(bundle, change):
    """Returns the bundle with a changed statement, whose signature is the old one."""
    envelope = bundle["dsseEnvelope"]
    statement = json.loads(base64.b64decode(envelope["payload"]))
    change(statement)
    payload = base64.b64encode(json.dumps(statement).encode()).decode()
    return {**bundle, "dsseEnvelope": {**envelope, "payload": payload}}


def test_damaged_signatures(run, folder, made):
    """Each is refused with status 1 and one sentence."""
    private, public = made["p256"]
    run("sign", folder, "--key", private)
    path = folder / "model.sig"
    good = path.read_bytes()
    bundle = json.loads(good)
    assert verdict(run, folder, public, status=0)["files"] == 5
    for bad in (b"", b"\xff", b"[]", b"{}", b"null", b"[" * 9_000, good[:-1], good[:300]):
        path.write_bytes(bad)
        problem = verdict(run, folder, public)["problem"]
        assert problem == "it is not a signature of model-signing, or is damaged", bad[:9]
    changed = [
        payload_with(bundle, lambda it: it["predicate"]["resources"][0].update(digest="0" * 64)),
        payload_with(bundle, lambda it: it["predicate"]["resources"].pop()),
        payload_with(bundle, lambda it: it["subject"][0].update(name="other")),
        payload_with(bundle, lambda it: it.update(predicateType="other")),
    ]
    for bad in changed:
        path.write_text(json.dumps(bad))
        assert "made by another key, or what it signs" in verdict(run, folder, public)["problem"]
    accepted = 0
    for at in range(0, len(good), 37):
        path.write_bytes(good[:at] + bytes([good[at] ^ 1]) + good[at + 1 :])
        out = run("verify", folder, "--key", public, status=None)
        accepted += "as signed in" in out.stdout and "not as signed" not in out.stdout
    assert accepted <= 2, "only what no verifier reads may change"


def test_a_signature_of_another_model(run, folder, made):
    private, public = made["p256"]
    run("sign", folder, "--key", private)
    other = folder.parent / "other"
    cli.write(other / "model.safetensors", {"a": raw("F32", (4,))})
    (folder / "model.sig").rename(other / "model.sig")
    added, removed, changed = differences(run, other, public)
    assert (added, changed) == ([], ["model.safetensors"])
    assert removed == [name for name in FILES if name != "model.safetensors"]


def test_sums_are_signed_first(run, folder, made):
    """Sums with SHA-256 are compared with the model, signed alone, and covered by the tree."""
    private, public = made["p256"]
    sums = folder / "model.sums.json"
    run("hash", folder, "--write")
    done = run("sign", folder, "--key", private)
    assert done.stdout == f"{folder}/model.sig\n"
    assert "not signed alone" in done.stderr
    run("hash", folder, "--write", "--algorithm", "sha256")
    done = run("sign", folder, "--key", private)
    assert done.stdout.splitlines()[1:] == [f"{folder}/model.sums.sig", f"{folder}/model.sig"]
    assert verdict(run, folder, public, status=0)["files"] == 7
    assert "1 file as signed" in run("verify", sums, "--key", public).stdout
    (folder / "model.sums.sig").write_text("x")
    assert differences(run, folder, public) == ([], [], ["model.sums.sig"])
    os.remove(folder / "model.sig")
    path = folder / "model.safetensors"
    path.write_bytes(path.read_bytes()[:-1] + b"\xff")
    done = run("sign", folder, "--key", private, status=1)
    assert "tensor `b` is damaged" in done.stdout
    assert not (folder / "model.sig").exists()
    sums.write_text("{}")
    assert "Invalid sums" in refused(run, "sign", folder, "--key", private)


def test_sums_of_files_and_indexes(run, tmp_path, made):
    """Of a single file, its own sums; a folder may have those of an index."""
    private, public = made["p256"]
    path = cli.write(tmp_path / "one.safetensors", cli.small())
    run("hash", path, "--write", "--algorithm", "sha256")
    done = run("sign", path, "--key", private)
    assert done.stdout.splitlines()[1:] == [f"{tmp_path}/one.sums.sig", f"{path}.sig"]
    run("verify", tmp_path / "one.sums.json", "--key", public)
    index = cli.sharded(tmp_path / "s")
    run("hash", index, "--write", "--algorithm", "sha256")
    assert "5 tensors as in" in run("sign", index.parent, "--key", private).stdout
    assert "name the folder" in refused(run, "sign", index, "--key", private)
    assert "name the folder" in refused(run, "verify", index, "--key", public)


def test_encrypted_keys(run, folder, made, monkeypatch):
    private, public = made["encrypted"]

    def given(text):
        monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(text)))

    assert "Password was not given" in refused(run, "sign", folder, "--key", private)
    words = ("sign", folder, "--key", private, "--password-stdin")
    given(b"wrong\n")
    assert "Incorrect password" in refused(run, *words)
    for end in (b"", b"\n", b"\r\nmore"):
        given(keys.PASSWORD.encode() + end)
        run(*words)
    run("verify", folder, "--key", public)


def test_only_signatures_are_replaced(run, folder, made):
    """Neither the key, nor a file of the model, is overwritten by --signature."""
    private, public = made["p256"]
    path = folder / "model.safetensors"
    link = folder.parent / "link"
    link.symlink_to(private)
    before = private.read_bytes(), path.read_bytes()
    for signature in (private, path, folder / "config.json", link):
        said = refused(run, "sign", folder, "--key", private, "--signature", signature)
        assert f"{signature} exists and is no signature: sign replaces only signatures" in said
    assert (private.read_bytes(), path.read_bytes()) == before
    other = ("--signature", folder.parent / "other.sig")
    (folder.parent / "other.sig").touch()  # as mktemp does
    for _ in range(2):
        run("sign", folder, "--key", private, *other)
        run("verify", folder, "--key", public, *other)


def test_bad_usage(run, folder, made):
    """Status 2, and one line."""
    private, public = made["p256"]
    chain = ("--certificate-chain", "x")
    for words, said in [
        (["sign", folder], "one of the arguments --key --sigstore is required"),
        (["sign", folder, "--key", private, "--sigstore"], "not allowed with"),
        (["sign", folder, "--sigstore", "--certificate", "x"], "--certificate goes with --key"),
        (["sign", folder, "--sigstore", "--password-stdin"], "--password-stdin goes with --key"),
        (
            ["sign", folder, "--key", private, "--certificate-chain", "x"],
            "--certificate and --certificate-chain go together",
        ),
        (
            ["sign", folder, "--key", private, *chain, "--certificate", "x", "--password-stdin"],
            "no password for the key of a certificate",
        ),
        (["sign", folder, "--key", private, "--use-staging"], "goes with --sigstore"),
        (["sign", "-", "--key", private], "takes files"),
        (["sign", "https://host/m", "--key", private], "takes files, not URLs"),
        (["sign", folder / "none", "--key", private], "No such file"),
        (["verify", folder], "is required"),
        (["verify", folder, "--identity", "x"], "go together"),
        (["verify", folder, "--key", public, "--issuer", "x"], "go together"),
        (["verify", folder, "--key", public, "--use-staging"], "goes with --identity"),
        (["verify", folder, "--key", public], "model.sig: No such file"),
        (["verify", folder, "--key", public, "--signature", folder], "not a file"),
        (["verify", folder, "--key", public, "--signature", "/dev/zero"], "not a file"),
    ]:
        assert said in refused(run, *words), words
    os.truncate(folder / "empty", 100_000_001)
    said = refused(run, "verify", folder, "--key", public, "--signature", folder / "empty")
    assert "larger than any signature" in said


def test_sigstore_arguments(run, folder, made, monkeypatch):
    """They reach model-signing. Its servers are stood in for by a key."""
    private, public = made["p256"]
    calls = []

    def use_sigstore_signer(config, **options):
        calls.append(options)
        return config.use_elliptic_key_signer(private_key=private)

    def use_sigstore_verifier(config, **options):
        calls.append(options)
        return config.use_elliptic_key_verifier(public_key=public)

    monkeypatch.setattr(model_signing.signing.Config, "use_sigstore_signer", use_sigstore_signer)
    monkeypatch.setattr(
        model_signing.verifying.Config, "use_sigstore_verifier", use_sigstore_verifier
    )
    run("sign", folder, "--sigstore")
    run("sign", folder, "--sigstore", "--use-ambient-credentials", "--use-staging")
    run("verify", folder, "--identity", "a@b", "--identity-provider", "https://c")
    run("verify", folder, "--identity", "a@b", "--issuer", "https://c", "--use-staging")
    names = ("use_ambient_credentials", "use_staging")
    identity = {"identity": "a@b", "oidc_issuer": "https://c"}
    assert calls == [
        dict.fromkeys(names, False),
        dict.fromkeys(names, True),
        {**identity, "use_staging": False},
        {**identity, "use_staging": True},
    ]


def test_a_package_that_compares_otherwise(run, folder, made, monkeypatch):
    """It must not pass for one that found no difference."""
    private, public = made["p256"]
    run("sign", folder, "--key", private)
    monkeypatch.setattr(model_signing.verifying.Config, "verify", lambda *_: None)
    said = refused(run, "verify", folder, "--key", public)
    assert "this version of model-signing is not supported" in said


def test_warnings_of_the_package_are_notes(run, folder, made):
    """Its own go to standard output, which `--json` would not survive."""
    private, public = made["p256"]
    run("sign", folder, "--key", private)
    bundle = json.loads((folder / "model.sig").read_text())
    bundle["verificationMaterial"]["publicKey"].pop("hint")
    (folder / "model.sig").write_text(json.dumps(bundle))
    done = run("verify", folder, "--key", public, "--json")
    assert json.loads(done.stdout)["files"] == 5
    assert "older verification material format" in done.stderr
    assert run("verify", folder, "--key", public, "--json", "-q").stderr == ""


def test_without_the_package(folder, made):
    """The commands name what they need; others do not import it."""
    for words in (["sign", folder, "--key", "x"], ["verify", folder, "--key", "x"]):
        said = cli.complaint(*words, without=["model_signing"])
        assert "signatures need model-signing: pip install model-signing pyOpenSSL" in said
    code = "import safetensors._cli.main\nprint('model_signing' in sys.modules)"
    assert children.run(code) == "False\n"


def test_the_whole_program(folder, made):
    """As a user runs it."""
    cli.output("sign", folder, "--key", made["p256"].private)
    assert "5 files as signed" in cli.output("verify", folder, "--key", made["p256"].public)
