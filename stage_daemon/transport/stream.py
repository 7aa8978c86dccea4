"""The two ends of an edge between workers: a header on the edge's connection, and its payload where the header says.

Between processes of one host payloads lie in a `ring` of shared memory; otherwise they follow their header, or cross
in a pipe of their own (NCCL). Receipts, a byte each, come back on the same connection and bound what is under way. The
lane's own thread sends and receives: a microbatch wakes nobody but whoever waits for it. Only what does not wait in
shared memory is taken ahead of `receive`, by a thread that lets it arrive while the stage computes.
"""

from __future__ import annotations

import os
import queue
import select
import socket
import struct
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial

import torch

from access.buffers import MAX_BUFFERS, drop_sent
from access.ring import Ring, aligned, create_ring
from stage_daemon.errors import Conflict, DaemonError
from stage_daemon.transport import failure_text
from stage_daemon.transport.edge import Edge
from stage_daemon.transport.header import (
    PLACE_BEHIND_HEADER,
    PLACE_PIPE,
    BadHeader,
    Content,
    Contents,
    Header,
    HeaderFormat,
)
from stage_daemon.transport.layout import TensorLayout, memory_of, unpack
from stage_daemon.transport.lifeline import Lifeline
from stage_daemon.transport.packing import Outline, Packer
from stage_daemon.transport.parcel import Item, Parcel, ParcelKind
from stage_daemon.transport.pipe import PeerGone, Pipe
from stage_daemon.transport.sockets import Connection
from stage_daemon.transport.streams import Copies

# Beyond those under way: one that the receiver computes with, and one whose memory it still refers to.
_SPARE_SLOTS = 2
# What plans count lets so many microbatches under way. Small ones may be more, as many as this memory holds: whoever
# wakes then finds several. Near-empty stages take a third less CPU with eight under way than with two; the client's
# window bounds them, too.
SMALL_BYTES = 1 << 16
_MOST_SMALL = 16
# So many receipts of small microbatches go together, while the next one has come already.
MOST_RECEIPTS = 4
# Sizes of microbatches that are remembered at the same time.
_MAX_SIZES = 256
_RECEIPT = b"r"
_DESCRIPTOR = struct.Struct("i")
_DESCRIPTOR_SPACE = socket.CMSG_SPACE(_DESCRIPTOR.size)


@dataclass(frozen=True, slots=True, kw_only=True)
class Link:
    """How an edge's two ends reach each other. `pipe`, where there is one, takes the payloads."""

    connection: Connection
    shares_memory: bool
    pipe: Pipe | None = None


