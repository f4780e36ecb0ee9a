"""Signs and verifies files by the package `model-signing`: OpenSSF Model Signing.

Imports that package, which takes about a second: signing.py and the command line import this
module when they need it. All cryptography, and the format of signatures, are that package's.
"""

from __future__ import annotations

import functools
import hashlib
import os
import re
import tempfile
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from cryptography.exceptions import InvalidSignature
from model_signing import hashing, manifest, signing, verifying
from OpenSSL.crypto import X509StoreContextError
from sigstore.errors import VerificationError

from .._errors import failure
from .._paths import open_at_once

_MAX_NBYTES = 100_000_000
"""Of the signature of a folder, which has the digest of each file in it."""
_MAX_NBYTES_OF_FILE = 1_000_000
"""Of the signature of a file, which has one digest. Real ones take 1 to 10 KB."""
_MAX_ENTRIES = 10_000
"""Lists, objects and their entries. Real signatures have some dozens, however many files they sign:
the digests are one text in base64, which is parsed after it has been verified."""
_SHARD = re.compile(r":[0-9]+:[0-9]+$")


class Verdict(NamedTuple):
    """What a verification found. Paths are relative to the folder."""

    problem: str = ""
    """Why the signature does not hold; empty if it does."""
    added: Sequence[str] = ()
    removed: Sequence[str] = ()
    changed: Sequence[str] = ()
    files: int = 0
    """The number of signed files."""


def signer(
    *,
    key: str | None = None,
    password: Any = None,
    certificate: str | None = None,
    certificate_chain: Sequence[str] = (),
    use_ambient_credentials: bool = False,
    use_staging: bool = False,
) -> signing.Config:
    """Returns what signs: by a certificate and its key, by a key, or without a key by Sigstore.

    `password` is bytes. The package says str, and passes it to a function that takes bytes.
    """
    config = signing.Config()
    if key is None:
        configure: Callable[..., Any] = functools.partial(
            config.use_sigstore_signer,
            use_ambient_credentials=use_ambient_credentials,
            use_staging=use_staging,
        )
    elif certificate is None:
        configure = functools.partial(
            config.use_elliptic_key_signer, private_key=key, password=password
        )
    else:
        configure = functools.partial(
            config.use_certificate_signer,
            private_key=key,
            signing_certificate=certificate,
            certificate_chain=certificate_chain,
        )
    return _configured(configure, ", ".join(filter(None, (key, certificate))) or "Sigstore")


def verifier(
    *,
    key: str | None = None,
    identity: str | None = None,
    issuer: str = "",
    certificate_chain: Sequence[str] = (),
    use_staging: bool = False,
) -> verifying.Config:
    """Returns what verifies: by a public key, a Sigstore identity, or root certificates."""
    config = verifying.Config()
    if key is not None:
        configure: Callable[..., Any] = functools.partial(
            config.use_elliptic_key_verifier, public_key=key
        )
    elif identity is not None:
        configure = functools.partial(
            config.use_sigstore_verifier,
            identity=identity,
            oidc_issuer=issuer,
            use_staging=use_staging,
        )
    else:
        configure = functools.partial(
            config.use_certificate_verifier, certificate_chain=certificate_chain
        )
    return _configured(configure, key or ", ".join(certificate_chain) or "Sigstore")


def sign(
    config: signing.Config, path: str, ignored: Sequence[str] = (), allow_symlinks: bool = False
) -> bytes:
    """Returns the signature of a file, or of all files of a folder but the ignored ones."""
    options = hashing.Config().set_ignored_paths(paths=_relative(ignored, path))
    config.set_hashing_config(options.set_allow_symlinks(allow_symlinks))
    with tempfile.TemporaryDirectory() as folder:
        made = os.path.join(folder, "signature")
        try:
            config.sign(path, made)
        except (OSError, MemoryError):
            raise
        except Exception as error:
            raise failure(
                "invalid_argument", f"{path}: cannot be signed: {_text(error)}", path=path
            ) from error
        with open(made, "rb") as file:
            return file.read()


def verify(
    config: verifying.Config,
    path: str,
    signature: str,
    ignored: Sequence[str] = (),
    allow_symlinks: bool = False,
) -> Verdict:
    """Compares a file, or all files of a folder but the ignored ones, with their signature."""
    most = _MAX_NBYTES if os.path.isdir(path) else _MAX_NBYTES_OF_FILE
    os.stat(path)
    files = _Tree(path, [*ignored, signature], allow_symlinks)
    return _verify(config, path, _read(signature, most), files)


def verify_bytes(config: verifying.Config, data: bytes, path: str, signature: str) -> Verdict:
    """Compares the bytes of the file `path`, which is not read again, with its signature."""
    return _verify(config, path, _read(signature, _MAX_NBYTES_OF_FILE), _Bytes(data))


class _Differ(Exception):
    """The signature is genuine, but of other files."""

    def __init__(self, verdict: Verdict) -> None:
        self.verdict = verdict


class _Hashing(hashing.Config):  # type: ignore[misc]
    """Compares files with the signed ones. Raises _Differ if they are not the same."""

    files = -1
    """The number of files that are the same; negative before the comparison."""

    def hash(self, model_path: Any, *, files_to_hash: Any = None) -> manifest.Manifest:
        return _Present(self)

    def compare(self, signed: manifest.Manifest) -> int:
        """Returns the number of files."""
        raise NotImplementedError


