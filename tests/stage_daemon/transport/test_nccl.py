"""What a pipe between two GPUs asks of streams and of NCCL, both made up; and that connecting has an end."""

from __future__ import annotations

import queue
import threading
from typing import Any

import pytest
import torch

from stage_daemon.transport.nccl import NcclPipe, within
from stage_daemon.transport.pipe import PeerGone, WaitTimedOut
from tests.stage_daemon.transport.made_up_device import MadeUpStreams
from tests.waiting import WAIT_SECONDS

CPU = torch.device("cpu")


class MadeUpGroup:
    """What one end sends the other receives; written down in the log of whose streams it is asked on."""

    def __init__(
        self, streams: MadeUpStreams, crossing: queue.SimpleQueue[torch.Tensor], failure: Exception | None = None
    ) -> None:
        self._streams, self._crossing, self._failure = streams, crossing, failure

    def send(self, tensors: list[torch.Tensor], rank: int, tag: int) -> MadeUpGroup:
        self._asked(f"send to {rank}")
        self._crossing.put(tensors[0].clone())
        return self

    def recv(self, tensors: list[torch.Tensor], rank: int, tag: int) -> MadeUpGroup:
        self._asked(f"receive from {rank}")
        tensors[0].copy_(self._crossing.get(timeout=WAIT_SECONDS))
        return self

    def wait(self) -> Any:
        pass

    def _asked(self, what: str) -> None:
        if self._failure is not None:
            raise self._failure
        self._streams.log.append((what, self._streams.current))


def pipe(
    rank: int,
    streams: MadeUpStreams,
    crossing: queue.SimpleQueue[torch.Tensor],
    failure: Exception | None = None,
) -> NcclPipe:
    return NcclPipe(MadeUpGroup(streams, crossing, failure), rank=rank, device=CPU, streams=streams)


def test_a_receive_waits_for_no_stage_and_a_send_for_what_it_sends() -> None:
    crossing: queue.SimpleQueue[torch.Tensor] = queue.SimpleQueue()
    source, target = MadeUpStreams(), MadeUpStreams()
    payloads = [torch.arange(5, dtype=torch.uint8), torch.arange(3, dtype=torch.uint8)]
    pipe(0, source, crossing).send(payloads)
    received = pipe(1, target, crossing).receive([5, 3])
    assert all(map(torch.equal, received, payloads))
    assert source.log == [
        ("waits for compute", "stream 1"),
        ("send to 1", "stream 1"),
        ("send to 1", "stream 1"),
        ("kept for", "stream 1"),
        ("kept for", "stream 1"),
    ]
    assert target.log == [
        ("receive from 0", "stream 1"),
        ("receive from 0", "stream 1"),
        ("host waits for", "stream 1"),
        ("kept for", "compute"),
        ("kept for", "compute"),
    ]


@pytest.mark.parametrize(
    ("failure", "expected"),
    [
        (RuntimeError("remote process exited"), PeerGone),
        (torch.AcceleratorError("assertion"), torch.AcceleratorError),
    ],
)
def test_what_nccl_says_is_of_the_peer_and_what_the_device_says_is_not(
    failure: Exception, expected: type[Exception]
) -> None:
    source, target = (pipe(rank, MadeUpStreams(), queue.SimpleQueue(), failure) for rank in (0, 1))
    with pytest.raises(expected):
        source.send([torch.ones(1, dtype=torch.uint8)])
    with pytest.raises(expected):
        target.receive([1])


def test_a_device_that_fails_while_it_receives_is_not_the_peers_fault() -> None:
    crossing: queue.SimpleQueue[torch.Tensor] = queue.SimpleQueue()
    crossing.put(torch.ones(1, dtype=torch.uint8))
    with pytest.raises(torch.AcceleratorError):
        pipe(1, MadeUpStreams(failure=torch.AcceleratorError("assertion")), crossing).receive([1])


def test_connecting_ends_at_its_deadline_and_gives_what_it_made() -> None:
    assert within(WAIT_SECONDS, lambda: 7) == 7
    with pytest.raises(PeerGone, match="nobody"):
        within(WAIT_SECONDS, _refused)
    with pytest.raises(WaitTimedOut, match=r"within 0\.01 s"):
        within(0.01, threading.Event().wait)


def _refused() -> None:
    raise PeerGone("nobody")