class StreamSender:
    """The source's end; see `channel.SendChannel`. `copies` are of the GPU that the stage runs on."""

    def __init__(
        self,
        format: HeaderFormat,
        link: Link,
        lifeline: Lifeline,
        microbatches_in_flight: int,
        copies: Copies | None = None,
    ) -> None:
        self._format = format
        self._packer = Packer(format)
        self._link = link
        self._connection = link.connection
        self._lifeline = lifeline
        self._in_flight = microbatches_in_flight
        self._limits = _Limits(link, microbatches_in_flight)
        # For each that was sent and has no receipt yet, how many receipts may be given together once it was taken.
        self._under_way: deque[int] = deque()
        self._ended = False
        self._ring: Ring | None = None
        self._copies = copies

    @property
    def edge(self) -> Edge:
        return self._format.edge

    def send(self, parcel: Parcel) -> int:
        return self._put(parcel, *self._packed(parcel))

    def prepare(self, parcel: Parcel) -> Callable[[], int]:
        return partial(self._put, parcel, *self._packed(parcel))

    def _packed(self, parcel: Parcel) -> tuple[Outline | None, list[torch.Tensor]]:
        return self._packer.pack(parcel.items) if parcel.kind is ParcelKind.DATA else (None, [])

    def _put(self, parcel: Parcel, outline: Outline | None, payloads: list[torch.Tensor]) -> int:
        self._lifeline.raise_if_down()
        if self._ended:
            raise Conflict(f"{self.edge}: nothing can be sent after the end")
        limit, most_together = (self._in_flight, 1) if outline is None else self._limits[outline.slot_bytes]
        while len(self._under_way) >= limit and len(self._under_way) >= self._in_flight + self._most_held_back():
            self._read_receipts()
        self._under_way.append(most_together)
        if parcel.kind is ParcelKind.END:
            self._ended = self._lifeline.is_ending = True
        try:
            if outline is None:
                self._put_words(parcel)
            elif self._link.pipe is not None:
                self._put_in_pipe(self._link.pipe, parcel, outline, payloads)
            else:
                self._put_memory(parcel, outline, payloads)
        except (OSError, PeerGone) as error:
            self._lifeline.raise_lost("sending", error)
        except torch.AcceleratorError as error:
            self._lifeline.raise_failed(self._lifeline.end.device_failed("sending", str(error)))
        return outline.payload_bytes if outline is not None else 0

    def wait(self, timeout_seconds: float | None = None) -> None:
        self._lifeline.raise_if_down()
        limit = None if timeout_seconds is None else time.monotonic() + timeout_seconds
        while self._under_way:
            if limit is not None and not _readable(self._connection, limit - time.monotonic()):
                self._lifeline.raise_if_down()
                raise self._lifeline.end.timed_out("waiting for all to be received", timeout_seconds or 0.0)
            self._read_receipts()
        self._lifeline.is_over = self._ended

    def close(self) -> None:
        self._lifeline.close()

    def _most_held_back(self) -> int:
        """Taken, perhaps, by a receiver that gives their receipts with the next one's. It may wait for something else
        first, which only comes after as many as plans count are under way beside them."""
        for num_taken, most_together in enumerate(self._under_way, 1):
            if num_taken >= most_together:
                return num_taken - 1
        return len(self._under_way)

    def _put_words(self, parcel: Parcel) -> None:
        text = failure_text.encode(parcel.failure) if parcel.failure is not None else b""
        self._write(self._head(parcel, self._format.no_contents, len(text)), [text])

    def _put_in_pipe(self, pipe: Pipe, parcel: Parcel, outline: Outline, payloads: list[torch.Tensor]) -> None:
        self._write(self._head(parcel, outline.encoded_contents, outline.payload_bytes, PLACE_PIPE))
        flat = [
            _flat(payload, size_bytes).to(pipe.device)
            for payload, size_bytes in zip(payloads, outline.sizes_bytes, strict=True)
        ]
        pipe.send(flat)

    def _put_memory(self, parcel: Parcel, outline: Outline, payloads: list[torch.Tensor]) -> None:
        ring, slot = self._ring, None
        if self._link.shares_memory and payloads:
            if ring is None or outline.slot_bytes > ring.slot_bytes:
                ring = self._ring = self._new_ring(outline.slot_bytes)
            # None where the receiver still uses all: the payload then follows its header, and nobody waits for memory.
            slot = ring.take()
        copies = self._copies
        if copies is not None:
            payloads = [_flat(*one) for one in zip(payloads, outline.sizes_bytes, strict=True)]
        if ring is None or slot is None:
            on_host = payloads if copies is None else copies.to_host(payloads)
            memory = [memory_of(*one) for one in zip(on_host, outline.sizes_bytes, strict=True)]
            self._write(self._head(parcel, outline.encoded_contents, outline.payload_bytes), memory)
            return
        if copies is None:
            _fill_slot(ring, slot, payloads, outline)
        elif copies.pin(ring, slot, outline.payload_bytes):
            copies.to_slot(payloads, ring, slot)
        else:
            _fill_slot(ring, slot, copies.to_host(payloads), outline)
        self._write(self._head(parcel, outline.encoded_contents, outline.payload_bytes, slot))

    def _new_ring(self, slot_bytes: int) -> Ring:
        assert isinstance(self._connection, socket.socket), "memory is shared in one host alone"
        ring, descriptor = create_ring(self._limits[slot_bytes][0] + _SPARE_SLOTS, slot_bytes)
        try:
            header = Header(kind=ParcelKind.RING, payload_bytes=ring.slot_bytes, place=ring.num_slots)
            socket.send_fds(self._connection, [self._format.encode(header)], [descriptor])
        finally:
            os.close(descriptor)
        return ring

    def _head(
        self, parcel: Parcel, encoded_contents: bytes, payload_bytes: int, place: int = PLACE_BEHIND_HEADER
    ) -> bytes:
        return self._format.encode_around(
            encoded_contents,
            parcel.kind,
            parcel.microbatch,
            parcel.session_id,
            parcel.sequence,
            payload_bytes,
            place,
        )

    def _write(self, head: bytes, payloads: Sequence[bytes | memoryview] = ()) -> None:
        if not payloads:
            # The usual case, where it goes in one piece.
            num_sent = self._connection.send(head)
            if num_sent == len(head):
                return
            head = head[num_sent:]
        buffers = [memoryview(head), *[memoryview(payload) for payload in payloads]]
        while buffers:
            drop_sent(buffers, self._connection.sendmsg(buffers[:MAX_BUFFERS]))

    def _read_receipts(self) -> None:
        num_under_way = len(self._under_way)
        try:
            receipts = self._connection.recv(num_under_way + 1)
        except OSError as error:
            self._lifeline.raise_lost("waiting for a receipt", error)
        if not receipts:
            self._lifeline.raise_lost("waiting for a receipt", "it closed the connection")
        if receipts.strip(_RECEIPT) or len(receipts) > num_under_way:
            self._lifeline.raise_failed(
                self._lifeline.end.mismatch(
                    "reading a receipt",
                    f"{receipts!r} for {num_under_way} microbatches under way, needs {_RECEIPT!r} for each",
                )
            )
        for _ in receipts:
            self._under_way.popleft()


