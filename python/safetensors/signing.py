"""Loads only what somebody has signed.

    from safetensors.signing import Signed
    from safetensors.torch import load_files

    tensors = load_files("models/llama", verify=Signed(key="public.pem"))

Needs the packages model-signing and pyOpenSSL, which are imported on first use.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from . import _json
from ._checking import sums as _sums
from ._errors import failure
from ._paths import open_at_once

if TYPE_CHECKING:
    from ._typing import Path

__all__ = ["Signed"]


class Signed:
    """The sums of a model, whose signature is verified before they are used: a value of `verify`.

    A load verifies the signature of the sums first, and then all that it reads by their SHA-256.
    `safetensors sign`, and model-signing, make such signatures.

    Args:
        signature: the signature of the sums. By default, STEM.sums.sig beside STEM.sums.json.
        key: the public key of the signer, in PEM.
        identity: the identity that signed with Sigstore. Goes with `issuer`.
        issuer: the URL of who vouches for the identity.
        certificate_chain: one or more files with the root certificates that you trust, in PEM.

    Raises:
        TypeError: there is not exactly one of `key`, `identity` and `certificate_chain`, or one of
            `identity` and `issuer` is missing.
    """

    algorithm = "sha256"

    def __init__(
        self,
        signature: Path | None = None,
        *,
        key: Path | None = None,
        identity: str | None = None,
        issuer: str | None = None,
        certificate_chain: Path | Sequence[Path] = (),
    ) -> None:
        if isinstance(certificate_chain, (str, bytes, os.PathLike)):
            certificate_chain = [certificate_chain]
        self._signature = None if signature is None else os.fsdecode(signature)
        self._key = None if key is None else os.fsdecode(key)
        self._identity, self._issuer = identity, issuer
        self._chain = tuple(map(os.fsdecode, certificate_chain))
        if (self._key is not None) + (identity is not None) + bool(self._chain) != 1:
            raise TypeError("Signed takes one of key, identity and certificate_chain")
        if (identity is None) != (issuer is None):
            raise TypeError("identity and issuer go together")

    def __repr__(self) -> str:
        by = self._key or self._identity or ", ".join(self._chain)
        return f"<Signed by {by!r}>"

    def _read_sums(self, path: str) -> _sums.Sums:
        """Returns the sums in a file, with their SHA-256 only, if its signature holds.

        The file is read once: the bytes that are verified are those that are parsed.
        """
        package = _package()
        verifier = package.verifier(
            key=self._key,
            identity=self._identity,
            issuer=self._issuer or "",
            certificate_chain=self._chain,
        )
        if not os.path.isfile(path):
            raise _sums.absent(path)
        with open(path, "rb", opener=open_at_once) as file:
            data = file.read(_json.MAX_NBYTES + 1)
        signature = self._signature or _signature_of(path)
        problem = package.verify_bytes(verifier, data, path, signature).problem
        if problem:
            raise failure(
                "damaged", f"{path} is not as signed in {signature}: {problem}", path=path
            )
        return _only_sha256(_sums.parse(data, path), path)


def _only_sha256(sums: _sums.Sums, path: str) -> _sums.Sums:
    """Returns the sums without XXH3, which does not resist an attacker."""
    sha256 = _sums.SHA256
    for where, digests in (
        *((f"the header of `{name}`", file.header) for name, file in sums.files.items()),
        *((f"tensor `{name}`", tensor.digests) for name, tensor in sums.tensors.items()),
    ):
        if sha256 not in digests:
            raise failure(
                "invalid_argument",
                f"{path} has no SHA-256 of {where}: hash --write --algorithm sha256 writes it",
                path=path,
            )
    files = {
        name: file._replace(header={sha256: file.header[sha256]})
        for name, file in sums.files.items()
    }
    tensors = {
        name: tensor._replace(digests={sha256: tensor.digests[sha256]}, blocks=None)
        for name, tensor in sums.tensors.items()
    }
    return sums._replace(files=files, tensors=tensors)


def _signature_of(path: str) -> str:
    """Returns where the signature of a file is by default."""
    return path.removesuffix(".json") + ".sig" if path.endswith(_sums.SUFFIX) else path + ".sig"


def _package() -> Any:
    """Imports the module that needs the package."""
    try:
        from ._checking import model_signing
    except ImportError as error:
        raise ImportError(
            f"signatures need model-signing: pip install model-signing pyOpenSSL ({error})"
        ) from error
    return model_signing
