"""Short-lived leave to send microbatches through one deployment: the planner gives it, daemons check it by themselves.

Each deployment has a secret that the planner derives from its own and hands to the deployment's daemons with their
stages. A ticket is a statement under a MAC with that secret, so it is worth nothing elsewhere; over TLS it names the
holder's certificate, so it is worth nothing to whoever copies it either.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import hmac
import json
from datetime import UTC, datetime

from access.errors import AccessError

# The metadata that a ticket travels in.
TICKET_KEY = "deployment-ticket"
RUN = "run"
_MOST_CHARACTERS = 8192


def deployment_secret(planner_secret: bytes, deployment_id: str) -> bytes:
    return _mac(planner_secret, b"deployment", deployment_id.encode())


def purpose_key(secret: bytes, purpose: str) -> bytes:
    """A key for one use of a deployment's secret; of none of them another one can be found."""
    return _mac(secret, b"purpose", purpose.encode())


def issue_ticket(secret: bytes, *, deployment_id: str, holder: str, expires_at: datetime) -> str:
    """`holder` is what `str` says of the peer; empty over plain text."""
    statement = {"deployment": deployment_id, "scope": RUN, "holder": holder, "expires": expires_at.timestamp()}
    body = json.dumps(statement).encode()
    return ".".join(base64.urlsafe_b64encode(part).decode() for part in (body, _mac(secret, b"ticket", body)))


def check_ticket(secret: bytes, ticket: str, *, deployment_id: str, holder: str, now: datetime) -> None:
    """Raises AccessError."""
    if not ticket:
        raise AccessError(f"deployment {deployment_id} asks for a ticket; CreateTicket of the planner gives one")
    body = _body(secret, ticket)
    if body is None:
        raise AccessError(f"the ticket is none of deployment {deployment_id}; ask the planner for one")
    statement = json.loads(body)
    expires_at = datetime.fromtimestamp(statement["expires"], UTC)
    if statement["deployment"] != deployment_id or statement["scope"] != RUN:
        raise AccessError(f"the ticket is for {statement['scope']} of {statement['deployment']}, not {deployment_id}")
    if now > expires_at:
        raise AccessError(f"the ticket of {deployment_id} expired at {expires_at:%H:%M:%S} UTC; ask for another")
    if statement["holder"] != holder:
        raise AccessError(f"the ticket of {deployment_id} was given to another certificate than the caller's")


def _body(secret: bytes, ticket: str) -> bytes | None:
    """Nothing of it is read before its MAC has been found right."""
    try:
        body, mac = (base64.urlsafe_b64decode(part) for part in ticket[:_MOST_CHARACTERS].split("."))
    except (binascii.Error, ValueError):
        return None
    return body if hmac.compare_digest(mac, _mac(secret, b"ticket", body)) else None


def _mac(key: bytes, use: bytes, content: bytes) -> bytes:
    return hmac.digest(key, use + b"\0" + content, hashlib.sha256)
