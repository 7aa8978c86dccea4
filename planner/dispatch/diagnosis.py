"""Who broke a deployment, when those who noticed are only its neighbours: ask every daemon."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from dataclasses import replace

from planner.dispatch.daemon_client import UNREACHABLE, DaemonCallFailed, DaemonClient
from planner.dispatch.messages import failure_from_proto
from planner.dispatch.rollout import is_indirect
from planner.store.deployment_records import Failure
from protos.v1 import planner_pb2, stage_daemon_pb2

# A neighbour may notice a death before the dead worker's own supervisor has.
ROUNDS = 4
ROUND_SECONDS = 0.25


async def find_cause(deployment_id: str, clients: Mapping[str, DaemonClient]) -> Failure | None:
    """Of the first daemon that nobody listens for or whose worker died by itself; None if nobody stands out.

    A daemon that is only slow to answer is no cause: it may be busy, and it is alive.
    """
    for round_index in range(ROUNDS):
        if round_index:
            await asyncio.sleep(ROUND_SECONDS)
        failures = await asyncio.gather(*(_ask(deployment_id, client) for client in clients.values()))
        causes = [failure for failure in failures if failure is not None]
        if causes:
            return causes[0]
    return None


async def _ask(deployment_id: str, client: DaemonClient) -> Failure | None:
    try:
        status = await client.status()
    except DaemonCallFailed as error:
        return error.failure if error.failure.reason == UNREACHABLE else None
    failure = own_failure(deployment_id, status)
    return replace(failure, device_id=failure.device_id or client.device_id) if failure else None


def own_failure(deployment_id: str, status: stage_daemon_pb2.GetDaemonStatusResponse) -> Failure | None:
    """What broke on this daemon itself, leaving out what it only saw of its peers."""
    for deployment in status.deployments:
        if deployment.deployment_id != deployment_id or deployment.state != planner_pb2.WORKER_STATE_FAILED:
            continue
        failure = failure_from_proto(deployment.failure)
        if not is_indirect(failure):
            return failure
    return None
