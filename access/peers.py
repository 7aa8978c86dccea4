"""Who is at the other end of a call, by its certificate. The handshake has checked that an authority signed it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import lru_cache
from typing import Any

from access.errors import AccessError
from access.files import WatchedCredentials, names_of

# Roles of processes, as names (URIs) in their certificates.
PLANNER_ROLE = "urn:partition-planner:planner"
DAEMON_ROLE = "urn:partition-planner:daemon"
CLIENT_ROLE = "urn:partition-planner:client"


@dataclass(frozen=True, slots=True, kw_only=True)
class Peer:
    """`names` are those of its certificate: DNS names, addresses, URIs."""

    names: tuple[str, ...]
    not_after: datetime
    serial_number: int

    def __str__(self) -> str:
        return ", ".join(self.names) or "a nameless certificate"


def peer_of(auth_context: Mapping[Any, Any], watched: WatchedCredentials | None = None) -> Peer | None:
    """None over plain text. Raises AccessError where the certificate has expired, or was revoked, since the connection
    was made; `watched` knows which are.
    """
    certificates = auth_context.get("x509_pem_cert") or auth_context.get(b"x509_pem_cert")
    if not certificates:
        return None
    peer = _read(bytes(certificates[0]))
    if datetime.now(UTC) > peer.not_after:
        raise AccessError(
            f"the caller's certificate (for {peer}) expired on {peer.not_after:%Y-%m-%d %H:%M} UTC; renew it"
        )
    if watched is not None and peer.serial_number in watched.current().revoked:
        raise AccessError(f"the caller's certificate (for {peer}) was revoked; ask for another one")
    return peer


@lru_cache(maxsize=1024)
def _read(pem: bytes) -> Peer:
    # See files.
    from cryptography.x509 import load_pem_x509_certificate

    certificate = load_pem_x509_certificate(pem)
    return Peer(
        names=names_of(certificate),
        not_after=certificate.not_valid_after_utc,
        serial_number=certificate.serial_number,
    )
