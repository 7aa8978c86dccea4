"""What tests ask of processes."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path

from protos.v1 import stage_daemon_pb2, stage_daemon_pb2_grpc

WAIT_SECONDS = 30.0


def worker_process_id(stub: stage_daemon_pb2_grpc.StageDaemonServiceStub, deployment_id: str) -> int:
    status = stub.GetDaemonStatus(stage_daemon_pb2.GetDaemonStatusRequest(), timeout=10)
    [found] = {stage.worker_process_id for stage in status.stages if stage.deployment_id == deployment_id}
    return int(found)


def is_gone(process_id: int) -> bool:
    """Ended, or a zombie that only waits to be counted."""
    try:
        return Path(f"/proc/{process_id}/stat").read_text().rpartition(")")[2].split()[0] == "Z"
    except FileNotFoundError:
        return True


def wait_for(condition: Callable[[], bool], what: str) -> None:
    deadline = time.monotonic() + WAIT_SECONDS
    while not condition():
        assert time.monotonic() < deadline, f"waited {WAIT_SECONDS} s for: {what}"
        time.sleep(0.05)
