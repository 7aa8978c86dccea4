"""Ids that the server makes, and fingerprints by which it knows a request again."""

from __future__ import annotations

import hashlib
import secrets

from google.protobuf.message import Message


def new_id(kind: str) -> str:
    """ "plan-3f9a5c0b77d1"."""
    return f"{kind}-{secrets.token_hex(6)}"


def fingerprint(request: Message) -> str:
    """sha256 of the request without its request_id."""
    bare = type(request)()
    bare.CopyFrom(request)
    bare.ClearField("request_id")
    return hashlib.sha256(bare.SerializeToString(deterministic=True)).hexdigest()
