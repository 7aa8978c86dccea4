"""Meeting: who does not come, or was told something else, is named."""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator
from dataclasses import replace

import pytest
import torch

from access.tickets import purpose_key
from stage_daemon.errors import DaemonError, EdgeMismatch, EdgeTimeout, InvalidRequest, Unavailable
from stage_daemon.transport.connect import open_channels
from stage_daemon.transport.edge import Edge
from stage_daemon.transport.store_server import StoreServer
from tests.stage_daemon.short_deadlines import with_short_deadline
from tests.stage_daemon.transport.edges import Failures, edge_of, meeting, tensor
from tests.waiting import WAIT_SECONDS

pytestmark = pytest.mark.services

MATRIX = tensor(1, "hidden", torch.float32, "b", "s")


@pytest.fixture
def store() -> Iterator[StoreServer]:
    server = StoreServer("127.0.0.1", purpose_key(b"", "rendezvous"))
    yield server
    server.close()


def both_ends(
    store: StoreServer, source: Edge, target: Edge, deadline_seconds: float = WAIT_SECONDS
) -> list[DaemonError]:
    """What each end raises, where it raises."""
    raised: list[DaemonError] = []

    def open_end(edge: Edge, device_id: str) -> None:
        try:
            open_channels([edge], device_id, meeting(store.port, deadline_seconds, Failures())).pulse.stop()
        except DaemonError as error:
            raised.append(error)

    ends = ((source, source.source_device_id), (target, target.target_device_id))
    threads = [threading.Thread(target=open_end, args=end, daemon=True) for end in ends]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(2 * WAIT_SECONDS)
        assert not thread.is_alive()
    return raised


def test_ends_that_were_told_the_same_meet(store: StoreServer) -> None:
    assert both_ends(store, edge_of(MATRIX), edge_of(MATRIX)) == []


def test_ends_of_different_plans_refuse_each_other(store: StoreServer) -> None:
    other = replace(MATRIX, dtype=torch.float64)
    raised = both_ends(store, edge_of(MATRIX), edge_of(other))
    assert [type(error) for error in raised] == [EdgeMismatch, EdgeMismatch]
    assert all("not one plan" in error.message for error in raised)


@pytest.mark.parametrize("stage", [0, 1])
def test_a_peer_that_never_comes_has_a_deadline(store: StoreServer, stage: int) -> None:
    def scenario(deadline_seconds: float) -> None:
        with pytest.raises(EdgeTimeout, match=r"edge 3 \(stage 0 to stage 1\): connecting") as raised:
            open_channels([edge_of(MATRIX)], f"node{stage}/cpu", meeting(store.port, deadline_seconds, Failures()))
        assert raised.value.stage == 1 - stage
        assert raised.value.device_id == f"node{1 - stage}/cpu"

    with_short_deadline(scenario)


def test_a_peer_of_another_generation_never_comes(store: StoreServer) -> None:
    def scenario(deadline_seconds: float) -> None:
        raised = both_ends(
            store, edge_of(MATRIX, generation=1), edge_of(MATRIX, generation=2), deadline_seconds=deadline_seconds
        )
        for error in raised:
            with pytest.raises(EdgeTimeout):
                raise error
        assert len(raised) == 2

    with_short_deadline(scenario)


def test_no_rendezvous() -> None:
    with socket.socket() as nobody_listens:
        nobody_listens.bind(("127.0.0.1", 0))
        port = nobody_listens.getsockname()[1]
        with pytest.raises(Unavailable, match=f"no rendezvous at 127.0.0.1:{port}"):
            open_channels([edge_of(MATRIX)], "node0/cpu", meeting(port, 0.5, Failures()))


def test_a_rendezvous_at_no_address_is_refused() -> None:
    nowhere = replace(meeting(1, WAIT_SECONDS, Failures()), address="nowhere")
    with pytest.raises(InvalidRequest, match="rendezvous: address 'nowhere': needs host:port"):
        open_channels([edge_of(MATRIX)], "node0/cpu", nowhere)


def test_a_worker_of_another_deployment_is_turned_away(store: StoreServer) -> None:
    unknown = meeting(store.port, WAIT_SECONDS, Failures(), secret=b"another")
    with pytest.raises(Unavailable, match="does not know this worker's deployment"):
        open_channels([edge_of(MATRIX)], "node0/cpu", unknown)
