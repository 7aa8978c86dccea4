"""AccessService: tokens and the audit trail, for administrators."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

from access.peers import peer_of
from access.tickets import deployment_secret, issue_ticket
from planner.api.identity import new_id
from planner.api.pages import page_of
from planner.api.principals import new_token
from planner.api.rules import Scope
from planner.dispatch.messages import timestamp
from planner.errors import InvalidArgument
from planner.store.audit import list_audit
from planner.store.database import Database
from planner.store.deployments import get_deployment
from planner.store.tokens import Token, add_token, list_tokens, revoke_token
from protos.v1 import access_pb2, access_pb2_grpc

MAX_VALID = timedelta(days=366)
MAX_HOLDER_CHARACTERS = 64
# Clients renew theirs in time; for as long new sessions can be opened while no planner answers.
TICKET_VALID = timedelta(minutes=15)
_SCOPES = tuple(scope.value for scope in Scope)


async def create_token(database: Database, holder: str, scopes: tuple[str, ...], valid: timedelta) -> tuple[str, Token]:
    """The token, which nobody can look up later, and its record. Raises InvalidArgument."""
    if not holder.isprintable() or not 0 < len(holder) <= MAX_HOLDER_CHARACTERS:
        raise InvalidArgument(f"holder {holder[:80]!r}: needs a name of 1 to {MAX_HOLDER_CHARACTERS} characters")
    unknown = sorted(set(scopes) - set(_SCOPES))
    if unknown or not scopes:
        named = repr(unknown[0][:80]) if unknown else "none"
        raise InvalidArgument(f"scope {named}: needs one or more of {', '.join(_SCOPES)}")
    if not timedelta() < valid <= MAX_VALID:
        raise InvalidArgument(
            f"valid for {valid.total_seconds():g} s: needs more than 0 and at most {MAX_VALID.days} days"
        )
    now = datetime.now(UTC)
    secret, digest = new_token()
    ordered = tuple(scope for scope in _SCOPES if scope in scopes)
    token = Token(id=new_id("token"), holder=holder, scopes=ordered, created_at=now, expires_at=now + valid)
    async with database.session() as session:
        await add_token(session, token, digest)
    return secret, token


class AccessService(access_pb2_grpc.AccessServiceServicer):
    """`planner_secret` is what the secrets of deployments are derived from."""

    def __init__(self, database: Database, planner_secret: bytes) -> None:
        self._database = database
        self._planner_secret = planner_secret

    async def CreateToken(self, request: access_pb2.CreateTokenRequest, _: Any) -> access_pb2.CreateTokenResponse:
        if not 0 < request.valid_seconds <= MAX_VALID.total_seconds():
            raise InvalidArgument(f"valid_seconds is {request.valid_seconds:g}, needs at most {MAX_VALID.days} days")
        valid = timedelta(seconds=request.valid_seconds)
        secret, token = await create_token(self._database, request.holder, tuple(request.scopes), valid)
        return access_pb2.CreateTokenResponse(token=secret, record=_token_to_proto(token))

    async def ListTokens(self, request: access_pb2.ListTokensRequest, _: Any) -> access_pb2.ListTokensResponse:
        page = page_of(request, "token", holder=request.holder)
        async with self._database.reading() as session:
            tokens, next_page = await list_tokens(session, page, holder=request.holder)
        return access_pb2.ListTokensResponse(tokens=map(_token_to_proto, tokens), next_page_token=next_page)

    async def RevokeToken(self, request: access_pb2.RevokeTokenRequest, _: Any) -> access_pb2.TokenRecord:
        async with self._database.session() as session:
            return _token_to_proto(await revoke_token(session, request.token_id, datetime.now(UTC)))

    async def CreateTicket(self, request: access_pb2.CreateTicketRequest, context: Any) -> access_pb2.Ticket:
        async with self._database.reading() as session:
            deployment = await get_deployment(session, request.deployment_id)
        peer = peer_of(context.auth_context())
        expires_at = datetime.now(UTC) + TICKET_VALID
        ticket = issue_ticket(
            deployment_secret(self._planner_secret, deployment.id),
            deployment_id=deployment.id,
            holder=str(peer) if peer else "",
            expires_at=expires_at,
        )
        return access_pb2.Ticket(ticket=ticket, expires_at=timestamp(expires_at))

    async def ListAudit(self, request: access_pb2.ListAuditRequest, _: Any) -> access_pb2.ListAuditResponse:
        page = page_of(request, "audit", principal=request.principal, subject=request.subject)
        async with self._database.reading() as session:
            entries, next_page = await list_audit(session, page, principal=request.principal, subject=request.subject)
        return access_pb2.ListAuditResponse(
            entries=[
                access_pb2.AuditEntry(
                    id=entry.id,
                    occurred_at=timestamp(entry.created_at),
                    principal=entry.principal,
                    method=entry.method,
                    subject=entry.subject,
                    peer=entry.peer,
                    outcome=entry.outcome,
                )
                for entry in entries
            ],
            next_page_token=next_page,
        )


def _token_to_proto(token: Token) -> access_pb2.TokenRecord:
    return access_pb2.TokenRecord(
        id=token.id,
        holder=token.holder,
        scopes=token.scopes,
        created_at=timestamp(token.created_at),
        expires_at=timestamp(token.expires_at),
        revoked_at=timestamp(token.revoked_at) if token.revoked_at else None,
    )
