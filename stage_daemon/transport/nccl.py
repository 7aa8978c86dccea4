"""Pipes over NCCL, for payloads between two GPUs; headers and receipts go over the edge's stream.

A header must be read on the CPU anyway, and a posted NCCL receive occupies the GPU for as long as it waits. So a
payload's header leaves once the payload is computed, and its receive is posted only once the header is here: the send
is under way by then. One communicator per edge direction: on a shared one, a receive that waits blocks the send.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from datetime import timedelta
from typing import Any, Protocol, TypeVar, cast

import torch
from torch._C._distributed_c10d import PrefixStore, Store

from stage_daemon.transport.pipe import PeerGone, WaitTimedOut
from stage_daemon.transport.streams import CudaStreams, Streams

Result = TypeVar("Result")


class Work(Protocol):
    def wait(self) -> Any:
        """The current stream waits, not the caller."""
        ...


class Group(Protocol):
    """A torch process group of two, as far as it is used here."""

    def send(self, tensors: list[torch.Tensor], rank: int, tag: int) -> Work: ...

    def recv(self, tensors: list[torch.Tensor], rank: int, tag: int) -> Work: ...


class NcclPipe:
    """See `pipe.Pipe`. NCCL has no tags: order is all."""

    def __init__(self, group: Group, *, rank: int, device: torch.device, streams: Streams) -> None:
        self.device = device
        self._group = group
        self._peer = 1 - rank
        self._streams = streams
        self._stream = streams.new_stream()

    def send(self, payloads: Sequence[torch.Tensor]) -> None:
        streams = self._streams
        # A copy that makes a payload dense may still be under way.
        streams.wait(self._stream, streams.mark(streams.current))
        with _as_peer_gone(), streams.use(self._stream):
            for payload in payloads:
                self._group.send([payload], self._peer, 0).wait()
        for payload in payloads:
            streams.keep_for(payload, self._stream)

    def receive(self, sizes_bytes: Sequence[int]) -> list[torch.Tensor]:
        streams = self._streams
        with _as_peer_gone():
            with streams.use(self._stream):
                # This stream's own memory, which no stage that runs uses any more: nothing waits for the stages.
                payloads = [torch.empty(size, dtype=torch.uint8, device=self.device) for size in sizes_bytes]
                for payload in payloads:
                    self._group.recv([payload], self._peer, 0).wait()
            streams.mark(self._stream).synchronize()
        for payload in payloads:
            streams.keep_for(payload, streams.compute)
        return payloads


class _as_peer_gone:
    """What NCCL says becomes PeerGone. What the device itself failed at is nobody else's fault, and stays."""

    def __enter__(self) -> None:
        pass

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: object) -> None:
        if isinstance(error, RuntimeError) and not isinstance(error, torch.AcceleratorError):
            raise PeerGone(str(error)) from None


def connect_nccl(
    store: Store, name: str, *, rank: int, device: torch.device, connect_seconds: float, deadline_seconds: float
) -> NcclPipe:
    """Returns once both ranks of `name` are here and a byte has crossed. Raises WaitTimedOut or PeerGone.

    `deadline_seconds` is how long an operation may take from then on.
    """

    def connect() -> NcclPipe:
        # Not part of every build of torch.
        from torch.distributed import ProcessGroupNCCL

        options = ProcessGroupNCCL.Options()
        options._timeout = timedelta(seconds=deadline_seconds)
        streams = CudaStreams(device)
        with _as_peer_gone():
            group = ProcessGroupNCCL(PrefixStore(name, store), rank, 2, options)
            group.eager_connect_single_device(device)
        pipe = NcclPipe(cast(Group, group), rank=rank, device=device, streams=streams)
        if rank == 0:
            pipe.send([torch.zeros(1, dtype=torch.uint8, device=device)])
        else:
            pipe.receive([1])
        torch.cuda.synchronize(device)
        return pipe

    return within(connect_seconds, connect)


def within(seconds: float, work: Callable[[], Result]) -> Result:
    """What `work` gives or raises; WaitTimedOut where it takes longer, and a thread stays that waits for it."""
    results: list[Result] = []
    raised: list[BaseException] = []

    def run() -> None:
        try:
            results.append(work())
        except BaseException as error:
            raised.append(error)

    thread = threading.Thread(target=run, name="connect", daemon=True)
    thread.start()
    thread.join(seconds)
    if raised:
        raise raised[0]
    if not results:
        raise WaitTimedOut(f"not connected within {seconds:g} s")
    return results[0]
