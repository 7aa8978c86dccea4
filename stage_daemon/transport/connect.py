"""Opens every edge of a worker, in the one order that cannot deadlock, and proves each before it is used."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from datetime import timedelta

import torch
from torch._C._distributed_c10d import PrefixStore, Store, TCPStore
from torch.distributed import DistError

from stage_daemon.errors import DaemonError, Unavailable
from stage_daemon.transport.channel import FailureCallback, ReceiveChannel, SendChannel
from stage_daemon.transport.edge import Edge, End
from stage_daemon.transport.framed import FramedReceiver, FramedSender, Pipes
from stage_daemon.transport.gloo import GlooPipe, local_address_towards, open_group
from stage_daemon.transport.header import HeaderFormat
from stage_daemon.transport.lifeline import Lifeline
from stage_daemon.transport.local import local_channel
from stage_daemon.transport.nccl import NcclPipe
from stage_daemon.transport.pipe import PeerGone, WaitTimedOut
from stage_daemon.transport.pulse import Pulse

_HEADER_TAG = 0
_PAYLOAD_TAG = 1
_SOURCE_RANK = 0
_TARGET_RANK = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Meeting:
    """Where and how the workers of one generation meet. `deadline_seconds` is for each wait, connecting included."""

    address: str
    deadline_seconds: float
    microbatches_in_flight: int
    device: torch.device
    on_failure: FailureCallback
    max_tensor_bytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Channels:
    """By edge id. `pulse` already beats."""

    senders: dict[int, SendChannel]
    receivers: dict[int, ReceiveChannel]
    pulse: Pulse


def host_memory_bytes() -> int:
    """No tensor larger than this can be meant."""
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")


def open_channels(edges: Sequence[Edge], stages: Collection[int], meeting: Meeting) -> Channels:
    """Returns once a message has crossed every edge in both directions. `stages` are those of this worker.

    All workers open edges by ascending id, so the lowest unopened one always has both its ends waiting. Raises
    EdgeTimeout, Unavailable or EdgeMismatch, naming the edge.
    """
    senders: dict[int, SendChannel] = {}
    receivers: dict[int, ReceiveChannel] = {}
    framed: list[FramedSender | FramedReceiver] = []
    limit = time.monotonic() + meeting.deadline_seconds
    store = _meet(meeting) if any(not _is_local(edge, stages) for edge in edges) else None
    for edge in sorted(edges, key=lambda edge: edge.id):
        if _is_local(edge, stages):
            senders[edge.id], receivers[edge.id] = local_channel(edge, meeting.microbatches_in_flight)
            continue
        assert store is not None
        end = End(edge=edge, is_source=edge.source_stage in stages)
        opened = _open_end(end, store, meeting, limit)
        framed.append(opened)
        if isinstance(opened, FramedSender):
            senders[edge.id] = opened
        else:
            receivers[edge.id] = opened
    pulse = Pulse([*senders.values(), *receivers.values()], meeting.deadline_seconds)
    _warm(framed, pulse, limit)
    return Channels(senders=senders, receivers=receivers, pulse=pulse)


def _warm(framed: Sequence[FramedSender | FramedReceiver], pulse: Pulse, limit: float) -> None:
    for channel in framed:
        if isinstance(channel, FramedSender):
            channel.start()
        else:
            channel.post_receive()
    for channel in framed:
        channel.keep_alive()
    pulse.start()
    for channel in framed:
        channel.wait_for_peer(max(0.0, limit - time.monotonic()))


def _is_local(edge: Edge, stages: Collection[int]) -> bool:
    return edge.source_stage in stages and edge.target_stage in stages


def _meet(meeting: Meeting) -> Store:
    host, port = _split(meeting.address)
    try:
        return TCPStore(host, port, is_master=False, timeout=timedelta(seconds=meeting.deadline_seconds))
    except DistError as error:
        raise Unavailable(
            f"no rendezvous at {meeting.address} within {meeting.deadline_seconds:g} s: {_first_line(error)}",
            address=meeting.address,
        ) from None


def _split(address: str) -> tuple[str, int]:
    host, _, port = address.rpartition(":")
    return host.strip("[]"), int(port)


def _open_end(end: End, store: Store, meeting: Meeting, limit: float) -> FramedSender | FramedReceiver:
    action = "connecting"
    try:
        return _build_end(end, store, meeting, limit)
    except WaitTimedOut:
        raise end.timed_out(action, meeting.deadline_seconds) from None
    except PeerGone as error:
        raise end.lost(action, str(error)) from None


def _build_end(end: End, store: Store, meeting: Meeting, limit: float) -> FramedSender | FramedReceiver:
    edge = end.edge
    store = PrefixStore(f"{edge.deployment_id}/{edge.generation}/edge{edge.id}", store)
    over_nccl = _agree(end, store, meeting, limit)
    rank = _SOURCE_RANK if end.is_source else _TARGET_RANK
    address = local_address_towards(*_split(meeting.address))
    forward = open_group(store, "forward", rank, _remaining(limit), address)
    backward = open_group(store, "backward", rank, _remaining(limit), address)
    pipes = Pipes(
        headers=GlooPipe(forward, rank=rank, tag=_HEADER_TAG),
        payload=NcclPipe(store, "payload", rank=rank, device=meeting.device, timeout_seconds=_remaining(limit))
        if over_nccl
        else GlooPipe(forward, rank=rank, tag=_PAYLOAD_TAG),
        receipts=GlooPipe(backward, rank=rank, tag=_HEADER_TAG),
        payload_device=meeting.device if over_nccl else torch.device("cpu"),
    )
    lifeline = Lifeline(end, meeting.deadline_seconds, meeting.on_failure)
    format = HeaderFormat(edge=edge, max_tensor_bytes=meeting.max_tensor_bytes)
    if end.is_source:
        return FramedSender(format, pipes, lifeline, meeting.microbatches_in_flight)
    return FramedReceiver(format, pipes, lifeline, meeting.microbatches_in_flight, meeting.device)


def _agree(end: End, store: Store, meeting: Meeting, limit: float) -> bool:
    """Tells the peer what this end was told and reads the same of it. True if both can use NCCL."""
    names = ("source", "target") if end.is_source else ("target", "source")
    ours = {"signature": end.edge.signature(), "in_flight": meeting.microbatches_in_flight, "gpu": _gpu(meeting.device)}
    store.set(names[0], json.dumps(ours))
    try:
        store.wait([names[1]], timedelta(seconds=_remaining(limit)))
        theirs = json.loads(store.get(names[1]))
    except DistError as error:
        raise WaitTimedOut(_first_line(error)) from None
    for key in ("signature", "in_flight"):
        if ours[key] != theirs[key]:
            raise end.mismatch("connecting", f"this end has {key} {ours[key]}, the peer {theirs[key]}: not one plan")
    # NCCL refuses two ranks on one GPU; those go through the host.
    return bool(ours["gpu"]) and bool(theirs["gpu"]) and ours["gpu"] != theirs["gpu"]


def _gpu(device: torch.device) -> str:
    """What tells one GPU from all others; empty without one."""
    if device.type != "cuda" or not torch.distributed.is_nccl_available():
        return ""
    return str(torch.cuda.get_device_properties(device).uuid)


def _remaining(limit: float) -> float:
    remaining = limit - time.monotonic()
    if remaining <= 0:
        raise WaitTimedOut("no time is left to connect")
    return remaining


def _first_line(error: DaemonError | RuntimeError) -> str:
    return str(error).splitlines()[0]
