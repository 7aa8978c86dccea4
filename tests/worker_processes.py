"""Which process runs stages, for tests that stop or kill it."""

from __future__ import annotations

import grpc

from protos.v1 import stage_daemon_pb2, stage_daemon_pb2_grpc
from tests.waiting import WAIT_SECONDS, wait_for


def worker_at(daemon_address: str, deployment_id: str) -> int:
    """The id of the deployment's worker there, asked until it answers: a busy one is left out of a status."""
    process_ids = set[int]()

    def is_told() -> bool:
        status = stub.GetDaemonStatus(stage_daemon_pb2.GetDaemonStatusRequest(), timeout=WAIT_SECONDS)
        process_ids.update(one.worker_process_id for one in status.stages if one.deployment_id == deployment_id)
        return bool(process_ids)

    with grpc.insecure_channel(daemon_address) as channel:
        stub = stage_daemon_pb2_grpc.StageDaemonServiceStub(channel)
        wait_for(is_told, f"the process id of {deployment_id}'s worker at {daemon_address}")
    [process_id] = process_ids
    return process_id
