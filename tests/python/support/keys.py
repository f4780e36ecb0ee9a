"""Keys and certificates for tests of signatures, made anew in each run."""

import datetime
import pathlib
from typing import NamedTuple

import pytest

pytest.importorskip("model_signing", reason="model-signing is not installed: nothing is signed")

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec, ed25519, rsa
from cryptography.x509.oid import NameOID

PASSWORD = "a \u00fc"
CURVES = {"p256": ec.SECP256R1(), "p384": ec.SECP384R1(), "p521": ec.SECP521R1()}


class Pair(NamedTuple):
    """The paths of a private and its public key."""

    private: pathlib.Path
    public: pathlib.Path


def write(folder: pathlib.Path) -> "dict[str, Pair]":
    """Writes keys of all kinds to a folder. `encrypted` has PASSWORD; `other` is one more P-256."""
    keys = {name: ec.generate_private_key(curve) for name, curve in CURVES.items()}
    keys["other"] = ec.generate_private_key(ec.SECP256R1())
    keys["encrypted"] = keys["p256"]
    keys["secp256k1"] = ec.generate_private_key(ec.SECP256K1())
    keys["ed25519"] = ed25519.Ed25519PrivateKey.generate()
    keys["rsa"] = rsa.generate_private_key(65537, 2048)
    return {name: _write(folder, name, key) for name, key in keys.items()}


def _write(folder: pathlib.Path, name: str, key: "ec.EllipticCurvePrivateKey") -> Pair:
    pair = Pair(folder / f"{name}.pem", folder / f"{name}.pub")
    encryption = serialization.NoEncryption()
    if name == "encrypted":
        encryption = serialization.BestAvailableEncryption(PASSWORD.encode())
    pem = serialization.Encoding.PEM
    pair.private.write_bytes(key.private_bytes(pem, serialization.PrivateFormat.PKCS8, encryption))
    public = serialization.PublicFormat.SubjectPublicKeyInfo
    pair.public.write_bytes(key.public_key().public_bytes(pem, public))
    return pair


class Certificates(NamedTuple):
    """The paths of a root, a certificate by it, and the key of that."""

    root: pathlib.Path
    certificate: pathlib.Path
    key: pathlib.Path


def certify(folder: pathlib.Path, pair: Pair, name: str) -> Certificates:
    """Writes a root and a certificate of the key by that root."""
    key = serialization.load_pem_private_key(pair.private.read_bytes(), None)
    authority = ec.generate_private_key(ec.SECP256R1())
    root = _certificate(authority.public_key(), f"{name} root", f"{name} root", authority, True)
    leaf = _certificate(key.public_key(), name, f"{name} root", authority, False)
    found = Certificates(folder / f"{name}-root.crt", folder / f"{name}.crt", pair.private)
    found.root.write_bytes(root.public_bytes(serialization.Encoding.PEM))
    found.certificate.write_bytes(leaf.public_bytes(serialization.Encoding.PEM))
    return found


def _certificate(public, subject: str, issuer: str, by, is_root: bool) -> x509.Certificate:
    now = datetime.datetime.now(datetime.timezone.utc)
    usage = dict.fromkeys(
        (
            "content_commitment", "key_encipherment", "data_encipherment", "key_agreement",
            "encipher_only", "decipher_only",
        ),
        False,
    )  # fmt: skip
    usage |= {"digital_signature": not is_root, "key_cert_sign": is_root, "crl_sign": is_root}
    return (
        x509.CertificateBuilder()
        .subject_name(x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, subject)]))
        .issuer_name(x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, issuer)]))
        .public_key(public)
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - datetime.timedelta(days=1))
        .not_valid_after(now + datetime.timedelta(days=1))
        .add_extension(x509.BasicConstraints(ca=is_root, path_length=None), critical=True)
        .add_extension(x509.KeyUsage(**usage), critical=True)
        .sign(by, hashes.SHA256())
    )
