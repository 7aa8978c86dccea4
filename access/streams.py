"""Mutual TLS for connections that are not gRPC's: workers to each other, between hosts.

An authority has to have signed the peer's certificate, and it has to hold a name that says what the peer is. The
address plays no part: who connects has learned it, and a token, from a store that knows the deployment's secret.
"""

from __future__ import annotations

import os
import ssl
from dataclasses import dataclass

from access.diagnosis import account_of
from access.errors import AccessError
from access.files import Credentials, TlsFiles, names_of, read_pair
from access.peers import DAEMON_ROLE


@dataclass(frozen=True, slots=True, kw_only=True)
class StreamTls:
    """This end's files, and the name that the peer's certificate has to hold."""

    files: TlsFiles
    peer_identity: str = DAEMON_ROLE


def stream_context(tls: StreamTls, *, server_side: bool) -> ssl.SSLContext:
    """With what the files hold now. Raises AccessError where they are not sound."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER if server_side else ssl.PROTOCOL_TLS_CLIENT)
    credentials = read_pair(tls.files)
    # Workers of one version speak to each other.
    context.minimum_version = ssl.TLSVersion.TLSv1_3
    context.check_hostname, context.verify_mode = False, ssl.CERT_REQUIRED
    context.load_verify_locations(cadata=credentials.authorities_pem.decode("ascii", errors="ignore"))
    _load_own(context, credentials)
    if server_side:
        # Nobody resumes a session; a ticket would only be something to read where a receipt is awaited.
        context.num_tickets = 0
    return context


def check_peer(connection: ssl.SSLSocket, tls: StreamTls) -> None:
    """Once the handshake is done. Raises AccessError for a certificate that is not for the role, or was revoked."""
    # Not at the top: see files.
    from cryptography.x509 import load_der_x509_certificate

    certificate_der = connection.getpeercert(binary_form=True)
    certificate = load_der_x509_certificate(certificate_der) if certificate_der else None
    names = names_of(certificate) if certificate else ()
    if certificate and certificate.serial_number in read_pair(tls.files).revoked:
        raise AccessError(f"the peer's certificate (for {', '.join(names)}) was revoked; issue its daemon another")
    if tls.peer_identity not in names:
        raise AccessError(
            f"the peer's certificate is for {', '.join(names) or 'nobody'}, needs {tls.peer_identity}: the certificate "
            "of a daemon"
        )


def why_failed(error: ssl.SSLError) -> str:
    """A handshake's end, in words."""
    if isinstance(error, ssl.SSLCertVerificationError):
        return f"the peer's certificate is refused: {error.verify_message}"
    return f"TLS with the peer failed: {account_of(error)}"


def _load_own(context: ssl.SSLContext, credentials: Credentials) -> None:
    """From memory: the files may be replaced at any moment, one after the other."""
    descriptor = os.memfd_create("certificate")
    try:
        os.write(descriptor, credentials.key_pem + b"\n" + credentials.certificate_pem)
        context.load_cert_chain(f"/proc/self/fd/{descriptor}")
    finally:
        os.close(descriptor)
