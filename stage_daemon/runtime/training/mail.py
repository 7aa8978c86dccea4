"""The messages of training steps: each says which step and microbatch it is of, and keeps its place in its channel."""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Callable, Mapping

from stage_daemon.errors import Conflict, EdgeMismatch
from stage_daemon.transport.channel import ReceiveChannel, SendChannel
from stage_daemon.transport.edge import Edge
from stage_daemon.transport.parcel import Item, MicrobatchFailure, Parcel, ParcelKind


class Mail:
    """Both ends of an edge may be here: then the device hands over to itself, and nothing is bounded.

    `microbatch` counts within its step, from 0; -1 is for what is sent once per step.
    """

    def __init__(self, senders: Mapping[int, SendChannel], receivers: Mapping[int, ReceiveChannel]) -> None:
        self._senders = senders
        self._receivers = receivers
        self._num_sent: Counter[int] = Counter()
        self._to_itself: dict[int, deque[Parcel]] = {}

    def is_sender(self, edge: Edge) -> bool:
        return edge.id in self._senders

    def send(
        self, edge: Edge, step: int, microbatch: int, items: tuple[Item, ...], failure: MicrobatchFailure | None = None
    ) -> int:
        """The bytes of its tensors. Raises BadHeader, having sent nothing, for items that the edge does not declare."""
        put = self.prepare(edge, step, microbatch, items, failure)
        return put() if put is not None else 0

    def prepare(
        self, edge: Edge, step: int, microbatch: int, items: tuple[Item, ...], failure: MicrobatchFailure | None = None
    ) -> Callable[[], int] | None:
        """What sends it; see `SendChannel.prepare`. None once it is there, on this very device."""
        parcel = Parcel(
            kind=ParcelKind.DATA if failure is None else ParcelKind.ERROR,
            microbatch=self._num_sent[edge.id] + 1,
            session_id=step,
            sequence=microbatch + 1,
            items=items if failure is None else (),
            failure=failure,
        )
        put = None
        if edge.id in self._senders:
            put = self._senders[edge.id].prepare(parcel)
        else:
            self._to_itself.setdefault(edge.id, deque()).append(parcel)
        self._num_sent[edge.id] += 1
        return put

    def receive(self, edge: Edge, step: int, microbatch: int) -> tuple[Parcel, int]:
        """Raises EdgeMismatch for a message of another step or microbatch: the two ends do not do the same."""
        if edge.id in self._receivers:
            parcel, num_bytes = self._receivers[edge.id].receive()
        else:
            parcel, num_bytes = self._to_itself[edge.id].popleft(), 0
        if (parcel.kind, parcel.session_id, parcel.sequence) == (ParcelKind.END, 0, 0):
            raise Conflict(f"{edge}: receiving: the other end drains in the middle of step {step}")
        if (parcel.session_id, parcel.sequence) != (step, microbatch + 1):
            raise EdgeMismatch(
                f"{edge}: receiving: microbatch {parcel.sequence - 1} of step {parcel.session_id} came where"
                f" {microbatch} of step {step} is needed",
                stage=edge.source_stage,
                device_id=edge.source_device_id,
                edge=edge.id,
            )
        return parcel, num_bytes

    def end(self) -> None:
        """Returns once the other ends have said, and heard, that nothing follows."""
        for sender in self._senders.values():
            sender.send(Parcel(kind=ParcelKind.END))
        for receiver in self._receivers.values():
            receiver.receive()
        for sender in self._senders.values():
            sender.wait()
