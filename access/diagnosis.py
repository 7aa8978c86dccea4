"""Why a TLS connection fails, in words: gRPC says little more than that it did."""

from __future__ import annotations

import contextlib
import socket
import ssl

from cryptography import x509

from access.addresses import Endpoint, parse_endpoint
from access.files import TlsFiles, names_of

_SECONDS = 3.0
_TOLD = {
    "CERTIFICATE_REQUIRED": "it asks for a certificate and got none",
    "CERTIFICATE_EXPIRED": "it says that the certificate shown to it has expired",
    "UNKNOWN_CA": "it does not trust the authority that signed the certificate shown to it",
    "BAD_CERTIFICATE": "it does not accept the certificate shown to it",
    "WRONG_VERSION_NUMBER": "it speaks plain text, not TLS",
    "UNEXPECTED_EOF": "it ended the handshake, as plain-text servers and ones that refuse the certificate do",
}


def why_refused(address: str, files: TlsFiles) -> str:
    """A sentence, or nothing where TLS is not the reason. Connects, and takes at most some seconds."""
    context = ssl.create_default_context(cafile=str(files.authorities))
    context.set_alpn_protocols(["h2"])
    try:
        endpoint = parse_endpoint(address)
        context.load_cert_chain(files.certificate, files.key)
        if _greet(context, endpoint):
            return ""
    except ssl.SSLCertVerificationError as error:
        return f"the certificate of {address} ({_shown(endpoint, files)}) is refused: {error.verify_message}"
    except ssl.SSLError as error:
        return f"TLS with {address}, shown {files.certificate}: {account_of(error)}"
    except (OSError, ValueError):
        return ""
    return f"{address} ends the connection once it has seen the certificate {_described(files)}: it does not accept it"


def account_of(error: ssl.SSLError) -> str:
    """What the other end says, in words."""
    account = str(error).upper().replace(" ", "_")
    return next((text for word, text in _TOLD.items() if word in account), str(error))


def _greet(context: ssl.SSLContext, endpoint: Endpoint) -> bytes:
    """A server that refuses this end's certificate says so behind the handshake, where it would speak HTTP/2 first."""
    with (
        socket.create_connection((endpoint.host, endpoint.port), timeout=_SECONDS) as connection,
        context.wrap_socket(connection, server_hostname=endpoint.host) as secured,
    ):
        return secured.recv(1)


def _shown(endpoint: Endpoint, files: TlsFiles) -> str:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    with contextlib.suppress(OSError, ValueError):
        context.load_cert_chain(files.certificate, files.key)
        with (
            socket.create_connection((endpoint.host, endpoint.port), timeout=_SECONDS) as connection,
            context.wrap_socket(connection, server_hostname=endpoint.host) as secured,
        ):
            return _facts(x509.load_der_x509_certificate(secured.getpeercert(True) or b""))
    return "which it did not show again"


def _described(files: TlsFiles) -> str:
    try:
        return f"{files.certificate} ({_facts(x509.load_pem_x509_certificate(files.certificate.read_bytes()))})"
    except (OSError, ValueError) as error:
        return f"{files.certificate} ({error})"


def _facts(certificate: x509.Certificate) -> str:
    until = f"{certificate.not_valid_after_utc:%Y-%m-%d %H:%M} UTC"
    issuer = certificate.issuer.rfc4514_string()
    return f"for {', '.join(names_of(certificate))}, valid until {until}, signed by {issuer}"
