"""A client's ticket: asked for once, renewed in time, kept while no planner answers."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent import futures
from datetime import UTC, datetime, timedelta
from typing import Any

import grpc
import pytest
from google.protobuf.timestamp_pb2 import Timestamp

from planner.client.access import RENEW_BEFORE, TicketHolder
from planner.client.connection import Connection
from planner.errors import Unavailable
from protos.v1 import access_pb2, access_pb2_grpc

SECOND = timedelta(seconds=1)


class Issuer(access_pb2_grpc.AccessServiceServicer):
    """Numbers its tickets."""

    def __init__(self) -> None:
        self.num_asked = 0
        self.num_issued = 0
        self.valid = RENEW_BEFORE + 60 * SECOND
        self.away = False

    def CreateTicket(self, request: access_pb2.CreateTicketRequest, context: Any) -> access_pb2.Ticket:
        self.num_asked += 1
        if self.away:
            context.abort(grpc.StatusCode.UNAVAILABLE, "away")
        self.num_issued += 1
        expires_at = Timestamp()
        expires_at.FromDatetime(datetime.now(UTC) + self.valid)
        return access_pb2.Ticket(ticket=f"{request.deployment_id} {self.num_issued}", expires_at=expires_at)


@pytest.fixture
def issuer() -> Issuer:
    return Issuer()


@pytest.fixture
def connection(issuer: Issuer) -> Iterator[Connection]:
    server = grpc.server(futures.ThreadPoolExecutor(2))
    access_pb2_grpc.add_AccessServiceServicer_to_server(issuer, server)
    address = f"127.0.0.1:{server.add_insecure_port('127.0.0.1:0')}"
    server.start()
    connection = Connection(address, timeout_seconds=120.0)
    yield connection
    connection.close()
    server.stop(None)


def test_a_ticket_is_used_until_it_is_about_to_end(connection: Connection, issuer: Issuer) -> None:
    holder = TicketHolder(connection, "dep-1")
    assert [holder.ticket() for _ in range(3)] == ["dep-1 1"] * 3


def test_it_is_there_before_the_first_session_so_that_the_planner_may_go(
    connection: Connection, issuer: Issuer
) -> None:
    holder = TicketHolder(connection, "dep-1")
    issuer.away = True
    assert holder.ticket() == "dep-1 1"


def test_a_ticket_that_is_about_to_end_is_renewed(connection: Connection, issuer: Issuer) -> None:
    issuer.valid = RENEW_BEFORE - SECOND
    holder = TicketHolder(connection, "dep-1")
    assert [holder.ticket() for _ in range(2)] == ["dep-1 2", "dep-1 3"]


def test_while_no_planner_answers_the_ticket_that_is_valid_serves(connection: Connection, issuer: Issuer) -> None:
    """And it is not asked again at every session: a planner that stands still would hold up each."""
    issuer.valid = RENEW_BEFORE - SECOND
    holder = TicketHolder(connection, "dep-1")
    issuer.away = True
    assert holder.ticket() == "dep-1 1"
    num_asked = issuer.num_asked
    assert num_asked > 1
    assert [holder.ticket() for _ in range(3)] == ["dep-1 1"] * 3
    assert issuer.num_asked == num_asked


def test_without_a_ticket_and_a_planner_there_is_no_way_in(connection: Connection, issuer: Issuer) -> None:
    issuer.away = True
    with pytest.raises(Unavailable):
        TicketHolder(connection, "dep-1")
