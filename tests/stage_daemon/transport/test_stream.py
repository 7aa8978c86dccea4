"""The two ends of a stream on a socketpair: where payloads go, and what is refused of a peer."""

from __future__ import annotations

import os
import queue
import socket
import threading
from collections.abc import Iterator, Sequence
from contextlib import suppress
from functools import partial

import pytest
import torch

from access.ring import create_ring
from stage_daemon.errors import DaemonError, EdgeMismatch, EdgeTimeout, StageFailed, Unavailable
from stage_daemon.transport.edge import Edge, End
from stage_daemon.transport.header import PLACE_BEHIND_HEADER, PLACE_PIPE, Contents, Header, HeaderFormat
from stage_daemon.transport.layout import TensorLayout
from stage_daemon.transport.lifeline import Lifeline
from stage_daemon.transport.parcel import MicrobatchFailure, Parcel, ParcelKind
from stage_daemon.transport.pipe import PeerGone, Pipe
from stage_daemon.transport.pulse import Pulse
from stage_daemon.transport.stream import MOST_RECEIPTS, SMALL_BYTES, Link, StreamReceiver, StreamSender
from stage_daemon.transport.streams import Copies
from tests.descriptors import open_rings
from tests.stage_daemon.transport.edges import IN_FLIGHT, Failures, edge_of, tensor
from tests.stage_daemon.transport.made_up_device import MadeUpStreams
from tests.stage_daemon.transport.scripts import data
from tests.waiting import WAIT_SECONDS, wait_for

CPU = torch.device("cpu")
EDGE = edge_of(tensor(1, "hidden", torch.float32, "b", "s"))
ENDING = Parcel(kind=ParcelKind.END)
FAILURE = MicrobatchFailure(reason="STAGE_FAILED", message="out of range")


class FakePipe:
    """What a pipe between two GPUs does, by queue."""

    device = CPU

    def __init__(self, crossing: queue.SimpleQueue[torch.Tensor], raises: Exception | None = None) -> None:
        self._crossing = crossing
        self._raises = raises

    def send(self, payloads: Sequence[torch.Tensor]) -> None:
        for payload in payloads:
            self._crossing.put(payload.clone())

    def receive(self, sizes_bytes: Sequence[int]) -> list[torch.Tensor]:
        if self._raises is not None:
            raise self._raises
        payloads = [self._crossing.get(timeout=WAIT_SECONDS) for _ in sizes_bytes]
        assert [payload.nbytes for payload in payloads] == list(sizes_bytes)
        return payloads


def shut_down(connection: socket.socket) -> None:
    with suppress(OSError):
        connection.shutdown(socket.SHUT_RDWR)


class Ends:
    """A sender and a receiver in one process, and the sockets between them."""

    def __init__(
        self,
        edge: Edge = EDGE,
        *,
        shares_memory: bool = True,
        pipes: tuple[Pipe | None, Pipe | None] = (None, None),
        copies: Copies | None = None,
    ) -> None:
        self.format = HeaderFormat(edge=edge, max_tensor_bytes=1 << 30)
        self.sockets = socket.socketpair()
        self.lives = socket.socketpair()
        self.failures = (Failures(), Failures())
        links = [
            Link(connection=connection, shares_memory=shares_memory, pipe=pipe)
            for connection, pipe in zip(self.sockets, pipes, strict=True)
        ]
        lifelines = [
            Lifeline(
                End(edge=edge, is_source=is_source),
                WAIT_SECONDS,
                failures,
                life,
                partial(shut_down, connection),
            )
            for is_source, failures, life, connection in zip(
                (True, False), self.failures, self.lives, self.sockets, strict=True
            )
        ]
        self.lifelines = lifelines
        self.sender = StreamSender(self.format, links[0], lifelines[0], IN_FLIGHT, copies)
        self.receiver = StreamReceiver(self.format, links[1], lifelines[1], IN_FLIGHT, CPU, copies)

    def close(self) -> None:
        for connection in (*self.sockets, *self.lives):
            connection.close()


@pytest.fixture
def ends() -> Iterator[Ends]:
    ends = Ends()
    yield ends
    ends.close()


