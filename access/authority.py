"""A small certificate authority in a folder: one key that signs, and certificates for planners, daemons and clients."""

from __future__ import annotations

import ipaddress
import os
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import (
    Encoding,
    NoEncryption,
    PrivateFormat,
    load_pem_private_key,
)
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from access.errors import AccessError
from access.files import TlsFiles
from access.peers import CLIENT_ROLE, DAEMON_ROLE, PLANNER_ROLE

AUTHORITY_NAME = "partition-planner authority"
ROLES = {"planner": PLANNER_ROLE, "daemon": DAEMON_ROLE, "client": CLIENT_ROLE}
# Clocks of hosts differ.
_BACKDATED = timedelta(minutes=5)
_CERTIFICATE, _KEY, _REVOKED = "ca.crt", "ca.key", "ca.crl"


def create_authority(folder: Path, valid: timedelta) -> Path:
    """Its certificate's path. Raises AccessError where the folder has one: what that one signed would be worthless."""
    if (folder / _KEY).exists():
        raise AccessError(
            f"{folder / _KEY} is there already; everything it signed would be worthless, take another folder"
        )
    folder.mkdir(parents=True, exist_ok=True, mode=0o700)
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, AUTHORITY_NAME)])
    certificate = (
        _builder(name, name, key.public_key(), valid)
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .add_extension(_usage(signs=True), critical=True)
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False)
        .sign(key, hashes.SHA256())
    )
    _write(folder / _KEY, _key_pem(key), 0o600)
    _write(folder / _CERTIFICATE, certificate.public_bytes(Encoding.PEM), 0o644)
    return folder / _CERTIFICATE


def issue(folder: Path, out: Path, *, role: str, name: str, hosts: Sequence[str] = (), valid: timedelta) -> TlsFiles:
    """Writes `name`.crt, `name`.key and ca.crt into `out`, in place of those that were there.

    `hosts` are the DNS names and addresses at which others reach the process. Raises AccessError.
    """
    authority, authority_key = _load(folder)
    if role not in ROLES:
        raise AccessError(f"role {role!r} is not known; it is one of {', '.join(ROLES)}")
    if not name or "/" in name or name.startswith("."):
        raise AccessError(f"name {name!r} cannot be a file's; take the host's or the person's name")
    key = ec.generate_private_key(ec.SECP256R1())
    names: list[x509.GeneralName] = [x509.UniformResourceIdentifier(ROLES[role]), *map(_general_name, hosts)]
    certificate = (
        _builder(x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)]), authority.subject, key.public_key(), valid)
        .add_extension(x509.SubjectAlternativeName(names), critical=False)
        .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
        .add_extension(_usage(signs=False), critical=True)
        .add_extension(
            x509.ExtendedKeyUsage([ExtendedKeyUsageOID.SERVER_AUTH, ExtendedKeyUsageOID.CLIENT_AUTH]), critical=False
        )
        .add_extension(x509.AuthorityKeyIdentifier.from_issuer_public_key(authority_key.public_key()), critical=False)
        .sign(authority_key, hashes.SHA256())
    )
    out.mkdir(parents=True, exist_ok=True)
    files = TlsFiles(certificate=out / f"{name}.crt", key=out / f"{name}.key", authorities=out / _CERTIFICATE)
    if files.authorities != folder / _CERTIFICATE:
        _write(files.authorities, authority.public_bytes(Encoding.PEM), 0o644)
    _write(files.key, _key_pem(key), 0o600)
    _write(files.certificate, certificate.public_bytes(Encoding.PEM), 0o644)
    return files


def revoke(folder: Path, certificates: Sequence[Path]) -> Path:
    """Adds them to the authority's list of those that count no longer, and gives its path. Raises AccessError.

    What was listed before stays. Services that are told of the list take it by themselves.
    """
    authority, key = _load(folder)
    path, now = folder / _REVOKED, datetime.now(UTC)
    listed = dict.fromkeys(map(_serial_number, certificates), now)
    if path.exists():
        try:
            before = x509.load_pem_x509_crl(path.read_bytes())
        except ValueError as error:
            raise AccessError(f"the list {path} cannot be read: {error}") from None
        listed |= {entry.serial_number: entry.revocation_date_utc for entry in before}
    builder = x509.CertificateRevocationListBuilder().issuer_name(authority.subject).last_update(now - _BACKDATED)
    for serial, revoked_at in listed.items():
        entry = x509.RevokedCertificateBuilder().serial_number(serial).revocation_date(revoked_at)
        builder = builder.add_revoked_certificate(entry.build())
    # It counts until there is another one, as long as the authority does.
    whole = builder.next_update(authority.not_valid_after_utc).sign(key, hashes.SHA256())
    _write(path, whole.public_bytes(Encoding.PEM), 0o644)
    return path


def _serial_number(path: Path) -> int:
    try:
        return x509.load_pem_x509_certificate(path.read_bytes()).serial_number
    except (OSError, ValueError) as error:
        raise AccessError(f"{path} is no certificate that can be read: {error}") from None


def _load(folder: Path) -> tuple[x509.Certificate, ec.EllipticCurvePrivateKey]:
    try:
        certificate = x509.load_pem_x509_certificate((folder / _CERTIFICATE).read_bytes())
        key = load_pem_private_key((folder / _KEY).read_bytes(), password=None)
    except OSError as error:
        raise AccessError(
            f"no authority in {folder} ({error.strerror}); make one with `planner-cli certs init`"
        ) from None
    except ValueError as error:
        raise AccessError(f"the authority in {folder} cannot be read: {error}") from None
    if not isinstance(key, ec.EllipticCurvePrivateKey):
        raise AccessError(f"{folder / _KEY} is no key that `planner-cli certs init` made")
    return certificate, key


def _builder(
    subject: x509.Name, issuer: x509.Name, public_key: ec.EllipticCurvePublicKey, valid: timedelta
) -> x509.CertificateBuilder:
    now = datetime.now(UTC)
    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(public_key)
        .serial_number(x509.random_serial_number())
        .not_valid_before(min(now, now + valid) - _BACKDATED)
        .not_valid_after(now + valid)
    )


def _usage(*, signs: bool) -> x509.KeyUsage:
    return x509.KeyUsage(
        digital_signature=not signs,
        key_cert_sign=signs,
        crl_sign=signs,
        content_commitment=False,
        key_encipherment=False,
        data_encipherment=False,
        key_agreement=False,
        encipher_only=False,
        decipher_only=False,
    )


def _general_name(host: str) -> x509.GeneralName:
    try:
        return x509.IPAddress(ipaddress.ip_address(host.strip("[]")))
    except ValueError:
        return x509.DNSName(host)


def _key_pem(key: ec.EllipticCurvePrivateKey) -> bytes:
    return key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())


def _write(path: Path, content: bytes, mode: int) -> None:
    """Whole or not at all, and never readable for others in between."""
    partial = path.with_name(f".{path.name}.{os.getpid()}")
    descriptor = os.open(partial, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, mode)
    with os.fdopen(descriptor, "wb") as file:
        file.write(content)
    partial.replace(path)
