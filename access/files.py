"""A certificate, its key and the authorities that are trusted, from three files that may be replaced at any time."""

from __future__ import annotations

import logging
import threading
import time
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING

from access.errors import AccessError, PairMismatch

if TYPE_CHECKING:
    # Where it is used, since it takes longer to import than most of what a command line that needs no TLS does.
    from cryptography import x509

# The log says once a day that a certificate has less than this share of its time left.
_WARN_SHARE = 0.2
_WARN_AGAIN_AFTER = timedelta(days=1)
# Who replaces a key and its certificate does so one after the other.
_REPLACEMENT_SECONDS = 1.0
_POLL_SECONDS = 0.05
_RENEW = "`planner-cli certs issue` with the same --out renews it, and nothing has to be restarted"

# The standard library's: a client's program decides where its log goes.
log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class TlsFiles:
    """Paths of PEM files. `certificate` may hold intermediate ones behind the first; `authorities` any number.

    `revoked` lists certificates of the authorities that count no longer: a CRL that one of them signed.
    """

    certificate: Path
    key: Path
    authorities: Path
    revoked: Path | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Credentials:
    """What the files held at one moment: a key that fits its certificate, in its time.

    `revoked` holds serial numbers.
    """

    certificate_pem: bytes
    key_pem: bytes
    authorities_pem: bytes
    names: tuple[str, ...]
    not_before: datetime
    not_after: datetime
    revoked: frozenset[int] = frozenset()


def tls_files(
    certificate: Path | None, key: Path | None, authorities: Path | None, revoked: Path | None = None
) -> TlsFiles | None:
    """None where none is given. Raises AccessError where only some are; `revoked` may be left out."""
    if certificate and key and authorities:
        return TlsFiles(certificate=certificate, key=key, authorities=authorities, revoked=revoked)
    if certificate or key or authorities or revoked:
        raise AccessError("mutual TLS needs a certificate, its key and the authorities: give all three files, or none")
    return None


def names_of(certificate: x509.Certificate) -> tuple[str, ...]:
    """DNS names, addresses and URIs that the certificate is for; its common name where it has none of these."""
    from cryptography import x509
    from cryptography.x509.oid import NameOID

    try:
        alternative_names = certificate.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    except x509.ExtensionNotFound:
        alternative_names = None
    names = tuple(str(name.value) for name in alternative_names or ())
    return names or tuple(str(part.value) for part in certificate.subject.get_attributes_for_oid(NameOID.COMMON_NAME))


def read_credentials(files: TlsFiles) -> Credentials:
    """Raises AccessError that names the file."""
    certificate_pem, key_pem, authorities_pem = map(_read, (files.certificate, files.key, files.authorities))
    certificate = _certificates(files.certificate, certificate_pem)[0]
    authorities = _certificates(files.authorities, authorities_pem)
    _check_time(files.certificate, certificate)
    _check_fits(files, certificate, key_pem)
    return Credentials(
        certificate_pem=certificate_pem,
        key_pem=key_pem,
        authorities_pem=authorities_pem,
        names=names_of(certificate),
        not_before=certificate.not_valid_before_utc,
        not_after=certificate.not_valid_after_utc,
        revoked=_revoked(files.revoked, authorities) if files.revoked else frozenset(),
    )