class StreamReceiver:
    """The target's end; see `channel.ReceiveChannel`. Tensors arrive on `device`; `copies` are of that GPU."""

    def __init__(
        self,
        format: HeaderFormat,
        link: Link,
        lifeline: Lifeline,
        microbatches_in_flight: int,
        device: torch.device,
        copies: Copies | None = None,
    ) -> None:
        self._format = format
        self._copies = copies
        self._link = link
        self._connection = link.connection
        self._lifeline = lifeline
        self._limits = _Limits(link, microbatches_in_flight)
        self._device = device
        # Where descriptors come on the connection.
        connection = link.connection
        self._unix_socket = connection if link.shares_memory and isinstance(connection, socket.socket) else None
        # Where only headers come, as a rule: as many as wait are read at once.
        num_headers = _MOST_SMALL if self._unix_socket is not None else 1
        self._memory = bytearray(num_headers * format.num_bytes)
        self._view = memoryview(self._memory)
        # Read, and not taken yet.
        self._begin = self._end = 0
        self._descriptors: deque[int] = deque()
        self._ring: Ring | None = None
        self._num_taken = 0
        # Taken, and without a receipt yet; and how many there may be, by the size of what was taken last.
        self._num_unacknowledged = 0
        self._most_together = 1
        self._end_received = False
        self._ahead: queue.SimpleQueue[tuple[Parcel, int] | None] | None = None
        if not link.shares_memory or link.pipe is not None:
            self._ahead = queue.SimpleQueue()
            # Nothing ends a wait for a device.
            lifeline.also_wake(partial(self._ahead.put, None))
            threading.Thread(target=self._take_ahead, name=f"receive-{self.edge.id}", daemon=True).start()

    @property
    def edge(self) -> Edge:
        return self._format.edge

    def receive(self) -> tuple[Parcel, int]:
        if self._end_received:
            raise Conflict(f"{self.edge}: nothing comes after the end")
        self._lifeline.raise_if_down()
        arrival = self._take() if self._ahead is None else self._ahead.get()
        if arrival is None:
            self._lifeline.raise_if_down()
            raise self._lifeline.end.lost("receiving", "it closed the connection")
        # Before the receipt, which lets the peer end.
        self._end_received = self._lifeline.is_over = arrival[0].kind is ParcelKind.END
        self._num_unacknowledged += 1
        if self._end_received or self._num_unacknowledged >= self._most_together or not self._has_header():
            self._acknowledge()
        return arrival

    def _acknowledge(self) -> None:
        receipts = _RECEIPT * self._num_unacknowledged
        self._num_unacknowledged = 0
        try:
            self._connection.send(receipts)
        except OSError as error:
            if not self._end_received:
                self._lifeline.raise_lost("sending a receipt", error)

    def _has_header(self) -> bool:
        """The next `receive` does not wait for the sender, who may wait for a receipt."""
        return self._ahead is None and self._end - self._begin >= self._format.num_bytes

    def close(self) -> None:
        self._lifeline.close()

    def _take_ahead(self) -> None:
        assert self._ahead is not None
        try:
            while True:
                arrival = self._take()
                self._ahead.put(arrival)
                if arrival[0].kind is ParcelKind.END:
                    return
        except DaemonError:
            self._ahead.put(None)

    def _take(self) -> tuple[Parcel, int]:
        """The next parcel. What goes wrong is this end's failure."""
        action = "receiving"
        try:
            return self._read_parcel()
        except (OSError, PeerGone) as error:
            self._lifeline.raise_lost(action, error)
        except torch.AcceleratorError as error:
            self._lifeline.raise_failed(self._lifeline.end.device_failed(action, str(error)))
        except ValueError as error:
            self._lifeline.raise_failed(self._lifeline.end.mismatch("reading a header", str(error)))

    def _read_parcel(self) -> tuple[Parcel, int]:
        header = self._read_header()
        while header.kind is ParcelKind.RING:
            if not self._descriptors:
                raise BadHeader("a ring without its memory")
            self._ring = Ring(self._descriptors.popleft(), header.place, header.payload_bytes)
            header = self._read_header()
        if header.kind is not ParcelKind.END:
            needed = self.edge.turn.microbatch(self._num_taken)
            self._num_taken += 1
            if header.microbatch != needed:
                raise BadHeader(f"microbatch {header.microbatch}, needs {needed}: one was lost or repeated")
        failure = None
        if header.kind is ParcelKind.ERROR:
            if not 0 <= header.payload_bytes <= failure_text.MAX_BYTES:
                raise BadHeader(f"a failure of {header.payload_bytes} bytes, at most {failure_text.MAX_BYTES} fit")
            failure = failure_text.decode(self._read(header.payload_bytes))
        parcel = Parcel(
            kind=header.kind,
            microbatch=header.microbatch,
            session_id=header.session_id,
            sequence=header.sequence,
            items=self._read_items(header),
            failure=failure,
        )
        return parcel, header.payload_bytes if header.kind is ParcelKind.DATA else 0

    def _read_header(self) -> Header:
        num_bytes = self._format.num_bytes
        if self._end - self._begin < num_bytes:
            self._memory[: self._end - self._begin] = self._memory[self._begin : self._end]
            self._begin, self._end = 0, self._end - self._begin
            while self._end < num_bytes:
                self._end += self._read_ahead(self._view[self._end :])
        begin = self._begin
        self._begin += num_bytes
        return self._format.decode(self._view[begin : self._begin].tobytes())

    def _read_ahead(self, view: memoryview) -> int:
        """What has come, and at least a byte; descriptors, too."""
        if self._unix_socket is None:
            num_read = self._connection.recv_into(view)
        else:
            num_read, ancillary, _, _ = self._unix_socket.recvmsg_into(
                (view,), _DESCRIPTOR_SPACE, socket.MSG_CMSG_CLOEXEC
            )
            if ancillary:
                self._descriptors.extend(_DESCRIPTOR.unpack(content)[0] for _, _, content in ancillary)
        if num_read == 0:
            raise ConnectionError("it closed the connection")
        return num_read

    def _read_items(self, header: Header) -> tuple[Item, ...]:
        if header.kind is not ParcelKind.DATA:
            self._most_together = 1
            return ()
        contents = header.contents
        if header.payload_bytes != contents.payload_bytes:
            raise BadHeader(f"a payload of {header.payload_bytes} bytes, needs {contents.payload_bytes}")
        _, self._most_together = self._limits[contents.slot_bytes]
        layouts = contents.layouts
        if header.place == PLACE_PIPE:
            arrived = self._read_from_pipe(layouts)
        elif header.place == PLACE_BEHIND_HEADER:
            arrived = self._on_device([self._read_payload(layout) for layout in layouts])
        else:
            arrived = self._find_in_slot(header.place, contents) if layouts else []
            if self._copies is not None:
                arrived = self._on_device(arrived)
        tensors = tuple(map(unpack, layouts, arrived))
        if contents.are_all_payloads:
            return tensors
        rest = iter(tensors)
        return tuple([self._item(content, rest) for content in contents])

    def _item(self, content: Content, tensors: Iterator[torch.Tensor]) -> Item:
        if not isinstance(content, TensorLayout):
            return content
        if not content.num_core_elements:
            return torch.empty_strided(content.dims, content.strides, dtype=content.dtype, device=self._device)
        return next(tensors)

    def _on_device(self, payloads: list[torch.Tensor]) -> list[torch.Tensor]:
        return payloads if self._copies is None else self._copies.to_device(payloads)

    def _find_in_slot(self, slot: int, contents: Contents) -> list[torch.Tensor]:
        """Payloads in the very memory that the sender wrote to; the slot is free again once no tensor uses it."""
        ring = self._ring
        needed = contents.slot_bytes
        if ring is None or not 0 <= slot < ring.num_slots or needed > ring.slot_bytes:
            raise BadHeader(f"a payload of {needed} bytes in slot {slot}, which the shared memory does not have")
        if self._copies is not None:
            self._copies.pin(ring, slot, contents.payload_bytes)
        view = ring.lend(slot)
        if len(contents.layouts) == 1:
            [layout] = contents.layouts
            return [torch.frombuffer(view, dtype=layout.dtype, count=layout.num_core_elements)]
        payloads = []
        offset = 0
        for layout in contents.layouts:
            payloads.append(torch.frombuffer(view, dtype=layout.dtype, count=layout.num_core_elements, offset=offset))
            offset += aligned(layout.size_bytes)
        return payloads

    def _read_from_pipe(self, layouts: Sequence[TensorLayout]) -> list[torch.Tensor]:
        pipe = self._link.pipe
        if pipe is None:
            raise BadHeader("a payload in a pipe, which this edge does not have")
        with self._lifeline.expecting():
            return pipe.receive([layout.size_bytes for layout in layouts])

    def _read_payload(self, layout: TensorLayout) -> torch.Tensor:
        payload = torch.empty(layout.size_bytes, dtype=torch.uint8)
        self._read_into(memory_of(payload, layout.size_bytes))
        return payload

    def _read(self, num_bytes: int) -> bytes:
        buffer = bytearray(num_bytes)
        self._read_into(memoryview(buffer))
        return bytes(buffer)

    def _read_into(self, view: memoryview) -> None:
        num_ahead = min(len(view), self._end - self._begin)
        view[:num_ahead] = self._view[self._begin : self._begin + num_ahead]
        self._begin += num_ahead
        view = view[num_ahead:]
        while view:
            num_read = self._connection.recv_into(view)
            if num_read == 0:
                raise ConnectionError("it closed the connection")
            view = view[num_read:]


