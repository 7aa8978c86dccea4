"""Channels over pipes: a header that says what follows, the tensors' bytes, and receipts that come back.

The receiver posts its headers ahead and takes parcels on a thread of its own, so that a send meets its receive at once,
whatever the stage is busy with. Receipts bound what is under way, and let a slow receiver be told from a dead one.
"""

from __future__ import annotations

import threading
from collections import deque
from dataclasses import dataclass

import torch

from stage_daemon.errors import Conflict
from stage_daemon.transport import credits, failure_text
from stage_daemon.transport.edge import Edge
from stage_daemon.transport.header import BadHeader, Content, Header, HeaderFormat
from stage_daemon.transport.layout import TensorLayout, pack, unpack
from stage_daemon.transport.lifeline import Lifeline
from stage_daemon.transport.parcel import Item, MicrobatchFailure, Parcel, ParcelKind
from stage_daemon.transport.pipe import Pending, Pipe

# Receipts in flight that are not yet known to have arrived.
_MAX_UNREAPED = 8


@dataclass(frozen=True, slots=True, kw_only=True)
class Pipes:
    """`headers` and `payload` run from source to target, `receipts` back. `payload_device`: where its tensors live."""

    headers: Pipe
    payload: Pipe
    receipts: Pipe
    payload_device: torch.device


class FramedSender:
    """The source's end; see `channel.SendChannel`."""

    def __init__(self, format: HeaderFormat, pipes: Pipes, lifeline: Lifeline, microbatches_in_flight: int) -> None:
        self._format = format
        self._pipes = pipes
        self._lifeline = lifeline
        self._credits = microbatches_in_flight
        self._under_way: deque[tuple[ParcelKind, list[Pending]]] = deque()
        self._num_unreceived = 0
        self._ended = False

    @property
    def edge(self) -> Edge:
        return self._format.edge

    def start(self) -> None:
        """Begins to take receipts."""
        self._receipts = deque(self._post() for _ in range(2))
        name = f"receipts-{self.edge.id}"
        action = "waiting for a receipt"
        threading.Thread(
            target=self._lifeline.guard, args=(action, self._take_receipts), name=name, daemon=True
        ).start()

    def wait_for_peer(self, timeout_seconds: float) -> None:
        self._lifeline.wait_for_peer(timeout_seconds)

    def send(self, parcel: Parcel) -> int:
        contents, payloads = _pack_all(parcel.items)
        head = self._format.encode(_header(parcel, contents))
        if parcel.failure is not None:
            payloads = [failure_text.encode(parcel.failure)]
        payloads = [payload.to(self._pipes.payload_device) for payload in payloads]
        with self._lifeline.changed:
            if self._ended:
                raise Conflict(f"{self.edge}: nothing can be sent after the end")
            self._lifeline.wait_until(lambda: self._credits > 0)
            self._credits -= 1
            self._num_unreceived += 1
            self._ended = parcel.kind is ParcelKind.END
            self._lifeline.guard("sending", lambda: self._put(parcel.kind, head, payloads))
            self._lifeline.raise_if_down()
        return sum(payload.numel() for payload in payloads)

    def wait(self, timeout_seconds: float | None = None) -> None:
        with self._lifeline.changed:
            if not self._lifeline.wait_until(lambda: self._num_unreceived == 0, timeout_seconds):
                raise self._lifeline.end.timed_out("waiting for all to be received", timeout_seconds or 0.0)

    def keep_alive(self) -> None:
        with self._lifeline.changed:
            if self._ended or not self._lifeline.should_tell_peer():
                return
            head = self._format.encode(Header(kind=ParcelKind.IDLE))
            self._lifeline.guard("sending a sign of life", lambda: self._put(ParcelKind.IDLE, head, []))

    def close(self) -> None:
        self._lifeline.close()

    def _put(self, kind: ParcelKind, head: torch.Tensor, payloads: list[torch.Tensor]) -> None:
        sent = [self._pipes.headers.send(head)]
        sent.extend(self._pipes.payload.send(payload) for payload in payloads)
        self._under_way.append((kind, sent))
        self._lifeline.told_peer()

    def _post(self) -> tuple[torch.Tensor, Pending]:
        buffer = credits.new_buffer()
        return buffer, self._pipes.receipts.post_receive(buffer)

    def _take_receipts(self) -> None:
        while not (self._ended and self._num_unreceived == 0):
            buffer, pending = self._receipts.popleft()
            pending.wait(self._lifeline.deadline_seconds)
            count = self._read_receipt(buffer)
            self._receipts.append(self._post())
            self._lifeline.saw_peer()
            self._reap(count)
        with self._lifeline.changed:
            self._lifeline.is_over = True

    def _read_receipt(self, buffer: torch.Tensor) -> int:
        try:
            return credits.decode(self.edge, buffer)
        except BadHeader as error:
            raise self._lifeline.end.mismatch("reading a receipt", str(error)) from None

    def _reap(self, count: int) -> None:
        """What has a receipt has arrived: waiting for it only lets go of its memory."""
        with self._lifeline.changed:
            arrived = [sent for _, sent in self._pop_received(count)]
        for pending in (pending for sent in arrived for pending in sent):
            pending.wait(self._lifeline.deadline_seconds)
        with self._lifeline.changed:
            self._credits += count
            self._num_unreceived -= count
            self._lifeline.changed.notify_all()

    def _pop_received(self, count: int) -> list[tuple[ParcelKind, list[Pending]]]:
        if count > self._num_unreceived:
            raise self._lifeline.end.mismatch(
                "reading a receipt", f"receipts for {count} microbatches, only {self._num_unreceived} are under way"
            )
        popped = []
        while self._under_way and (count > 0 or self._under_way[0][0] is ParcelKind.IDLE):
            popped.append(self._under_way.popleft())
            count -= popped[-1][0] is not ParcelKind.IDLE
        return popped


