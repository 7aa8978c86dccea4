"""Ids that the server makes, and fingerprints by which it knows a request again."""

from __future__ import annotations

import hashlib
import secrets

from google.protobuf.message import Message

from access.pieces import is_large, serialize_in_pieces
from planner.api.threads import in_thread


def new_id(kind: str) -> str:
    """ "plan-3f9a5c0b77d1"."""
    return f"{kind}-{secrets.token_hex(6)}"


async def fingerprint(request: Message) -> str:
    """sha256 of the request without its request_id; of one with many entries it takes long, and is made in a thread."""
    if is_large(request):
        content = await in_thread(serialize_in_pieces, request, without="request_id")
        return await in_thread(lambda: hashlib.sha256(content).hexdigest())
    bare = type(request)()
    bare.CopyFrom(request)
    bare.ClearField("request_id")
    return hashlib.sha256(bare.SerializeToString(deterministic=True)).hexdigest()
