"""Certificates and keys for a federation: an authority, the SuperLink's certificate, sites' keys.

For a first deployment and for trying things out. An organisation that has an authority of its own
uses that, and gives Flower the same three files.
"""

from __future__ import annotations

import datetime
import ipaddress
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

from pfedseq.errors import InputError
from pfedseq.files import write_atomically

VALID_DAYS = 365


@dataclass(frozen=True)
class Certificates:
    """The files in a folder of certificates."""

    folder: Path

    @property
    def authority(self) -> Path:
        """The authority's certificate: goes to every site and every operator."""
        return self.folder / "ca.crt"

    def server_options(self) -> list[str]:
        """For flower-superlink."""
        pairs = {"ca-certfile": "ca.crt", "certfile": "server.pem", "keyfile": "server.key"}
        return [
            part
            for name, file in pairs.items()
            for part in (f"--ssl-{name}", str(self.folder / file))
        ]

    def node_options(self) -> list[str]:
        """For flower-supernode."""
        return ["--root-certificates", str(self.authority)]

    def node_key(self, site: str) -> Path:
        """A site's private key: stays at the site."""
        return self.folder / f"{site}.key"

    def node_public_key(self, site: str) -> Path:
        """A site's public key: registered with the SuperLink under the site's name."""
        return self.folder / f"{site}.pub"


def make_certificates(folder: Path, hosts: Sequence[str], sites: Sequence[str]) -> Certificates:
    """Make what is missing: files that are there are never replaced."""
    made = Certificates(folder.absolute())
    if not made.authority.exists():
        _make_server(made.folder, hosts)
    for site in sites:
        if not site or any(c in site for c in "/\\"):
            raise InputError(f"a site cannot be called {site!r}: its keys are files of that name")
        if not made.node_key(site).exists():
            _make_node(made, site)
    return made


def _make_server(folder: Path, hosts: Sequence[str]) -> None:
    authority, server = (ec.generate_private_key(ec.SECP384R1()) for _ in range(2))
    ca_name, name = (
        x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, text)])
        for text in ("pfedseq federation", hosts[0])
    )
    usage = dict.fromkeys(
        (
            "content_commitment",
            "key_encipherment",
            "data_encipherment",
            "key_agreement",
            "encipher_only",
            "decipher_only",
        ),
        False,
    )
    root = (
        _builder(ca_name, ca_name, authority.public_key())
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .add_extension(
            x509.KeyUsage(digital_signature=True, key_cert_sign=True, crl_sign=True, **usage),
            critical=True,
        )
        .add_extension(
            x509.SubjectKeyIdentifier.from_public_key(authority.public_key()), critical=False
        )
        .sign(authority, hashes.SHA384())
    )
    certificate = (
        _builder(name, ca_name, server.public_key())
        .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
        .add_extension(
            x509.SubjectAlternativeName([_general_name(host) for host in hosts]), critical=False
        )
        .add_extension(
            x509.AuthorityKeyIdentifier.from_issuer_public_key(authority.public_key()),
            critical=False,
        )
        .sign(authority, hashes.SHA384())
    )
    pem = serialization.Encoding.PEM
    _write_secret(folder / "ca.key", _private(authority))
    _write_secret(folder / "server.key", _private(server))
    write_atomically(folder / "server.pem", certificate.public_bytes(pem))
    write_atomically(folder / "ca.crt", root.public_bytes(pem))


def _make_node(made: Certificates, site: str) -> None:
    key = ec.generate_private_key(ec.SECP384R1())
    public = key.public_key().public_bytes(
        serialization.Encoding.OpenSSH, serialization.PublicFormat.OpenSSH
    )
    write_atomically(made.node_public_key(site), public + b"\n")
    _write_secret(
        made.node_key(site),
        key.private_bytes(
            serialization.Encoding.PEM,
            serialization.PrivateFormat.OpenSSH,
            serialization.NoEncryption(),
        ),
    )


def _builder(
    subject: x509.Name, issuer: x509.Name, key: ec.EllipticCurvePublicKey
) -> x509.CertificateBuilder:
    now = datetime.datetime.now(datetime.UTC)
    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(key)
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - datetime.timedelta(minutes=5))
        .not_valid_after(now + datetime.timedelta(days=VALID_DAYS))
    )


def _general_name(host: str) -> x509.GeneralName:
    try:
        return x509.IPAddress(ipaddress.ip_address(host))
    except ValueError:
        return x509.DNSName(host)


def _private(key: ec.EllipticCurvePrivateKey) -> bytes:
    return key.private_bytes(
        serialization.Encoding.PEM,
        serialization.PrivateFormat.PKCS8,
        serialization.NoEncryption(),
    )


def _write_secret(path: Path, content: bytes) -> None:
    """Readable by its owner alone, from the first moment."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.touch(mode=0o600)
    path.chmod(0o600)
    temporary = path.with_name(f".{path.name}.new")
    temporary.touch(mode=0o600)
    temporary.write_bytes(content)
    temporary.replace(path)