def cross(ends: Ends, microbatch: int, item: torch.Tensor) -> torch.Tensor:
    assert ends.sender.send(data(microbatch, item)) == item.nbytes
    return ends.receiver.receive()[0].items[0]


def test_a_payload_waits_in_memory_and_not_on_the_connection(ends: Ends) -> None:
    """Many times what a socket holds, with nobody reading yet."""
    big = torch.randn(2000, 2000)
    for microbatch in range(1, IN_FLIGHT + 1):
        ends.sender.send(data(microbatch, big * microbatch))
    for microbatch in range(1, IN_FLIGHT + 1):
        assert torch.equal(ends.receiver.receive()[0].items[0], big * microbatch)


@pytest.mark.parametrize("shares_memory", [True, False])
def test_small_payloads_may_be_more_under_way_but_no_more_bytes(shares_memory: bool) -> None:
    ends = Ends(shares_memory=shares_memory)
    small, large = torch.randn(32, 32), torch.randn(200, 200)
    num_sent = 0

    def send(item: torch.Tensor) -> None:
        nonlocal num_sent
        ends.sender.send(data(num_sent + 1, item))
        num_sent += 1

    def send_on() -> None:
        with suppress(DaemonError):
            while True:
                send(small)

    # The first of them may have been taken without a receipt.
    num_small = IN_FLIGHT + (MOST_RECEIPTS - 1 if shares_memory else 0)
    for _ in range(num_small):
        send(small)
    # A large one waits until as few are under way as plans count.
    thread = threading.Thread(target=send, args=(large,), daemon=True)
    thread.start()
    thread.join(0.3)
    assert thread.is_alive()
    for expected in [small] * num_small + [large]:
        assert torch.equal(ends.receiver.receive()[0].items[0], expected)
    thread.join(WAIT_SECONDS)
    most = num_sent + SMALL_BYTES // small.nbytes
    thread = threading.Thread(target=send_on, daemon=True)
    thread.start()
    wait_for(lambda: num_sent >= most, "everything to be sent that may be")
    thread.join(0.3)
    assert num_sent == most
    for connection in ends.sockets:
        shut_down(connection)
    thread.join(WAIT_SECONDS)
    assert not thread.is_alive()
    ends.close()


def receipts(ends: Ends) -> int:
    """That the sender could read now."""
    try:
        return len(ends.sockets[0].recv(100, socket.MSG_PEEK | socket.MSG_DONTWAIT))
    except BlockingIOError:
        return 0


def test_small_ones_that_came_together_get_their_receipts_together(ends: Ends) -> None:
    small = torch.randn(32, 32)
    for microbatch in range(1, 8):
        ends.sender.send(data(microbatch, small * microbatch))
    seen = []
    for microbatch in range(1, 8):
        assert torch.equal(ends.receiver.receive()[0].items[0], small * microbatch)
        seen.append(receipts(ends))
    assert seen == [0, 0, 0, 4, 4, 4, 7]
    ends.sender.wait(WAIT_SECONDS)
    cross(ends, 8, small)
    assert receipts(ends) == 1


def test_as_many_as_plans_count_can_be_under_way_whatever_the_receiver_waits_for(ends: Ends) -> None:
    large = torch.randn(200, 200)
    for microbatch in range(1, IN_FLIGHT + 1):
        ends.sender.send(data(microbatch, large))
    for microbatch in range(1, IN_FLIGHT + 1):
        ends.receiver.receive()
        assert receipts(ends) == microbatch


@pytest.mark.parametrize(
    "parcel",
    [data(4, torch.randn(200, 200)), Parcel(kind=ParcelKind.ERROR, microbatch=4, failure=FAILURE)],
    ids=["large", "failed"],
)
def test_receipts_that_are_held_back_hold_up_nothing_that_plans_count(ends: Ends, parcel: Parcel) -> None:
    assert IN_FLIGHT == 2
    for microbatch in range(1, 4):
        ends.sender.send(data(microbatch, torch.randn(32, 32)))
    for _ in range(2):
        ends.receiver.receive()
    assert receipts(ends) == 0
    # One is on its way, and the receiver waits for something else.
    sending = threading.Thread(target=ends.sender.send, args=(parcel,), daemon=True)
    sending.start()
    sending.join(WAIT_SECONDS)
    assert not sending.is_alive()
    for _ in range(2):
        ends.receiver.receive()
    ends.sender.wait(WAIT_SECONDS)


