"""Pipes over Gloo: a process group of two for each direction, made without `init_process_group`.

A failure stays within its group. A send is a rendezvous with the posted receive. A dead peer is seen at once, a hung
one only by a wait's deadline.
"""

from __future__ import annotations

import socket
from collections.abc import Callable
from datetime import timedelta
from typing import cast

import torch
from torch._C._distributed_c10d import PrefixStore, ProcessGroupGloo, Store, Work

from stage_daemon.transport.pipe import Group, PeerGone, WaitTimedOut

_TIMED_OUT = ("timed out", "timeout")


def open_group(store: Store, name: str, rank: int, timeout_seconds: float, local_address: str) -> Group:
    """Blocks until both ranks of `name` are here. Raises WaitTimedOut or PeerGone.

    `local_address` is where the peer can reach this host.
    """
    options = ProcessGroupGloo._Options()  # type: ignore[attr-defined]
    options._devices = [ProcessGroupGloo.create_device(hostname=local_address)]
    options._timeout = timedelta(seconds=timeout_seconds)
    options._threads = 1
    try:
        return cast(Group, ProcessGroupGloo(PrefixStore(name, store), rank, 2, options))
    except RuntimeError as error:
        raise translated(error) from None


def local_address_towards(host: str, port: int) -> str:
    """The address of this host on the way to another: what peers that meet there can reach too."""
    family, kind, protocol, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_DGRAM)[0]
    with socket.socket(family, kind, protocol) as probe:
        # A datagram socket's connect sends nothing; it only picks the route.
        probe.connect(address)
        return str(probe.getsockname()[0])


def translated(error: RuntimeError) -> WaitTimedOut | PeerGone:
    text = str(error).splitlines()[0] if str(error) else type(error).__name__
    # Gloo tells the two apart only in words.
    if any(words in text.lower() for words in _TIMED_OUT):
        return WaitTimedOut(text)
    return PeerGone(text)


class GlooPending:
    def __init__(self, work: Work, tensor: torch.Tensor) -> None:
        self._work = work
        # The group does not keep the memory alive.
        self._tensor = tensor

    def wait(self, timeout_seconds: float) -> None:
        try:
            self._work.wait(timedelta(seconds=timeout_seconds))
        except RuntimeError as error:
            raise translated(error) from None


class GlooPipe:
    """One kind of message on a group: messages of different tags do not mix. Tensors are contiguous and on the CPU."""

    def __init__(self, group: Group, *, rank: int, tag: int) -> None:
        self._group = group
        self._peer = 1 - rank
        self._tag = tag

    def post_receive(self, tensor: torch.Tensor) -> GlooPending:
        return self._start(self._group.recv, tensor)

    def send(self, tensor: torch.Tensor) -> GlooPending:
        return self._start(self._group.send, tensor)

    def _start(self, operation: Callable[[list[torch.Tensor], int, int], Work], tensor: torch.Tensor) -> GlooPending:
        try:
            return GlooPending(operation([tensor], self._peer, self._tag), tensor)
        except RuntimeError as error:
            raise translated(error) from None
