"""Leases: a daemon that has been silent for longer than its lease is gone."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import datetime, timedelta

from planner.store.deployment_records import Daemon, Deployment, Failure

# A daemon whose heartbeats come at a third of its lease may lose two in a row.
CHECKS_PER_LEASE = 8


def lease_end(now: datetime, lease_seconds: float) -> datetime:
    return now + timedelta(seconds=lease_seconds)


def overslept(since_last_check_seconds: float, lease_seconds: float) -> bool:
    """The planner itself stood still so long that silence says nothing about the daemons."""
    return since_last_check_seconds > lease_seconds / 2


def failure_of(deployment: Deployment, daemons: Iterable[Daemon], now: datetime) -> Failure | None:
    """Whether a daemon that the deployment stands on is gone or is another one now; names its first stage."""
    present = {daemon.device.id: daemon for daemon in daemons}
    for placement in deployment.stages:
        daemon = present.get(placement.device_id)
        if daemon is None or not daemon.live_at(now):
            return _failure(
                deployment,
                placement.device_id,
                "LEASE_EXPIRED",
                f"its daemon at {placement.daemon_address} stopped answering and its lease ran out",
            )
        if daemon.incarnation_id != placement.incarnation_id:
            return _failure(deployment, placement.device_id, "DAEMON_RESTARTED", "its daemon was started anew")
    return None


def describe_stages(deployment: Deployment, device_id: str) -> str:
    """ "stage 1 on node/cpu0", "stages 0, 2 on node/cpu0"."""
    stages = [str(placement.stage) for placement in deployment.stages_on(device_id)]
    return f"stage{'s' if len(stages) > 1 else ''} {', '.join(stages)} on {device_id}"


def _failure(deployment: Deployment, device_id: str, reason: str, what: str) -> Failure:
    return Failure(
        reason=reason,
        message=f"{describe_stages(deployment, device_id)}: {what}",
        stage=deployment.stages_on(device_id)[0].stage,
        device_id=device_id,
    )
