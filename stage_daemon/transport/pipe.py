"""A way for payloads beside the stream that carries their headers: bytes of known sizes to one peer, in order."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

import torch


class WaitTimedOut(Exception):
    """The wait went past its deadline. What was waited for is of no further use."""


class PeerGone(Exception):
    """The peer closed the connection or died; `args[0]` is the backend's own account."""


class Pipe(Protocol):
    """The order of calls is the order of messages. Payloads are flat bytes on `device`. Raises PeerGone."""

    @property
    def device(self) -> torch.device: ...

    def send(self, payloads: Sequence[torch.Tensor]) -> None:
        """Does not wait. They must not be written to afterwards."""
        ...

    def receive(self, sizes_bytes: Sequence[int]) -> list[torch.Tensor]:
        """Waits until all are there; it has no deadline of its own, see `Lifeline.expecting`."""
        ...
