"""Whether the daemon that holds a device's lease is known to be gone, so that another start of it need not wait."""

from __future__ import annotations

import asyncio

from planner.dispatch.daemon_client import DaemonCallFailed, DaemonClient


async def has_ended(client: DaemonClient, incarnation_id: str, within_seconds: float) -> bool:
    """True where its host refuses connections to it, or another start of a daemon answers in its place.

    Whatever else keeps it from answering may be the network's fault, and it may be working: its lease decides.
    """
    host, _, port = client.address.rpartition(":")
    try:
        async with asyncio.timeout(within_seconds):
            _, writer = await asyncio.open_connection(host.strip("[]"), int(port))
            writer.close()
    except ConnectionRefusedError:
        return True
    except (OSError, TimeoutError):
        return False
    try:
        status = await client.status()
    except DaemonCallFailed:
        return False
    return bool(status.incarnation_id) and status.incarnation_id != incarnation_id
