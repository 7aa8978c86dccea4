"""One contract, every channel that can run here: two processes with and without shared memory, and one process."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, suppress
from functools import partial

import pytest
import torch

from stage_daemon.errors import Cancelled, Conflict, DaemonError, EdgeMismatch, EdgeTimeout, Unavailable
from stage_daemon.transport.channel import ReceiveChannel, SendChannel
from stage_daemon.transport.declared import DeclaredValue, ValueKind
from stage_daemon.transport.edge import Edge
from stage_daemon.transport.header import BadHeader
from stage_daemon.transport.layout import pack
from stage_daemon.transport.parcel import Parcel, ParcelKind
from tests.stage_daemon.short_deadlines import with_short_deadline
from tests.stage_daemon.transport import scripts
from tests.stage_daemon.transport.edges import (
    CONNECTIONS,
    IN_FLIGHT,
    Failures,
    Script,
    edge_of,
    other_process,
    tensor,
)
from tests.waiting import WAIT_SECONDS, wait_for

# Longer than a deadline that is kept only because there are signs of life.
QUIET_DEADLINES = 1.5
BETWEEN_PROCESSES = tuple(name for name in CONNECTIONS if name != "local")
MATRIX = tensor(1, "hidden", torch.float32, "b", "s")
ROWS = tensor(2, "rows", torch.int64, "b")

Receive = Callable[[Edge, Script], ReceiveChannel]
Send = Callable[[Edge, Script], SendChannel]


@pytest.fixture
def opened() -> Iterator[ExitStack]:
    with ExitStack() as stack:
        yield stack


@pytest.fixture(params=[*(pytest.param(name, marks=pytest.mark.services) for name in BETWEEN_PROCESSES), "local"])
def connect(request: pytest.FixtureRequest) -> Callable[..., AbstractContextManager]:
    return partial(CONNECTIONS[request.param], deadline_seconds=WAIT_SECONDS, failures=Failures())


@pytest.fixture
def receiver(connect: Callable[..., AbstractContextManager], opened: ExitStack) -> Receive:
    return lambda edge, script: opened.enter_context(connect(edge, script, script_sends=True))[0]


@pytest.fixture
def sender(connect: Callable[..., AbstractContextManager], opened: ExitStack) -> Send:
    return lambda edge, script: opened.enter_context(connect(edge, script, script_sends=False))[0]


def test_every_dtype_and_layout_arrives_as_it_was(receiver: Receive) -> None:
    expected = scripts.odd_tensors()
    values = [tensor(index, name, item.dtype, *item.shape) for index, (name, item) in enumerate(expected.items())]
    parcel, num_bytes = receiver(edge_of(*values), scripts.send_odd_tensors).receive()
    assert (parcel.microbatch, parcel.session_id, parcel.sequence) == (1, 2**64 - 1, 10)
    for (name, item), received in zip(expected.items(), parcel.items, strict=True):
        assert received.dtype == item.dtype, name
        assert received.shape == item.shape, name
        assert torch.equal(_bits(received), _bits(item)), name
        assert received.stride() in (item.stride(), pack(item)[0].strides), name
    assert num_bytes > 0


def test_strides_with_small_gaps_are_kept(receiver: Receive) -> None:
    expected = scripts.odd_tensors()
    values = [tensor(index, name, item.dtype, *item.shape) for index, (name, item) in enumerate(expected.items())]
    parcel, _ = receiver(edge_of(*values), scripts.send_odd_tensors).receive()
    items = dict(zip(expected, parcel.items, strict=True))
    dense = ("transposed", "permuted", "channels_last", "expanded", "expanded_transposed", "column", "every_second")
    assert {name: items[name].stride() for name in dense} == {name: expected[name].stride() for name in dense}


def test_scalars_keep_type_and_bits(receiver: Receive) -> None:
    kinds = (ValueKind.INTEGER, ValueKind.FLOATING, ValueKind.BOOLEAN)
    values = [DeclaredValue(value_id=index, name=kind.value, kind=kind) for index, kind in enumerate(kinds)]
    channel = receiver(edge_of(*values), scripts.send_scalars)
    assert channel.receive()[0].items == (-(2**63), -0.1, True)
    items = channel.receive()[0].items
    assert items == (2**63 - 1, float("inf"), False)
    assert [type(item) for item in items] == [int, float, bool]


def test_sizes_change_from_one_microbatch_to_the_next(receiver: Receive) -> None:
    channel = receiver(edge_of(MATRIX, ROWS), scripts.send_changing_sizes)
    for microbatch in range(1, scripts.NUM_MANY + 1):
        parcel, _ = channel.receive()
        rows, columns = scripts.sizes(microbatch)
        assert parcel.microbatch == microbatch
        assert torch.equal(parcel.items[0], torch.full((rows, columns), float(microbatch)))
        assert torch.equal(parcel.items[1], torch.arange(rows))
    assert channel.receive()[0].kind is ParcelKind.END
    with pytest.raises(Conflict):
        channel.receive()


def test_big_tensors(receiver: Receive) -> None:
    channel = receiver(edge_of(tensor(1, "big", torch.float32, "b")), scripts.send_big)
    for microbatch in (1, 2, 3):
        parcel, num_bytes = channel.receive()
        assert num_bytes == 4 * scripts.BIG_ELEMENTS
        assert torch.equal(parcel.items[0], torch.arange(scripts.BIG_ELEMENTS, dtype=torch.float32) * microbatch)


def test_a_failed_microbatch_keeps_its_place(receiver: Receive) -> None:
    channel = receiver(edge_of(MATRIX), scripts.send_failure_between)
    parcels = [channel.receive()[0] for _ in range(4)]
    assert [parcel.kind.name for parcel in parcels] == ["DATA", "ERROR", "DATA", "END"]
    failure = parcels[1].failure
    assert failure is not None
    assert (failure.reason, failure.stage, failure.device_id) == ("STAGE_FAILED", 0, "node0/cpu")
    assert failure.message == "index 7 is out of range\nof 5 rows"
    assert (parcels[1].session_id, parcels[1].sequence) == (9, 2)


def test_sending_waits_for_a_slow_receiver(sender: Send) -> None:
    channel = sender(edge_of(MATRIX), scripts.receive_one)
    sent = []

    def send_many() -> None:
        with suppress(Cancelled):
            for microbatch in range(1, 20):
                # Not small.
                channel.send(scripts.data(microbatch, torch.ones(200, 200)))
                sent.append(microbatch)

    thread = threading.Thread(target=send_many, daemon=True)
    thread.start()
    # The one that was received, and as many as may be under way.
    wait_for(lambda: len(sent) >= 1 + IN_FLIGHT, "everything to be sent that may be")
    thread.join(0.3)
    assert thread.is_alive()
    assert len(sent) == 1 + IN_FLIGHT
    channel.close()
    thread.join(WAIT_SECONDS)
    assert not thread.is_alive()
    assert len(sent) == 1 + IN_FLIGHT


def test_waiting_for_all_to_be_received(sender: Send) -> None:
    channel = sender(edge_of(MATRIX), scripts.receive_all)
    for microbatch in range(1, 6):
        assert channel.send(scripts.data(microbatch, torch.ones(2, 3))) == 24
    channel.send(Parcel(kind=ParcelKind.END))
    channel.wait(WAIT_SECONDS)
    with pytest.raises(Conflict):
        channel.send(scripts.data(6, torch.ones(1, 1)))


def test_waiting_for_a_receiver_that_takes_nothing_has_a_deadline(sender: Send) -> None:
    channel = sender(edge_of(MATRIX), scripts.receive_nothing)
    channel.send(scripts.data(1, torch.ones(1, 1)))
    with pytest.raises(EdgeTimeout, match=r"edge 3 \(stage 0 to stage 1\)"):
        channel.wait(0.3)


@pytest.mark.parametrize(
    ("items", "words"),
    [
        ((torch.ones(2, 2, dtype=torch.float64), torch.arange(2)), "'hidden'.*float64.*float32"),
        ((torch.ones(2), torch.arange(2)), "'hidden'.*1 dimensions"),
        ((torch.ones(2, 2), torch.arange(3)), "'rows'.*3, needs 2.*batch"),
        ((torch.ones(2, 0), torch.arange(2)), "'hidden'.*length.*at least 1"),
        ((torch.ones(2, 2), 5), "'rows'.*the int 5"),
        ((torch.ones(2, 2),), "found 1 values, needs 2: hidden, rows"),
    ],
)
def test_undeclared_values_are_refused_and_the_channel_stays_good(
    sender: Send, items: tuple[torch.Tensor | int, ...], words: str
) -> None:
    channel = sender(edge_of(MATRIX, ROWS), scripts.receive_all)
    with pytest.raises(BadHeader, match=words):
        channel.send(scripts.data(1, *items))
    channel.send(scripts.data(1, torch.ones(2, 2), torch.arange(2)))
    channel.wait(WAIT_SECONDS)


def test_closing_wakes_a_receive_and_is_final(receiver: Receive) -> None:
    channel = receiver(edge_of(MATRIX), scripts.send_nothing)
    threading.Timer(0.2, channel.close).start()
    with pytest.raises(Cancelled):
        channel.receive()
    channel.close()
    with pytest.raises(Cancelled):
        channel.receive()


def test_a_closed_end_sends_nothing(sender: Send) -> None:
    channel = sender(edge_of(MATRIX), scripts.receive_nothing)
    channel.close()
    with pytest.raises(Cancelled):
        channel.send(scripts.data(1, torch.ones(1, 1)))
    with pytest.raises(Cancelled):
        channel.wait(WAIT_SECONDS)


@pytest.mark.services
def test_a_quiet_peer_is_no_dead_peer() -> None:
    """Nothing to send for longer than the deadline: signs of life keep the edge."""

    def scenario(deadline_seconds: float) -> None:
        script = partial(scripts.send_after, QUIET_DEADLINES * deadline_seconds)
        with other_process(
            edge_of(MATRIX), script, script_sends=True, deadline_seconds=deadline_seconds, failures=Failures()
        ) as (channel, _):
            began = time.monotonic()
            assert channel.receive()[0].microbatch == 1
            assert time.monotonic() - began > deadline_seconds

    with_short_deadline(scenario)


@pytest.mark.services
def test_a_slow_receiver_is_no_dead_peer() -> None:
    def scenario(deadline_seconds: float) -> None:
        with other_process(
            edge_of(MATRIX),
            scripts.receive_nothing,
            script_sends=False,
            deadline_seconds=deadline_seconds,
            failures=Failures(),
        ) as (channel, _):
            channel.send(scripts.data(1, torch.ones(1, 1)))
            try:
                channel.wait(QUIET_DEADLINES * deadline_seconds)
            except EdgeTimeout as error:
                if error.metadata["action"] != "waiting for all to be received":
                    raise
            else:
                pytest.fail("what nobody took was said to be received")
            channel.send(scripts.data(2, torch.ones(1, 1)))

    with_short_deadline(scenario)


@pytest.mark.services
@pytest.mark.parametrize("way", BETWEEN_PROCESSES)
@pytest.mark.parametrize(
    ("script", "error_type"),
    [(scripts.send_one_then_die, Unavailable), (scripts.send_one_then_hang, EdgeTimeout)],
)
def test_a_receiver_learns_of_a_lost_sender(way: str, script: Script, error_type: type[DaemonError]) -> None:
    def scenario(deadline_seconds: float) -> None:
        failures = Failures()
        with CONNECTIONS[way](
            edge_of(MATRIX), script, script_sends=True, deadline_seconds=deadline_seconds, failures=failures
        ) as (channel, _):
            channel.receive()
            with pytest.raises(error_type) as raised:
                channel.receive()
            _check_names_edge(raised.value, peer_stage=0)
            assert failures.arrived.wait(WAIT_SECONDS)
            assert failures.errors == [raised.value]
            with pytest.raises(error_type) as again:
                channel.receive()
            assert again.value is raised.value

    with_short_deadline(scenario)


@pytest.mark.services
@pytest.mark.parametrize("way", BETWEEN_PROCESSES)
@pytest.mark.parametrize(
    ("script", "error_type"),
    [(scripts.receive_one_then_die, Unavailable), (scripts.receive_one_then_hang, EdgeTimeout)],
)
def test_a_sender_learns_of_a_lost_receiver(way: str, script: Script, error_type: type[DaemonError]) -> None:
    def scenario(deadline_seconds: float) -> None:
        failures = Failures()
        with CONNECTIONS[way](
            edge_of(MATRIX), script, script_sends=False, deadline_seconds=deadline_seconds, failures=failures
        ) as (channel, _):
            channel.send(scripts.data(1, torch.ones(1, 1)))
            assert failures.arrived.wait(WAIT_SECONDS)
            with pytest.raises(error_type) as raised:
                channel.send(scripts.data(2, torch.ones(1, 1)))
            _check_names_edge(raised.value, peer_stage=1)
            with pytest.raises(error_type):
                channel.wait(WAIT_SECONDS)

    with_short_deadline(scenario)


@pytest.mark.services
def test_a_microbatch_that_was_lost_is_missed(opened: ExitStack) -> None:
    failures = Failures()
    channel, _ = opened.enter_context(
        other_process(
            edge_of(MATRIX),
            scripts.send_first_and_third,
            script_sends=True,
            deadline_seconds=WAIT_SECONDS,
            failures=failures,
        )
    )
    with pytest.raises(EdgeMismatch, match="microbatch 3, needs 2") as raised:
        [channel.receive() for _ in range(2)]
    assert (raised.value.stage, raised.value.device_id, raised.value.metadata["edge"]) == (0, "node0/cpu", "3")
    assert failures.errors == [raised.value]


def _check_names_edge(error: DaemonError, peer_stage: int) -> None:
    assert error.stage == peer_stage
    assert error.device_id == f"node{peer_stage}/cpu"
    assert error.metadata["edge"] == "3"
    assert error.metadata["action"]
    assert "edge 3 (stage 0 to stage 1)" in error.message
    assert f"node{peer_stage}/cpu" in error.message


def _bits(item: torch.Tensor) -> torch.Tensor:
    return item.resolve_conj().contiguous().reshape(-1).view(torch.uint8)
