"""How a stage hands a microbatch to another: two ends, in order, each wait with a deadline.

Two ways lie behind it: `stream` between workers, whose tensors cross in shared memory, on the connection or over NCCL,
and `local` inside one worker.

Contract, for every implementation:

- Parcels arrive in the order sent, each exactly once, with the values bitwise and with the strides that they had (see
  `layout` for what is made dense). Nothing is merged, dropped or made up.
- At most `microbatches_in_flight` parcels are sent and not yet received, and beside them as many small ones as a few
  pages of memory hold: `send` blocks beyond that for as long as it takes, since a slow receiver is no failure. A peer
  that gives no sign of life for `deadline_seconds` is.
- Once an end has failed, every call on it raises that failure, which names the edge, the peer and the action; calls
  that were waiting are woken. There is no way back: the worker is replaced.
- After END nothing can be sent, and `receive` raises Conflict.
- `close` wakes whoever waits on this end, with Cancelled. Idempotent.
- One thread sends and one receives; `close` may be called from others.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

from stage_daemon.errors import DaemonError
from stage_daemon.transport.edge import Edge
from stage_daemon.transport.parcel import Parcel

FailureCallback = Callable[[DaemonError], None]


class SendChannel(Protocol):
    @property
    def edge(self) -> Edge: ...

    def send(self, parcel: Parcel) -> int:
        """Sends or queues the parcel and returns the bytes of its tensors, which must not be written to afterwards.

        Raises BadHeader, having sent nothing, if the values are not what the edge declares; the channel stays good.
        """
        ...

    def prepare(self, parcel: Parcel) -> Callable[[], int]:
        """What sends the parcel when it is called, as `send` does, by whichever thread sends then. Raises BadHeader at
        once; what the tensors' memory needs first is launched on the caller's stream."""
        ...

    def wait(self, timeout_seconds: float | None = None) -> None:
        """Returns once everything sent has been received. Raises EdgeTimeout; without a timeout, waits while the peer
        lives."""
        ...

    def close(self) -> None: ...


class ReceiveChannel(Protocol):
    @property
    def edge(self) -> Edge: ...

    def receive(self) -> tuple[Parcel, int]:
        """The next parcel and the bytes of its tensors. Waits for as long as the peer lives."""
        ...

    def close(self) -> None: ...