class _Present(manifest.Manifest):  # type: ignore[misc]
    """The files that are there. They are hashed when the package compares them with the signed
    ones, because only then is it known which these are, and how they were hashed."""

    def __init__(self, files: _Hashing) -> None:
        self._hashing = files

    def __eq__(self, signed: Any) -> bool:
        self._hashing.files = self._hashing.compare(signed)
        return True

    __hash__ = None  # type: ignore[assignment]


class _Tree(_Hashing):
    """The files of a folder, or a file."""

    def __init__(self, path: str, ignored: Sequence[str], allow_symlinks: bool) -> None:
        super().__init__()
        self.set_ignored_paths(paths=_relative(ignored, path))
        self._path = path
        self._links = allow_symlinks

    def compare(self, signed: manifest.Manifest) -> int:
        kind = signed.serialization_type
        if kind["method"] == "shards":
            self.use_shard_serialization(
                hashing_algorithm=kind["hash_type"], shard_size=int(kind["shard_size"])
            )
        else:
            self.use_file_serialization(hashing_algorithm=kind["hash_type"])
        self.set_allow_symlinks(self._links or kind["allow_symlinks"] is True)
        wanted, present = _digests(signed), _digests(hashing.Config.hash(self, self._path))
        if wanted == present:
            return len(wanted)
        changed = (name for name in wanted.keys() & present.keys() if wanted[name] != present[name])
        raise _Differ(
            Verdict(
                "the files differ from those that were signed",
                sorted(present.keys() - wanted.keys()),
                sorted(wanted.keys() - present.keys()),
                sorted(changed),
                len(wanted),
            )
        )


class _Bytes(_Hashing):
    """The bytes of a file."""

    def __init__(self, data: bytes) -> None:
        super().__init__()
        self._sha256 = hashlib.sha256(data).hexdigest()

    def compare(self, signed: manifest.Manifest) -> int:
        if _digests(signed) != {".": [(".", "sha256", self._sha256)]}:
            raise _Differ(Verdict("the signature is of another file", files=1))
        return 1


def _digests(of: manifest.Manifest) -> dict[str, list[tuple[str, str, str]]]:
    """Returns the digests by path. A file that was hashed in shards has one for each."""
    is_shards = of.serialization_type["method"] == "shards"
    found: dict[str, list[tuple[str, str, str]]] = {}
    for each in of.resource_descriptors():
        path = _SHARD.sub("", each.identifier) if is_shards else each.identifier
        digest = (each.identifier, each.digest.algorithm, each.digest.digest_hex)
        found.setdefault(path, []).append(digest)
    return found


def _read(signature: str, most_nbytes: int) -> bytes:
    """Returns the bytes of a signature. Raises SafetensorError for one that is no real one's size.

    The package and what it uses make objects of all that a signature has, hundreds of bytes for
    each of its bytes, before they find out who made it.
    """
    os.stat(signature)
    if not os.path.isfile(signature):
        raise failure("not_regular_file", f"{signature}: not a file", path=signature)
    with open(signature, "rb", opener=open_at_once) as file:
        data = file.read(most_nbytes + 1)
    if len(data) > most_nbytes:
        raise failure(
            "damaged",
            f"{signature}: larger than any signature: more than {most_nbytes:,} bytes",
            path=signature,
        )
    entries = _count_entries(data)
    if entries > _MAX_ENTRIES:
        raise failure(
            "damaged",
            f"{signature}: it has {entries:,} brackets and commas, a signature at most "
            f"{_MAX_ENTRIES:,}",
            path=signature,
        )
    return data


def _count_entries(text: bytes) -> int:
    """Returns a number that is at least that of the values in JSON, without parsing it."""
    return sum(map(text.count, (b"[", b"{", b",")))


def _verify(config: verifying.Config, path: str, signature: bytes, files: _Hashing) -> Verdict:
    config.set_hashing_config(files)
    try:
        # What was measured is what the package reads, whoever writes to the signature meanwhile.
        with tempfile.TemporaryDirectory() as folder:
            copy = os.path.join(folder, "signature")
            with open(copy, "wb") as file:
                file.write(signature)
            config.verify(path, copy)
    except _Differ as differ:
        return differ.verdict
    except (OSError, MemoryError):
        raise
    except Exception as error:
        return Verdict(_refusal(error))
    # A package that compares in another way must not pass for one that found no difference.
    if files.files < 0:
        raise failure("invalid_argument", "this version of model-signing is not supported")
    return Verdict(files=files.files)


def _relative(paths: Sequence[str], folder: str) -> list[str]:
    """Returns the paths that are in the folder, relative to it."""
    found = (os.path.relpath(path, folder) for path in paths)
    return [path for path in found if path.split(os.sep)[0] not in (os.pardir, os.curdir)]


def _configured(configure: Callable[[], Any], what: str) -> Any:
    try:
        return configure()
    except (OSError, MemoryError):
        raise
    except AttributeError as error:  # the package expects no other kind of key
        raise failure(
            "invalid_argument", f"{what}: not a key of the curve P-256, P-384 or P-521", path=what
        ) from error
    except Exception as error:
        raise failure("invalid_argument", f"{what}: {_text(error)}", path=what) from error


def _refusal(error: Exception) -> str:
    """Returns why the package refuses a signature."""
    if isinstance(error, InvalidSignature):
        return "it was made by another key, or what it signs was changed"
    if isinstance(error, X509StoreContextError):
        return f"its certificate is not trusted: {_text(error)}"
    if type(error) is ValueError or isinstance(error, VerificationError):
        return _text(error)
    return "it is not a signature of model-signing, or is damaged"


def _text(error: Exception) -> str:
    """Returns the text of an error in one line."""
    return " ".join(str(error).split()).rstrip(".") or type(error).__name__
