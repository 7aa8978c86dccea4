"""Who a caller is: a daemon by its certificate, everybody else by a bearer token."""

from __future__ import annotations

import hashlib
import secrets
import time
from collections.abc import Iterable
from contextvars import ContextVar
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

import grpc

from access.errors import AccessError
from access.files import WatchedCredentials
from access.peers import Peer, peer_of
from planner.api.rules import Caller, Scope
from planner.errors import Unauthenticated
from planner.store.database import Database
from planner.store.tokens import Token, find_token

TOKEN_BYTES = 32
# What scanners for leaked secrets can look for.
TOKEN_PREFIX = "pplan_"
# A token that was revoked is taken for no longer.
RECHECK_SECONDS = 0.5
_MOST_REMEMBERED = 10_000
_HEADER, _SCHEME = "authorization", "Bearer "

_ALL: frozenset[Scope | Caller] = frozenset({*Scope, Caller.READER})

# Of the call that is being answered; empty where callers are not known.
CALLER: ContextVar[str] = ContextVar("caller", default="")

Context = grpc.aio.ServicerContext[Any, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class Principal:
    """`rights` are a token's scopes; where no tokens are asked for, everything but a daemon's."""

    name: str
    rights: frozenset[Scope | Caller]


def new_token() -> tuple[str, bytes]:
    """The token, and the sha256 that is kept of it."""
    token = TOKEN_PREFIX + secrets.token_urlsafe(TOKEN_BYTES)
    return token, _digest(token)


class Principals:
    """`daemon_identity` is a name in the certificates of daemons; `credentials` know which were revoked."""

    def __init__(
        self,
        database: Database,
        credentials: WatchedCredentials | None,
        *,
        asks_for_tokens: bool,
        daemon_identity: str,
    ) -> None:
        self._database = database
        self._credentials = credentials
        self._asks_for_tokens = asks_for_tokens
        self._daemon_identity = daemon_identity
        self._remembered: dict[bytes, tuple[float, Token | None]] = {}

    async def identify(self, context: Context) -> Principal:
        """Raises Unauthenticated: no certificate, or none that is valid now; a token that is not."""
        try:
            peer = peer_of(context.auth_context(), self._credentials)
        except AccessError as error:
            raise Unauthenticated(error.message) from None
        if peer is None:
            raise Unauthenticated("this planner asks callers for a certificate, and the connection has none")
        token = _token_of(context.invocation_metadata() or ()) if self._asks_for_tokens else None
        if token is None:
            return self._by_certificate(peer)
        return _holder(await self._find(token))

    def _by_certificate(self, peer: Peer) -> Principal:
        if self._daemon_identity in peer.names:
            return Principal(name=str(peer), rights=frozenset({Caller.DAEMON}))
        return Principal(name=str(peer), rights=frozenset() if self._asks_for_tokens else _ALL)

    async def _find(self, token: str) -> Token:
        digest = _digest(token)
        until, token_record = self._remembered.get(digest, (0.0, None))
        if until < time.monotonic():
            async with self._database.reading() as session:
                token_record = await find_token(session, digest)
            if len(self._remembered) >= _MOST_REMEMBERED:
                self._remembered.clear()
            self._remembered[digest] = (time.monotonic() + RECHECK_SECONDS, token_record)
        if token_record is None:
            raise Unauthenticated("the token is not known here; ask an administrator for another")
        return token_record


def _holder(token: Token) -> Principal:
    if token.revoked_at is not None:
        raise Unauthenticated(f"token {token.id} of {token.holder} was revoked on {_day(token.revoked_at)}")
    if datetime.now(UTC) > token.expires_at:
        raise Unauthenticated(
            f"token {token.id} of {token.holder} expired on {_day(token.expires_at)}; ask an administrator for another"
        )
    return Principal(name=token.holder, rights=frozenset({Caller.READER, *map(Scope, token.scopes)}))


def _token_of(metadata: Iterable[Any]) -> str | None:
    for name, value in metadata:
        if name == _HEADER and isinstance(value, str) and value.startswith(_SCHEME):
            return value.removeprefix(_SCHEME)
    return None


def _digest(token: str) -> bytes:
    return hashlib.sha256(token.encode()).digest()


def _day(moment: datetime) -> str:
    return f"{moment:%Y-%m-%d %H:%M} UTC"
