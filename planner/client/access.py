"""Tokens and the audit trail: what administrators ask the planner for."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Sequence
from datetime import UTC, datetime, timedelta

from google.protobuf.timestamp_pb2 import Timestamp

from planner.client.arguments import checks_arguments
from planner.client.connection import Connection
from planner.client.records import AuditEntry, TokenRecord
from planner.errors import Unavailable
from protos.v1 import access_pb2

# A ticket is renewed when so much of its time is left, where the planner answers.
RENEW_BEFORE = timedelta(minutes=10)
# A planner that stands still holds up nobody who has a ticket.
RENEW_SECONDS = 1.0
ASK_AGAIN = timedelta(seconds=10)


@checks_arguments
class AccessCalls:
    _connection: Connection

    def create_token(self, holder: str, scopes: Sequence[str], valid_seconds: float) -> tuple[str, TokenRecord]:
        """The token is in this answer alone."""
        request = access_pb2.CreateTokenRequest(holder=holder, scopes=scopes, valid_seconds=valid_seconds)
        answer = self._connection.call(self._connection.access_stub.CreateToken, request)
        return answer.token, _token_from_proto(answer.record)

    def list_tokens(self, *, holder: str = "", created_since: datetime | None = None) -> Iterator[TokenRecord]:
        """Newest first. Empty filters let everything through."""
        request = access_pb2.ListTokensRequest(holder=holder)
        stub = self._connection.access_stub
        for page in self._connection.pages(stub.ListTokens, request, created_since=created_since):
            yield from map(_token_from_proto, page.tokens)

    def revoke_token(self, token_id: str) -> TokenRecord:
        """Within a second no planner takes it any more. Idempotent."""
        request = access_pb2.RevokeTokenRequest(token_id=token_id)
        return _token_from_proto(self._connection.call(self._connection.access_stub.RevokeToken, request))

    def list_audit(
        self, *, principal: str = "", subject: str = "", created_since: datetime | None = None
    ) -> Iterator[AuditEntry]:
        """Newest first. Empty filters let everything through."""
        request = access_pb2.ListAuditRequest(principal=principal, subject=subject)
        stub = self._connection.access_stub
        for page in self._connection.pages(stub.ListAudit, request, created_since=created_since):
            yield from map(_entry_from_proto, page.entries)


class TicketHolder:
    """A deployment's ticket, asked for at once and renewed in time. Threads may share it.

    Raises Unavailable where no planner answers at first; later the ticket that is there serves as long as it is valid.
    """

    def __init__(self, connection: Connection, deployment_id: str) -> None:
        self._connection = connection
        self._request = access_pb2.CreateTicketRequest(deployment_id=deployment_id)
        self._lock = threading.Lock()
        self._expires_at = self._renew_at = datetime.min.replace(tzinfo=UTC)
        self._ticket = ""
        self.ticket()

    def ticket(self) -> str:
        with self._lock:
            now = datetime.now(UTC)
            if now >= self._renew_at:
                self._renew(now)
            return self._ticket

    def _renew(self, now: datetime) -> None:
        is_valid = now < self._expires_at
        patience_seconds = RENEW_SECONDS if is_valid else None
        method = self._connection.access_stub.CreateTicket
        try:
            answer = self._connection.call(method, self._request, timeout_seconds=patience_seconds)
        except Unavailable:
            if not is_valid:
                raise
            self._renew_at = now + ASK_AGAIN
        else:
            self._ticket, self._expires_at = answer.ticket, _moment(answer.expires_at)
            self._renew_at = self._expires_at - RENEW_BEFORE


def _token_from_proto(message: access_pb2.TokenRecord) -> TokenRecord:
    return TokenRecord(
        id=message.id,
        holder=message.holder,
        scopes=tuple(message.scopes),
        created_at=_moment(message.created_at),
        expires_at=_moment(message.expires_at),
        revoked_at=_moment(message.revoked_at) if message.HasField("revoked_at") else None,
    )


def _entry_from_proto(message: access_pb2.AuditEntry) -> AuditEntry:
    return AuditEntry(
        id=message.id,
        occurred_at=_moment(message.occurred_at),
        principal=message.principal,
        method=message.method,
        subject=message.subject,
        peer=message.peer,
        outcome=message.outcome,
    )


def _moment(message: Timestamp) -> datetime:
    return message.ToDatetime(tzinfo=UTC)
