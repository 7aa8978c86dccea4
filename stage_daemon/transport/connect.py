"""Opens every edge of a worker, in the one order that cannot deadlock, and proves each before it is used."""

from __future__ import annotations

import contextlib
import json
import os
import socket
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any

import torch
from torch._C._distributed_c10d import PrefixStore, Store

from access.addresses import parse_endpoint
from access.errors import WrongAddress
from access.host import host_identity
from access.streams import StreamTls
from access.tickets import purpose_key
from stage_daemon.errors import InvalidRequest, Unavailable
from stage_daemon.transport.channel import FailureCallback, ReceiveChannel, SendChannel
from stage_daemon.transport.edge import Edge, End
from stage_daemon.transport.header import HeaderFormat
from stage_daemon.transport.lifeline import Lifeline
from stage_daemon.transport.local import local_channel
from stage_daemon.transport.nccl import connect_nccl
from stage_daemon.transport.pipe import PeerGone, WaitTimedOut
from stage_daemon.transport.pulse import Pulse
from stage_daemon.transport.sockets import Listener, Sockets, connect, local_address_towards
from stage_daemon.transport.store import MeetingStore
from stage_daemon.transport.stream import Link, StreamReceiver, StreamSender
from stage_daemon.transport.streams import copies_of

_SOURCE_RANK = 0
_TARGET_RANK = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Meeting:
    """Where and how the workers of one generation meet. `deadline_seconds` is for each wait, connecting included.

    Two ends of equal `host` share memory. `secret` is the deployment's. With `tls`, other hosts are spoken to over it.
    """

    address: str
    deadline_seconds: float
    microbatches_in_flight: int
    device: torch.device
    on_failure: FailureCallback
    max_tensor_bytes: int
    host: str = field(default_factory=host_identity)
    secret: bytes = b""
    tls: StreamTls | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Channels:
    """By edge id. `pulse` already beats. `store` is kept for what torch still asks of it."""

    senders: dict[int, SendChannel]
    receivers: dict[int, ReceiveChannel]
    pulse: Pulse
    store: Store | None


def host_memory_bytes() -> int:
    """No tensor larger than this can be meant."""
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")


def open_channels(edges: Sequence[Edge], device_id: str, meeting: Meeting) -> Channels:
    """Returns once a message has crossed every edge in both directions. `device_id` is this worker's.

    All workers open edges by ascending id, so the lowest unopened one always has both its ends waiting. Raises
    EdgeTimeout, Unavailable or EdgeMismatch, naming the edge.
    """
    senders: dict[int, SendChannel] = {}
    receivers: dict[int, ReceiveChannel] = {}
    lifelines: list[Lifeline] = []
    limit = time.monotonic() + meeting.deadline_seconds
    copies = copies_of(meeting.device)
    store = _meet(meeting) if any(not _is_local(edge) for edge in edges) else None
    for edge in sorted(edges, key=lambda edge: edge.id):
        if _is_local(edge):
            senders[edge.id], receivers[edge.id] = local_channel(edge, _in_flight(edge, meeting))
            continue
        assert store is not None
        end = End(edge=edge, is_source=edge.source_device_id == device_id)
        link, lifeline = _open_end(end, store, meeting, limit)
        lifelines.append(lifeline)
        format = HeaderFormat(edge=edge, max_tensor_bytes=meeting.max_tensor_bytes)
        if end.is_source:
            senders[edge.id] = StreamSender(format, link, lifeline, _in_flight(edge, meeting), copies)
        else:
            receivers[edge.id] = StreamReceiver(
                format, link, lifeline, _in_flight(edge, meeting), meeting.device, copies
            )
    pulse = Pulse(lifelines, meeting.deadline_seconds)
    pulse.start()
    return Channels(senders=senders, receivers=receivers, pulse=pulse, store=store)


def _in_flight(edge: Edge, meeting: Meeting) -> int:
    return edge.in_flight or meeting.microbatches_in_flight


def _is_local(edge: Edge) -> bool:
    return edge.source_device_id == edge.target_device_id


