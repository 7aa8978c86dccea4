"""Hand-over between two stages of one worker: the tensors themselves, through a bounded queue."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable
from functools import partial

import torch

from stage_daemon.errors import Cancelled, Conflict
from stage_daemon.transport.declared import Outline, find_mismatch
from stage_daemon.transport.edge import Edge, End
from stage_daemon.transport.header import BadHeader
from stage_daemon.transport.parcel import Item, Parcel, ParcelKind


def local_channel(edge: Edge, microbatches_in_flight: int) -> tuple[LocalSender, LocalReceiver]:
    """Both ends; see `channel` for what they promise. Neither can die without the other, so nothing has a deadline."""
    shared = _Shared(edge, microbatches_in_flight)
    return LocalSender(shared), LocalReceiver(shared)


class _Shared:
    def __init__(self, edge: Edge, microbatches_in_flight: int) -> None:
        self.edge = edge
        self.microbatches_in_flight = microbatches_in_flight
        self.changed = threading.Condition()
        self.under_way: deque[tuple[Parcel, int]] = deque()
        self.sent_end = False
        self.received_end = False
        self.closed = False

    def wait_until(self, condition: Callable[[], bool], timeout_seconds: float | None = None) -> bool:
        """Call with `changed` held. False once the timeout has passed."""
        done = self.changed.wait_for(lambda: self.closed or condition(), timeout_seconds)
        if self.closed:
            raise Cancelled(f"{self.edge}: this end was closed")
        return done

    def close(self) -> None:
        with self.changed:
            self.closed = True
            self.changed.notify_all()


class LocalSender:
    """See `channel.SendChannel`."""

    def __init__(self, shared: _Shared) -> None:
        self._shared = shared

    @property
    def edge(self) -> Edge:
        return self._shared.edge

    def send(self, parcel: Parcel) -> int:
        return self.prepare(parcel)()

    def prepare(self, parcel: Parcel) -> Callable[[], int]:
        if parcel.kind is ParcelKind.DATA:
            message = find_mismatch(self.edge.values, [_outline(item) for item in parcel.items], self.edge.symbols)
            if message is not None:
                raise BadHeader(message)
        return partial(self._put, parcel)

    def _put(self, parcel: Parcel) -> int:
        shared = self._shared
        num_bytes = sum(item.nbytes for item in parcel.items if isinstance(item, torch.Tensor))
        with shared.changed:
            if shared.sent_end:
                raise Conflict(f"{self.edge}: nothing can be sent after the end")
            shared.wait_until(lambda: len(shared.under_way) < shared.microbatches_in_flight)
            shared.sent_end = parcel.kind is ParcelKind.END
            shared.under_way.append((parcel, num_bytes))
            shared.changed.notify_all()
        return num_bytes

    def wait(self, timeout_seconds: float | None = None) -> None:
        with self._shared.changed:
            if not self._shared.wait_until(lambda: not self._shared.under_way, timeout_seconds):
                end = End(edge=self.edge, is_source=True)
                raise end.timed_out("waiting for all to be received", timeout_seconds or 0.0)

    def close(self) -> None:
        self._shared.close()


class LocalReceiver:
    """See `channel.ReceiveChannel`."""

    def __init__(self, shared: _Shared) -> None:
        self._shared = shared

    @property
    def edge(self) -> Edge:
        return self._shared.edge

    def receive(self) -> tuple[Parcel, int]:
        shared = self._shared
        with shared.changed:
            if shared.received_end:
                raise Conflict(f"{self.edge}: nothing comes after the end")
            shared.wait_until(lambda: bool(shared.under_way))
            parcel, num_bytes = shared.under_way.popleft()
            shared.received_end = parcel.kind is ParcelKind.END
            shared.changed.notify_all()
        return parcel, num_bytes

    def close(self) -> None:
        self._shared.close()


def _outline(item: Item) -> Outline:
    return (item.dtype, tuple(item.shape)) if isinstance(item, torch.Tensor) else item
