"""What a daemon tells Prometheus besides its calls: its device, its deployments, and what their stages did."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from pathlib import Path

from prometheus_client import Metric
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily

from protos.v1 import stage_daemon_pb2
from stage_daemon.control.device import LocalDevice
from stage_daemon.control.lifecycle import Phase
from stage_daemon.control.registration import Registration
from stage_daemon.control.supervisor import Supervisor

# By field of StageMetrics.
_OF_STAGES = {
    "num_microbatches": ("microbatches", "Microbatches that the stage has computed"),
    "busy_seconds": ("busy_seconds", "That the stage spent in passes and optimizer steps"),
    "receive_wait_seconds": ("receive_wait_seconds", "That the stage waited for inputs or peers"),
    "send_wait_seconds": ("send_wait_seconds", "That the stage spent giving results away"),
    "received_bytes": ("received_bytes", "Received from other stages"),
    "sent_bytes": ("sent_bytes", "Sent to other stages"),
}


async def daemon_state(device: LocalDevice, supervisor: Supervisor, registration: Registration) -> Iterable[Metric]:
    """A worker that is too busy to say what its stages did is left out of one scrape."""
    stages = await supervisor.metrics()
    return *_of_device(device, supervisor, registration), *_of_deployments(supervisor), *_of_stages(stages)


def _of_device(device: LocalDevice, supervisor: Supervisor, registration: Registration) -> Iterator[Metric]:
    labels = ("device_id", "kind")
    memory = GaugeMetricFamily("stage_daemon_memory_bytes", "Of the device, that plans may fill", labels=labels)
    memory.add_metric((device.id, device.kind), device.memory_bytes)
    yield memory
    registered = GaugeMetricFamily("stage_daemon_registered", "1 where the planner answered the last heartbeat")
    registered.add_metric((), float(registration.is_heard))
    yield registered
    profiling = GaugeMetricFamily("stage_daemon_profiling", "1 while the device is profiled")
    profiling.add_metric((), float(supervisor.is_profiling))
    yield profiling


def _of_deployments(supervisor: Supervisor) -> Iterator[Metric]:
    phases = [hosted.life.phase for hosted in supervisor.hosted]
    deployments = GaugeMetricFamily("stage_daemon_deployments", "Deployments on the device", labels=("state",))
    for phase in Phase:
        deployments.add_metric((phase.value,), phases.count(phase))
    yield deployments
    labels = ("deployment_id",)
    sessions = GaugeMetricFamily("stage_daemon_sessions", "Clients that read results", labels=labels)
    waiting = GaugeMetricFamily("stage_daemon_waiting_results", "Results that wait for their client", labels=labels)
    waiting_bytes = GaugeMetricFamily("stage_daemon_waiting_result_bytes", "Bytes of those results", labels=labels)
    for hosted in supervisor.hosted:
        identity = (hosted.life.deployment_id,)
        sessions.add_metric(identity, hosted.sessions.num_open)
        waiting.add_metric(identity, hosted.sessions.num_waiting_results)
        waiting_bytes.add_metric(identity, hosted.sessions.waiting_bytes)
    yield from (sessions, waiting, waiting_bytes)


def _of_stages(stages: Iterable[stage_daemon_pb2.StageMetrics]) -> Iterator[Metric]:
    of_stages = tuple(stages)
    for field, (name, meaning) in _OF_STAGES.items():
        family = CounterMetricFamily(f"stage_daemon_stage_{name}", meaning, labels=("deployment_id", "stage"))
        for stage in of_stages:
            family.add_metric((stage.deployment_id, str(stage.stage)), getattr(stage, field))
        yield family
    resident = GaugeMetricFamily(
        "stage_daemon_worker_resident_bytes", "Of the host's memory, that a worker has", labels=("deployment_id",)
    )
    for deployment_id, process_id in {(stage.deployment_id, stage.worker_process_id) for stage in of_stages}:
        resident.add_metric((deployment_id,), _resident_bytes(process_id))
    yield resident


def _resident_bytes(process_id: int) -> int:
    """0 of one that has just ended."""
    try:
        pages = Path(f"/proc/{process_id}/statm").read_text().split()[1]
    except (OSError, IndexError):
        return 0
    return int(pages) * os.sysconf("SC_PAGE_SIZE")
