"""What a planner tells Prometheus besides its calls: how plans, deployments and devices stand, how plans are made."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime

from prometheus_client import CollectorRegistry, Histogram, Metric
from prometheus_client.core import GaugeMetricFamily

from access.metrics import observed
from planner.store.claims import database_now
from planner.store.daemons import list_live_daemons
from planner.store.database import Database
from planner.store.deployments import count_deployments, promised_bytes
from planner.store.operations import count_operations

# Plans take from hundredths of a second to an hour.
_SECONDS = (0.01, 0.03, 0.1, 0.3, 1.0, 3.0, 10.0, 30.0, 100.0, 300.0, 1000.0, 3600.0)


class PlanMetrics:
    """Of the plans that this planner computes."""

    def __init__(self, registry: CollectorRegistry, num_workers: int) -> None:
        self._wait = Histogram(
            "planner_plan_wait_seconds",
            "From the moment a plan is asked for until it is computed",
            registry=registry,
            buckets=_SECONDS,
        )
        self._busy = Histogram(
            "planner_plan_busy_seconds",
            "That a worker had a plan for",
            ("outcome",),
            registry=registry,
            buckets=_SECONDS,
        )
        self._num_workers = num_workers
        self._num_busy = 0

    @contextmanager
    def observe(self, asked_at: datetime) -> Iterator[Callable[[str], None]]:
        """While a plan is computed; yields what takes the reason of one that fails."""
        self._wait.observe((datetime.now(UTC) - asked_at).total_seconds())
        self._num_busy += 1
        try:
            with observed(lambda outcome, seconds: self._busy.labels(outcome).observe(seconds)) as fails:
                yield fails
        finally:
            self._num_busy -= 1

    def workers(self) -> Iterable[Metric]:
        workers = GaugeMetricFamily("planner_plan_workers", "Plans computed at the same time at most")
        workers.add_metric((), self._num_workers)
        busy = GaugeMetricFamily("planner_plan_workers_busy", "Plans that are being computed")
        busy.add_metric((), self._num_busy)
        return workers, busy


async def planner_state(database: Database) -> Iterable[Metric]:
    """From the database: all planners of one tell the same."""
    async with database.reading() as session:
        daemons = await list_live_daemons(session, await database_now(session))
        promised = await promised_bytes(session, [daemon.device.id for daemon in daemons])
        deployments, operations = await count_deployments(session), await count_operations(session)
    labels = ("device_id", "kind", "host")
    memory = GaugeMetricFamily("planner_device_memory_bytes", "That plans may fill, of live devices", labels=labels)
    promised_family = GaugeMetricFamily(
        "planner_device_promised_bytes", "Of it, what active deployments plan", labels=labels
    )
    devices = GaugeMetricFamily("planner_devices", "Devices whose daemons hold a lease", labels=("kind",))
    kinds = [daemon.device.kind for daemon in daemons]
    for kind in dict.fromkeys(kinds):
        devices.add_metric((kind,), kinds.count(kind))
    for device in (daemon.device for daemon in daemons):
        memory.add_metric((device.id, device.kind, device.host), device.memory_bytes)
        promised_family.add_metric((device.id, device.kind, device.host), sum(promised.get(device.id, {}).values()))
    by_state = GaugeMetricFamily("planner_deployments", "Deployments that are remembered", labels=("state",))
    for deployment_state, number in deployments.items():
        by_state.add_metric((deployment_state.value,), number)
    plans = GaugeMetricFamily("planner_plan_operations", "Plans asked for; pending ones wait", labels=("state",))
    for operation_state, number in operations.items():
        plans.add_metric((operation_state.value,), number)
    return devices, memory, promised_family, by_state, plans
