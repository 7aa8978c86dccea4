"""A way for payloads beside the stream that carries their headers: tensors of known sizes to one peer, in order."""

from __future__ import annotations

from typing import Protocol

import torch


class WaitTimedOut(Exception):
    """The wait went past its deadline. The pipe is of no further use."""


class PeerGone(Exception):
    """The peer closed the connection or died; `args[0]` is the backend's own account."""


class Pending(Protocol):
    def wait(self, timeout_seconds: float) -> None:
        """Returns once the tensor is sent or filled. Raises WaitTimedOut or PeerGone."""
        ...


class Pipe(Protocol):
    """Calls do not block; the order of calls is the order of messages. Tensors are contiguous and on `device`."""

    @property
    def device(self) -> torch.device: ...

    def post_receive(self, tensor: torch.Tensor) -> Pending: ...

    def send(self, tensor: torch.Tensor) -> Pending: ...
