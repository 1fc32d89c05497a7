"""Certificates and keys for a federation: an authority, the SuperLink's certificate, sites' keys.

For tests and first deployments. An organisation with its own certificate authority uses that, and
gives Flower the same three files.
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

VALID_DAYS, AUTHORITY_DAYS = 365, 3650
AUTHORITY = "pfedseq federation"
LOCAL = ("127.0.0.1", "localhost")
"""Addresses of the SuperLink on its own machine."""


@dataclass(frozen=True)
class Certificates:
    """The files in a folder of certificates."""

    folder: Path

    @property
    def authority(self) -> Path:
        """The authority's certificate, which every site and operator needs."""
        return self.folder / "ca.crt"

    def hosts(self) -> list[str]:
        """The names and addresses for which the SuperLink's certificate is valid."""
        file = self.folder / "server.pem"
        if not file.exists():
            return []
        certificate = x509.load_pem_x509_certificate(file.read_bytes())
        names = certificate.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
        return [str(name.value) for name in names]

    def server_options(self) -> list[str]:
        """Command-line options of flower-superlink."""
        pairs = {"ca-certfile": "ca.crt", "certfile": "server.pem", "keyfile": "server.key"}
        return [
            part
            for name, file in pairs.items()
            for part in (f"--ssl-{name}", str(self.folder / file))
        ]

    def node_options(self) -> list[str]:
        """Command-line options of `pfedseq flower site`."""
        return ["--root-certificates", str(self.authority)]

    def node_key(self, site: str) -> Path:
        """A site's private key, which stays at the site."""
        return self.folder / f"{site}.key"

    def node_public_key(self, site: str) -> Path:
        """A site's public key, registered with the SuperLink under the site's name."""
        return self.folder / f"{site}.pub"


def make_certificates(
    folder: Path, hosts: Sequence[str], sites: Sequence[str], renew: bool = False
) -> Certificates:
    """Create missing files; an existing authority and existing keys are never replaced.

    The SuperLink's certificate is reissued by the same authority if it lacks one of `hosts`, or to
    `renew` it for another year. It is always valid for this machine's own addresses as well.
    """
    made = Certificates(folder.absolute())
    if not made.authority.exists():
        _make_authority(made.folder)
    known = made.hosts()
    if renew or not known or not set(hosts) <= set(known):
        _make_server(made.folder, list(dict.fromkeys([*known, *hosts, *LOCAL])))
    for site in sites:
        if not site or any(c in site for c in "/\\"):
            raise InputError(f"a site cannot be called {site!r}: its keys are files of that name")
        if not made.node_key(site).exists():
            _make_node(made, site)
    return made


def _make_authority(folder: Path) -> None:
    authority, name = ec.generate_private_key(ec.SECP384R1()), _name(AUTHORITY)
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
        _builder(name, name, authority.public_key(), AUTHORITY_DAYS)
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
    _write_secret(folder / "ca.key", _private(authority))
    write_atomically(folder / "ca.crt", root.public_bytes(serialization.Encoding.PEM))


def _make_server(folder: Path, hosts: Sequence[str]) -> None:
    try:
        content = (folder / "ca.key").read_bytes()
    except OSError as problem:
        raise InputError(
            f"the SuperLink's certificate cannot be reissued: the authority's key {folder}/ca.key "
            f"is not readable ({problem.strerror}); put it there for as long as this takes"
        ) from None
    authority = serialization.load_pem_private_key(content, None)
    assert isinstance(authority, ec.EllipticCurvePrivateKey)  # as `_make_authority` made it
    server = ec.generate_private_key(ec.SECP384R1())
    certificate = (
        _builder(_name(hosts[0]), _name(AUTHORITY), server.public_key(), VALID_DAYS)
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
    _write_secret(folder / "server.key", _private(server))
    write_atomically(folder / "server.pem", certificate.public_bytes(serialization.Encoding.PEM))


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


def _name(text: str) -> x509.Name:
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, text)])


def _builder(
    subject: x509.Name, issuer: x509.Name, key: ec.EllipticCurvePublicKey, days: int
) -> x509.CertificateBuilder:
    now = datetime.datetime.now(datetime.UTC)
    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(key)
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - datetime.timedelta(minutes=5))
        .not_valid_after(now + datetime.timedelta(days=days))
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
    """Write a file that is readable only by its owner, from its creation on."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.touch(mode=0o600)
    path.chmod(0o600)
    temporary = path.with_name(f".{path.name}.new")
    temporary.touch(mode=0o600)
    temporary.write_bytes(content)
    temporary.replace(path)