class FramedReceiver:
    """The target's end; see `channel.ReceiveChannel`. Tensors arrive on `device`."""

    def __init__(
        self,
        format: HeaderFormat,
        pipes: Pipes,
        lifeline: Lifeline,
        microbatches_in_flight: int,
        device: torch.device,
    ) -> None:
        self._format = format
        self._pipes = pipes
        self._lifeline = lifeline
        self._microbatches_in_flight = microbatches_in_flight
        self._device = device
        self._arrived: deque[tuple[Parcel, int]] = deque()
        self._receipts: deque[Pending] = deque()
        self._num_taken = 0
        self._end_received = False

    @property
    def edge(self) -> Edge:
        return self._format.edge

    def post_receive(self) -> None:
        self._headers = deque(self._post() for _ in range(self._microbatches_in_flight))
        name = f"receive-{self.edge.id}"
        action = "receiving"
        threading.Thread(target=self._lifeline.guard, args=(action, self._take_parcels), name=name, daemon=True).start()

    def wait_for_peer(self, timeout_seconds: float) -> None:
        self._lifeline.wait_for_peer(timeout_seconds)

    def receive(self) -> tuple[Parcel, int]:
        with self._lifeline.changed:
            if self._end_received:
                raise Conflict(f"{self.edge}: nothing comes after the end")
            self._lifeline.wait_until(lambda: bool(self._arrived))
            parcel, num_bytes = self._arrived.popleft()
            self._end_received = parcel.kind is ParcelKind.END
            # The last receipt must be out before the process may end.
            leave_unreaped = 0 if self._end_received else _MAX_UNREAPED
            self._lifeline.guard("sending a receipt", lambda: self._give_receipt(1, leave_unreaped))
            self._lifeline.is_over = self._end_received
        return parcel, num_bytes

    def keep_alive(self) -> None:
        with self._lifeline.changed:
            if self._lifeline.should_tell_peer():
                self._lifeline.guard("sending a sign of life", lambda: self._give_receipt(0))

    def close(self) -> None:
        self._lifeline.close()

    def _give_receipt(self, count: int, leave_unreaped: int = _MAX_UNREAPED) -> None:
        self._receipts.append(self._pipes.receipts.send(credits.encode(self.edge, count)))
        self._lifeline.told_peer()
        while len(self._receipts) > leave_unreaped:
            self._receipts.popleft().wait(self._lifeline.deadline_seconds)

    def _post(self) -> tuple[torch.Tensor, Pending]:
        buffer = self._format.new_buffer()
        return buffer, self._pipes.headers.post_receive(buffer)

    def _take_parcels(self) -> None:
        while True:
            buffer, pending = self._headers.popleft()
            pending.wait(self._lifeline.deadline_seconds)
            header = self._read_header(buffer)
            self._lifeline.saw_peer()
            if header.kind is not ParcelKind.END:
                self._headers.append(self._post())
            if header.kind is ParcelKind.IDLE:
                continue
            self._check_order(header)
            arrived = self._take_payload(header)
            with self._lifeline.changed:
                self._arrived.append(arrived)
                self._lifeline.changed.notify_all()
            if header.kind is ParcelKind.END:
                return

    def _read_header(self, buffer: torch.Tensor) -> Header:
        try:
            return self._format.decode(buffer)
        except BadHeader as error:
            raise self._lifeline.end.mismatch("reading a header", str(error)) from None

    def _check_order(self, header: Header) -> None:
        if header.kind is ParcelKind.END:
            return
        self._num_taken += 1
        if header.microbatch != self._num_taken:
            raise self._lifeline.end.mismatch(
                "reading a header", f"microbatch {header.microbatch}, needs {self._num_taken}: one was lost or repeated"
            )

    def _take_payload(self, header: Header) -> tuple[Parcel, int]:
        buffers = [self._new_buffer(content) for content in header.contents]
        self._fill([buffer for buffer in buffers if buffer is not None and buffer.numel()])
        items = tuple(map(self._rebuild, header.contents, buffers))
        failure = self._take_failure() if header.kind is ParcelKind.ERROR else None
        parcel = Parcel(
            kind=header.kind,
            microbatch=header.microbatch,
            session_id=header.session_id,
            sequence=header.sequence,
            items=items,
            failure=failure,
        )
        return parcel, sum(buffer.numel() for buffer in buffers if buffer is not None)

    def _take_failure(self) -> MicrobatchFailure:
        text = torch.empty(failure_text.SIZE_BYTES, dtype=torch.uint8, device=self._pipes.payload_device)
        self._fill([text])
        return failure_text.decode(text.cpu())

    def _new_buffer(self, content: Content) -> torch.Tensor | None:
        if not isinstance(content, TensorLayout):
            return None
        return torch.empty(content.size_bytes, dtype=torch.uint8, device=self._pipes.payload_device)

    def _rebuild(self, content: Content, buffer: torch.Tensor | None) -> Item:
        if not isinstance(content, TensorLayout):
            return content
        assert buffer is not None
        return unpack(content, buffer.to(self._device))

    def _fill(self, buffers: list[torch.Tensor]) -> None:
        for pending in [self._pipes.payload.post_receive(buffer) for buffer in buffers]:
            pending.wait(self._lifeline.deadline_seconds)


def _pack_all(items: tuple[Item, ...]) -> tuple[tuple[Content, ...], list[torch.Tensor]]:
    """What the header says of each item, and the bytes that follow it; nothing follows for an empty tensor."""
    contents: list[Content] = []
    payloads: list[torch.Tensor] = []
    for item in items:
        if not isinstance(item, torch.Tensor):
            contents.append(item)
            continue
        layout, payload = pack(item)
        contents.append(layout)
        if payload.numel():
            payloads.append(payload)
    return tuple(contents), payloads


def _header(parcel: Parcel, contents: tuple[Content, ...]) -> Header:
    return Header(
        kind=parcel.kind,
        microbatch=parcel.microbatch,
        session_id=parcel.session_id,
        sequence=parcel.sequence,
        contents=contents,
    )