class _Limits(dict[int, tuple[int, int]]):
    """By the bytes of its slot: how many microbatches of that size may be under way on an edge whose plan counts
    `in_flight`, and how many of their receipts go together. Worked out once for each size."""

    def __init__(self, link: Link, in_flight: int) -> None:
        super().__init__()
        self._link = link
        self._in_flight = in_flight

    def __missing__(self, slot_bytes: int) -> tuple[int, int]:
        if len(self) >= _MAX_SIZES:
            self.clear()
        most_under_way = _most_under_way(self._link, self._in_flight, slot_bytes)
        limits = most_under_way, _most_together(self._link, most_under_way, self._in_flight)
        self[slot_bytes] = limits
        return limits


def _most_under_way(link: Link, in_flight: int, slot_bytes: int) -> int:
    """Microbatches of that size on an edge whose plan counts `in_flight`."""
    if link.pipe is not None:
        return in_flight
    return max(in_flight, min(_MOST_SMALL, SMALL_BYTES // max(1, slot_bytes)))


def _most_together(link: Link, most_under_way: int, in_flight: int) -> int:
    """Receipts for microbatches of which so many may be under way."""
    return max(1, min(MOST_RECEIPTS, most_under_way - in_flight)) if link.shares_memory else 1


def _fill_slot(ring: Ring, slot: int, payloads: Sequence[torch.Tensor], outline: Outline) -> None:
    if len(payloads) == 1:
        ring.write(slot, 0, payloads[0].data_ptr(), outline.payload_bytes)
        return
    offset = 0
    for payload, size_bytes in zip(payloads, outline.sizes_bytes, strict=True):
        ring.write(slot, offset, payload.data_ptr(), size_bytes)
        offset += aligned(size_bytes)


def _flat(tensor: torch.Tensor, num_bytes: int) -> torch.Tensor:
    """The same bytes as a flat tensor."""
    num_elements = num_bytes // tensor.itemsize
    return tensor.detach().as_strided((num_elements,), (1,)).view(torch.uint8)


def _readable(connection: Connection, timeout_seconds: float) -> bool:
    poller = select.poll()
    poller.register(connection, select.POLLIN)
    return bool(poller.poll(max(0.0, 1e3 * timeout_seconds)))