def test_memory_that_is_announced_between_others_is_that_of_those_behind_it(ends: Ends) -> None:
    sent = [torch.randn(8, 8 << size) for size in range(6)]
    for microbatch, item in enumerate(sent, 1):
        ends.sender.send(data(microbatch, item))
    for item in sent:
        assert torch.equal(ends.receiver.receive()[0].items[0], item)


def test_tensors_that_are_kept_hold_nobody_up_and_keep_their_values(ends: Ends) -> None:
    tensors = [cross(ends, microbatch, torch.full((30, 40), float(microbatch))) for microbatch in range(1, 20)]
    for microbatch, received in enumerate(tensors, start=1):
        assert torch.equal(received, torch.full((30, 40), float(microbatch)))


def test_larger_tensors_get_larger_memory_and_smaller_ones_use_it(ends: Ends) -> None:
    before, num_own = open_rings(), []
    for microbatch, columns in enumerate((10, 5000, 200_000, 3, 150_000, 9), start=1):
        item = torch.randn(2, columns)
        assert torch.equal(cross(ends, microbatch, item), item)
        num_own.append(len(open_rings() - before))
    # What is no longer used is unmapped.
    assert num_own[2] > 0
    assert len(set(num_own[2:])) == 1


@pytest.mark.parametrize("shares_memory", [True, False])
def test_layouts_are_remembered_as_what_they_are(shares_memory: bool) -> None:
    ends = Ends(shares_memory=shares_memory)
    sources = [torch.randn(6, 12) for _ in range(4)]
    for microbatch, source in enumerate(sources, start=1):
        item = source[:, 4:8] if microbatch % 2 else source[:1].expand(3, 12)
        ends.sender.send(data(microbatch, item))
        tensor = ends.receiver.receive()[0].items[0]
        assert torch.equal(tensor, item)
        assert tensor.stride() == item.stride()
    ends.close()


def test_a_received_tensor_may_be_written_to(ends: Ends) -> None:
    sent = torch.ones(4, 4)
    received = cross(ends, 1, sent)
    received.add_(1)
    assert torch.equal(cross(ends, 2, sent), sent)
    assert torch.equal(received, sent + 1)


@pytest.mark.parametrize(("shares_memory", "can_pin"), [(True, True), (True, False), (False, True)])
def test_payloads_of_a_device_are_copied_by_itself_where_they_are_large_and_it_can(
    shares_memory: bool, can_pin: bool
) -> None:
    streams = MadeUpStreams(can_pin=can_pin)
    ends = Ends(shares_memory=shares_memory, copies=Copies(streams, CPU))
    items = (torch.randn(4, 3).t(), torch.randn(3, 1).expand(3, 5), torch.ones(2, 2), torch.randn(512, 300).t())
    for microbatch, item in enumerate((*items, torch.randn(1, 1), torch.randn(700, 200)), 1):
        ends.sender.send(data(microbatch, item))
        tensor = ends.receiver.receive()[0].items[0]
        assert torch.equal(tensor, item)
        assert tensor.stride() == item.stride()
    num_large = 2 if shares_memory and can_pin else 0
    # Of the sender, which waits until a slot is written, and of the receiver, until it is read: by the device, also
    # where what is small comes in the slot of a large one before.
    assert streams.log.count(("host waits for", "compute")) == num_large
    assert streams.log.count(("host waits for", "stream 1")) == (num_large + 1 if num_large else 0)
    assert streams.log.count(("waits for stream 1", "compute")) == 6
    ends.close()


def test_a_device_that_fails_while_it_sends_is_not_the_peers_fault() -> None:
    ends = Ends(copies=Copies(MadeUpStreams(failure=torch.AcceleratorError("assertion")), CPU))
    with pytest.raises(StageFailed, match="assertion") as failure:
        ends.sender.send(data(1, torch.ones(512, 300)))
    assert (failure.value.stage, failure.value.device_id) == (EDGE.source_stage, EDGE.source_device_id)
    ends.close()


