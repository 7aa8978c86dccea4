"""Pipes over NCCL, for payloads between two GPUs; headers and receipts go over the edge's stream.

A header must be read on the CPU anyway, and a posted NCCL receive occupies the GPU for as long as it waits. So each
payload's receive is posted only once its header is here, when the send is already under way. One communicator per edge
direction: on a shared one, a receive that waits blocks the send.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from datetime import timedelta
from typing import Protocol, cast

import torch
from torch._C._distributed_c10d import PrefixStore, Store, Work

from stage_daemon.transport.pipe import PeerGone, WaitTimedOut

_POLL_SECONDS = 5e-5


class Group(Protocol):
    """A torch process group of two, as far as it is used here."""

    def send(self, tensors: list[torch.Tensor], rank: int, tag: int) -> Work: ...

    def recv(self, tensors: list[torch.Tensor], rank: int, tag: int) -> Work: ...


class NcclPipe:
    """Tensors are contiguous, on `device`, and written by its default stream. NCCL has no tags: order is all."""

    def __init__(self, store: Store, name: str, *, rank: int, device: torch.device, timeout_seconds: float) -> None:
        """Blocks until both ranks of `name` are here and a byte has crossed. Raises WaitTimedOut or PeerGone."""
        # Not part of every build of torch.
        from torch.distributed import ProcessGroupNCCL

        self.device = device
        self._peer = 1 - rank
        self._stream = torch.cuda.Stream(device)  # type: ignore[no-untyped-call]
        options = ProcessGroupNCCL.Options()
        options._timeout = timedelta(seconds=timeout_seconds)
        try:
            group = ProcessGroupNCCL(PrefixStore(name, store), rank, 2, options)
            group.eager_connect_single_device(device)
        except RuntimeError as error:
            raise PeerGone(str(error)) from None
        self._group = cast(Group, group)
        self._warm(rank, timeout_seconds)

    def post_receive(self, tensor: torch.Tensor) -> NcclPending:
        return self._start(self._group.recv, tensor)

    def send(self, tensor: torch.Tensor) -> NcclPending:
        return self._start(self._group.send, tensor)

    def _start(self, operation: Callable[[list[torch.Tensor], int, int], Work], tensor: torch.Tensor) -> NcclPending:
        # The stage's stream made what is sent, and may still use the memory that is received into.
        self._stream.wait_stream(torch.cuda.default_stream(self.device))
        try:
            with torch.cuda.device(self.device), torch.cuda.stream(self._stream):
                # Makes the stream wait, not this thread.
                operation([tensor], self._peer, 0).wait()
                tensor.record_stream(self._stream)
                done = torch.cuda.Event()  # type: ignore[no-untyped-call]
                done.record(self._stream)
        except RuntimeError as error:
            raise PeerGone(str(error)) from None
        return NcclPending(done, tensor)

    def _warm(self, rank: int, timeout_seconds: float) -> None:
        byte = torch.zeros(1, dtype=torch.uint8, device=self.device)
        pending = self.send(byte) if rank == 0 else self.post_receive(byte)
        pending.wait(timeout_seconds)


class NcclPending:
    def __init__(self, done: torch.cuda.Event, tensor: torch.Tensor) -> None:
        self._done = done
        self._tensor = tensor

    def wait(self, timeout_seconds: float) -> None:
        """Polls, since a CUDA event's own wait has no deadline."""
        limit = time.monotonic() + timeout_seconds
        try:
            while not self._done.query():  # type: ignore[no-untyped-call]
                if time.monotonic() > limit:
                    raise WaitTimedOut(f"NCCL operation of {self._tensor.nbytes} bytes")
                time.sleep(_POLL_SECONDS)
        except RuntimeError as error:
            raise PeerGone(str(error)) from None
