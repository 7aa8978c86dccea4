"""The raw layer under `framed`: tensors of agreed sizes to one peer, in order."""

from __future__ import annotations

from typing import Protocol

import torch
from torch._C._distributed_c10d import Work


class WaitTimedOut(Exception):
    """The wait went past its deadline. The pipe is of no further use."""


class PeerGone(Exception):
    """The peer closed the connection or died; `args[0]` is the backend's own account."""


class Group(Protocol):
    """A torch process group of two, as far as it is used here."""

    def send(self, tensors: list[torch.Tensor], rank: int, tag: int) -> Work: ...

    def recv(self, tensors: list[torch.Tensor], rank: int, tag: int) -> Work: ...


class Pending(Protocol):
    def wait(self, timeout_seconds: float) -> None:
        """Returns once the tensor is sent or filled. Raises WaitTimedOut or PeerGone."""
        ...


class Pipe(Protocol):
    """Both ends agree on the size of each message beforehand. Calls do not block; order of calls is order of messages.

    The connection lasts until the process ends: a wait cannot be woken in any other way.
    """

    def post_receive(self, tensor: torch.Tensor) -> Pending: ...

    def send(self, tensor: torch.Tensor) -> Pending: ...