def test_payloads_in_a_pipe() -> None:
    crossing: queue.SimpleQueue[torch.Tensor] = queue.SimpleQueue()
    ends = Ends(pipes=(FakePipe(crossing), FakePipe(crossing)))
    for microbatch, item in enumerate((torch.randn(4, 3).t(), torch.randn(3, 1).expand(3, 5), torch.ones(2, 2)), 1):
        ends.sender.send(data(microbatch, item))
        tensor = ends.receiver.receive()[0].items[0]
        assert torch.equal(tensor, item)
        assert tensor.stride() == item.stride()
    ends.sender.send(ENDING)
    assert ends.receiver.receive()[0].kind is ParcelKind.END
    ends.sender.wait(WAIT_SECONDS)
    ends.close()


@pytest.mark.parametrize(
    ("raised", "error_type", "blamed"),
    [
        (PeerGone("reset"), Unavailable, (EDGE.source_stage, EDGE.source_device_id)),
        # Of this end's device: an assertion of a kernel, which the peer has nothing to do with.
        (torch.AcceleratorError("assertion"), StageFailed, (EDGE.target_stage, EDGE.target_device_id)),
    ],
)
def test_a_pipe_that_fails_is_the_edges_failure(
    raised: Exception, error_type: type[DaemonError], blamed: tuple[int, str]
) -> None:
    crossing: queue.SimpleQueue[torch.Tensor] = queue.SimpleQueue()
    ends = Ends(pipes=(FakePipe(crossing), FakePipe(crossing, raised)))
    ends.sender.send(data(1, torch.ones(1, 1)))
    with pytest.raises(error_type, match="edge 3") as failure:
        ends.receiver.receive()
    assert (failure.value.stage, failure.value.device_id) == blamed
    assert ends.failures[1].arrived.wait(WAIT_SECONDS)
    ends.close()


def test_a_payload_that_never_comes_through_its_pipe_is_noticed_though_the_peer_lives() -> None:
    """Only the header has come."""

    class Hung(FakePipe):
        def receive(self, sizes_bytes: Sequence[int]) -> list[torch.Tensor]:
            waiting.set()
            threading.Event().wait()
            raise AssertionError

    waiting = threading.Event()
    crossing: queue.SimpleQueue[torch.Tensor] = queue.SimpleQueue()
    ends = Ends(pipes=(FakePipe(crossing), Hung(crossing)))
    lifeline = ends.lifelines[1]
    ends.sender.send(data(1, torch.ones(1, 1)))
    assert waiting.wait(WAIT_SECONDS)
    lifeline.check()
    assert ends.failures[1].errors == []
    lifeline.deadline_seconds = 0.1
    threading.Event().wait(2 * lifeline.deadline_seconds)
    ends.lifelines[0].tell()
    assert lifeline.hear()
    lifeline.check()
    assert len(ends.failures[1].errors) == 1
    with pytest.raises(EdgeTimeout, match="edge 3"):
        ends.receiver.receive()
    ends.close()


def test_a_peer_that_took_everything_may_leave_first(ends: Ends) -> None:
    ends.sender.send(ENDING)
    ends.receiver.receive()
    ends.lives[1].close()
    ends.sockets[1].close()
    assert not ends.lifelines[0].hear()
    ends.sender.wait(WAIT_SECONDS)
    assert ends.failures[0].errors == []


def test_a_peer_that_leaves_before_the_end_was_received_is_lost(ends: Ends) -> None:
    ends.sender.send(ENDING)
    ends.sockets[1].close()
    with pytest.raises(Unavailable, match="waiting for a receipt"):
        ends.sender.wait(WAIT_SECONDS)


def test_a_closed_connection_is_noticed_by_who_is_busy_with_something_else(ends: Ends) -> None:
    pulse = Pulse(ends.lifelines[1:], WAIT_SECONDS)
    pulse.start()
    ends.lives[0].close()
    assert ends.failures[1].arrived.wait(WAIT_SECONDS)
    with pytest.raises(Unavailable, match="edge 3"):
        ends.receiver.receive()
    pulse.stop()