def _meet(meeting: Meeting) -> Store:
    key = purpose_key(meeting.secret, "rendezvous")
    try:
        endpoint = parse_endpoint(meeting.address)
        return MeetingStore(endpoint.host, endpoint.port, key, meeting.deadline_seconds)
    except WrongAddress as error:
        raise InvalidRequest(f"rendezvous: {error.message}") from None
    except (WaitTimedOut, PeerGone) as error:
        raise Unavailable(
            f"no rendezvous at {meeting.address} within {meeting.deadline_seconds:g} s: {error}",
            address=meeting.address,
        ) from None


def _open_end(end: End, store: Store, meeting: Meeting, limit: float) -> tuple[Link, Lifeline]:
    action = "connecting"
    try:
        return _link(end, store, meeting, limit)
    except WaitTimedOut:
        raise end.timed_out(action, meeting.deadline_seconds) from None
    except PeerGone as error:
        raise end.lost(action, str(error)) from None


def _link(end: End, store: Store, meeting: Meeting, limit: float) -> tuple[Link, Lifeline]:
    edge = end.edge
    store = PrefixStore(f"{edge.deployment_id}/{edge.generation}/edge{edge.id}", store)
    ours, theirs = _exchange(end, store, meeting, limit)
    same_host = bool(ours["host"]) and ours["host"] == theirs["host"]
    sockets = _connect(end, store, meeting, limit, same_host)
    # NCCL refuses two ranks on one GPU; those go through the host.
    over_nccl = bool(ours["gpu"]) and bool(theirs["gpu"]) and ours["gpu"] != theirs["gpu"]
    rank = _SOURCE_RANK if end.is_source else _TARGET_RANK
    link = Link(
        connection=sockets.data,
        shares_memory=same_host,
        pipe=connect_nccl(
            store,
            "payload",
            rank=rank,
            device=meeting.device,
            connect_seconds=_remaining(limit),
            deadline_seconds=meeting.deadline_seconds,
        )
        if over_nccl
        else None,
    )

    def wake() -> None:
        with contextlib.suppress(OSError):
            sockets.data.shutdown(socket.SHUT_RDWR)

    return link, Lifeline(end, meeting.deadline_seconds, meeting.on_failure, sockets.life, wake)


def _exchange(end: End, store: Store, meeting: Meeting, limit: float) -> tuple[dict[str, Any], dict[str, Any]]:
    """Tells the peer what this end was told and reads the same of it."""
    names = ("source", "target") if end.is_source else ("target", "source")
    ours = {
        "signature": end.edge.signature(),
        "in_flight": _in_flight(end.edge, meeting),
        "gpu": _gpu(meeting.device),
        "host": meeting.host,
        "tls": meeting.tls is not None,
    }
    store.set(names[0], json.dumps(ours))
    theirs = _read(store, names[1], limit)
    for key in ("signature", "in_flight"):
        if ours[key] != theirs[key]:
            raise end.mismatch("connecting", f"this end has {key} {ours[key]}, the peer {theirs[key]}: not one plan")
    if ours["tls"] != theirs["tls"]:
        with_tls, without = ("this end", "the peer") if ours["tls"] else ("the peer", "this end")
        raise end.mismatch(
            "connecting", f"{with_tls} speaks TLS and {without} plain text: start both daemons with certificates"
        )
    return ours, theirs


def _connect(end: End, store: Store, meeting: Meeting, limit: float, same_host: bool) -> Sockets:
    def remaining() -> float:
        return _remaining(limit)

    if end.is_source:
        listening = _read(store, "listening", limit)
        return connect(listening["address"], listening["token"], remaining, meeting.tls)
    tcp_host = None if same_host else local_address_towards(parse_endpoint(meeting.address))
    with Listener(tcp_host, meeting.tls) as listener:
        store.set("listening", json.dumps({"address": listener.address, "token": listener.token}))
        return listener.accept(remaining)


def _read(store: Store, key: str, limit: float) -> dict[str, Any]:
    store.wait([key], timedelta(seconds=_remaining(limit)))
    document: dict[str, Any] = json.loads(store.get(key))
    return document


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
