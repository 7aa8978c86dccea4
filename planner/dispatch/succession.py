"""Whether a daemon is known to be gone, so that neither its deployments nor another start of it wait for its lease."""

from __future__ import annotations

import asyncio
import socket
import time

from access.addresses import parse_endpoint
from planner.dispatch.daemon_client import UNREACHABLE, DaemonCallFailed, DaemonClient
from planner.store.deployment_records import Failure, StagePlacement

# Of a process that is being killed the connections may break before its port is closed.
_FIRST_PAUSE_SECONDS = 0.02
_MOST_PAUSE_SECONDS = 1.0


async def has_ended(client: DaemonClient, incarnation_id: str) -> bool:
    """True where its host refuses connections to it, or another start of a daemon answers in its place.

    Whatever else keeps it from answering may be the network's fault, and it may be working: its lease decides.
    """
    try:
        async with asyncio.timeout(client.deadlines.status_seconds):
            if await _is_refused(client.address):
                return True
    except (OSError, TimeoutError):
        return False
    try:
        status = await client.status()
    except DaemonCallFailed:
        return False
    return bool(status.incarnation_id) and status.incarnation_id != incarnation_id


async def until_ended(client: DaemonClient, incarnation_id: str) -> None:
    """Returns once the daemon is known to have ended; asks when the connection breaks, and while there is none."""
    pause_seconds = _FIRST_PAUSE_SECONDS
    while True:
        began = time.monotonic()
        await client.until_disconnected()
        if await has_ended(client, incarnation_id):
            return
        was_connected = time.monotonic() - began > _MOST_PAUSE_SECONDS
        pause_seconds = _FIRST_PAUSE_SECONDS if was_connected else min(2 * pause_seconds, _MOST_PAUSE_SECONDS)
        await asyncio.sleep(pause_seconds)


def failure_of_end(placement: StagePlacement) -> Failure:
    """Of a deployment with that stage on a daemon that has ended."""
    return Failure(
        reason=UNREACHABLE,
        message=f"the daemon of {placement.device_id} at {placement.daemon_address} has ended",
        stage=placement.stage,
        device_id=placement.device_id,
    )


async def _is_refused(address: str) -> bool:
    """By each of the addresses that the host's name has. Raises OSError where one cannot be reached."""
    endpoint = parse_endpoint(address)
    resolved = await asyncio.get_running_loop().getaddrinfo(endpoint.host, endpoint.port, type=socket.SOCK_STREAM)
    for *_, one in resolved:
        try:
            _, writer = await asyncio.open_connection(*one[:2])
        except ConnectionRefusedError:
            continue
        writer.close()
        return False
    return True