@pytest.mark.parametrize("shares_memory", [True, False])
@pytest.mark.parametrize("end", [0, 1])
def test_a_link_that_is_cut_is_noticed_though_nothing_is_closed(end: int, shares_memory: bool) -> None:
    """The peer lives, and its signs of life reach nobody."""
    ends = Ends(shares_memory=shares_memory)
    lifeline = ends.lifelines[end]
    near, far = socket.socketpair()
    os.dup2(near.fileno(), lifeline.fileno())
    assert torch.equal(cross(ends, 1, torch.ones(1, 1)), torch.ones(1, 1))
    lifeline.deadline_seconds = 0.2
    pulse = Pulse([lifeline], lifeline.deadline_seconds)
    pulse.start()
    assert ends.failures[end].arrived.wait(WAIT_SECONDS)
    pulse.stop()
    with pytest.raises(EdgeTimeout, match=f"nothing from stage {1 - end} on device 'node{1 - end}/cpu'"):
        ends.receiver.receive() if end else ends.sender.send(data(2, torch.ones(1, 1)))
    ends.close()
    near.close()
    far.close()


def put(ends: Ends, header: Header) -> None:
    ends.sockets[0].sendall(ends.format.encode(header))


def header_in_slot(place: int) -> Header:
    """Of two by two elements."""
    layout = TensorLayout(dtype=torch.float32, dims=(2, 2), strides=(2, 1))
    return Header(
        kind=ParcelKind.DATA,
        microbatch=1,
        contents=Contents((layout,)),
        payload_bytes=layout.size_bytes,
        place=place,
    )


@pytest.mark.parametrize("place", [0, 7, PLACE_PIPE, -9])
def test_places_that_are_not_there_are_refused(ends: Ends, place: int) -> None:
    put(ends, header_in_slot(place))
    with pytest.raises(EdgeMismatch, match="which"):
        ends.receiver.receive()


def test_slots_beyond_the_memory_are_refused(ends: Ends) -> None:
    ring, descriptor = create_ring(1, 4096)
    header = Header(kind=ParcelKind.RING, payload_bytes=ring.slot_bytes, place=ring.num_slots)
    socket.send_fds(ends.sockets[0], [ends.format.encode(header)], [descriptor])
    os.close(descriptor)
    put(ends, header_in_slot(1))
    with pytest.raises(EdgeMismatch, match="slot 1"):
        ends.receiver.receive()


def test_a_payload_of_another_size_than_its_shapes_is_refused(ends: Ends) -> None:
    put(ends, header_in_slot(PLACE_BEHIND_HEADER)._replace(payload_bytes=17))
    with pytest.raises(EdgeMismatch, match="17 bytes, needs 16"):
        ends.receiver.receive()


def test_a_ring_without_its_memory_is_refused(ends: Ends) -> None:
    put(ends, Header(kind=ParcelKind.RING, payload_bytes=4096, place=1))
    with pytest.raises(EdgeMismatch, match="without its memory"):
        ends.receiver.receive()


def test_a_failure_of_endless_text_is_refused(ends: Ends) -> None:
    put(ends, Header(kind=ParcelKind.ERROR, microbatch=1, payload_bytes=1 << 40))
    with pytest.raises(EdgeMismatch, match="4096"):
        ends.receiver.receive()


def test_receipts_for_what_was_not_sent_are_refused(ends: Ends) -> None:
    ends.sender.send(data(1, torch.ones(1, 1)))
    ends.sockets[1].sendall(b"rr")
    with pytest.raises(EdgeMismatch, match="receipt"):
        ends.sender.wait(WAIT_SECONDS)


def test_a_send_that_waits_for_room_on_the_connection_is_woken() -> None:
    ends = Ends(shares_memory=False)
    ends.receiver.close()
    raised: list[DaemonError] = []

    def send() -> None:
        try:
            ends.sender.send(data(1, torch.ones(2000, 2000)))
        except DaemonError as error:
            raised.append(error)

    thread = threading.Thread(target=send, daemon=True)
    thread.start()
    thread.join(WAIT_SECONDS)
    assert [type(error) for error in raised] == [Unavailable]
    ends.close()