class WatchedCredentials:
    """The files' newest sound contents. Threads may share it."""

    def __init__(self, files: TlsFiles) -> None:
        """Raises AccessError where the files are not sound now."""
        self.files = files
        self._lock = threading.Lock()
        self._seen = self._stamp()
        self._current = read_pair(files)
        self._warned_at: datetime | None = None

    def current(self) -> Credentials:
        """Files that are not sound, as between the replacement of one and of the next, leave what was read before."""
        with self._lock:
            stamp = self._stamp()
            if stamp != self._seen:
                self._take_changed(stamp)
            self._warn_of_end()
            return self._current

    def _take_changed(self, stamp: tuple[tuple[int, int, int], ...]) -> None:
        try:
            self._current = read_credentials(self.files)
        except AccessError as error:
            log.warning("certificate not taken, the one before stays: %s", error.message)
            if self._stamp() == stamp:
                self._seen = stamp
            return
        self._seen = stamp
        self._warned_at = None
        log.info("certificate %s taken, valid until %s", self.files.certificate, self._current.not_after.isoformat())

    def _warn_of_end(self) -> None:
        now, credentials = datetime.now(UTC), self._current
        left = credentials.not_after - now
        if left > _WARN_SHARE * (credentials.not_after - credentials.not_before):
            return
        if self._warned_at is not None and now - self._warned_at < _WARN_AGAIN_AFTER:
            return
        self._warned_at = now
        ends = "expired on" if left < timedelta() else "expires on"
        until = f"{credentials.not_after:%Y-%m-%d %H:%M} UTC"
        log.warning("renew the certificate: %s %s %s; %s", self.files.certificate, ends, until, _RENEW)

    def _stamp(self) -> tuple[tuple[int, int, int], ...]:
        files = (self.files.certificate, self.files.key, self.files.authorities, self.files.revoked)
        return tuple(_stamp_of(path) for path in files if path is not None)


def read_pair(files: TlsFiles) -> Credentials:
    """Waits for files that are replaced at this moment. Raises AccessError."""
    until = time.monotonic() + _REPLACEMENT_SECONDS
    while True:
        try:
            return read_credentials(files)
        except PairMismatch:
            if time.monotonic() > until:
                raise
        time.sleep(_POLL_SECONDS)


def _stamp_of(path: Path) -> tuple[int, int, int]:
    try:
        status = path.stat()
    except OSError:
        return (0, 0, 0)
    return (status.st_ino, status.st_mtime_ns, status.st_size)


def _read(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError as error:
        raise AccessError(f"cannot read {path}: {error.strerror}; TLS files are PEM, readable for this user") from None


def _certificates(path: Path, pem: bytes) -> list[x509.Certificate]:
    from cryptography.x509 import load_pem_x509_certificates

    try:
        return load_pem_x509_certificates(pem)
    except ValueError:
        raise AccessError(
            f"{path} holds no certificate; it has to be PEM, beginning -----BEGIN CERTIFICATE-----"
        ) from None


def _revoked(path: Path, authorities: list[x509.Certificate]) -> frozenset[int]:
    """Serial numbers. Raises AccessError that names the file."""
    from cryptography.x509 import load_pem_x509_crl

    try:
        revocations = load_pem_x509_crl(_read(path))
    except ValueError:
        raise AccessError(f"{path} holds no list of revoked certificates (a CRL in PEM)") from None
    if not any(_has_signed(authority, revocations) for authority in authorities):
        raise AccessError(f"{path} is signed by none of the authorities; take the list of the one that issues here")
    return frozenset(entry.serial_number for entry in revocations)


def _has_signed(authority: x509.Certificate, revocations: x509.CertificateRevocationList) -> bool:
    try:
        return revocations.is_signature_valid(authority.public_key())  # type: ignore[arg-type]
    except TypeError:
        # A key of a kind that signs no list.
        return False


def _check_time(path: Path, certificate: x509.Certificate) -> None:
    now, names = datetime.now(UTC), ", ".join(names_of(certificate))
    if now > certificate.not_valid_after_utc:
        ended = f"{certificate.not_valid_after_utc:%Y-%m-%d %H:%M} UTC"
        raise AccessError(f"the certificate {path} (for {names}) expired on {ended}; {_RENEW}")
    if now < certificate.not_valid_before_utc:
        begins = f"{certificate.not_valid_before_utc:%Y-%m-%d %H:%M} UTC"
        raise AccessError(f"the certificate {path} (for {names}) is valid from {begins}; is this host's clock right?")


def _check_fits(files: TlsFiles, certificate: x509.Certificate, key_pem: bytes) -> None:
    from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat, load_pem_private_key

    try:
        key = load_pem_private_key(key_pem, password=None)
    except (ValueError, TypeError):
        raise AccessError(f"{files.key} holds no private key in PEM without a passphrase") from None
    encoded = [
        public.public_bytes(Encoding.DER, PublicFormat.SubjectPublicKeyInfo)
        for public in (key.public_key(), certificate.public_key())
    ]
    if encoded[0] != encoded[1]:
        raise PairMismatch(f"the key {files.key} does not belong to the certificate {files.certificate}; replace both")
