"""A round of a user's work while services end at failpoints: it comes through, or the harness says what did not."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import TypeVar

import torch

from planner.client import PlannerClient, RecoveryPolicy
from planner.client.local_cluster import LocalCluster
from planner.client.records import DeploymentState
from planner.client.request_ids import new_request_id
from planner.errors import Unavailable
from planner.plan.options import CutMode
from tests.faults.history import History
from tests.forked_services import environment_as_before
from tests.waiting import WAIT_SECONDS

Answer = TypeVar("Answer")
FOLDER = Path(__file__).parent / "failpoints"
NUM_BATCHES = 30
PAUSE_SECONDS = 0.05


@contextmanager
def failpoint(point: str, stall_seconds: float = 3.0, once: Path | None = None) -> Iterator[None]:
    """What is started in the block has it, and what that starts: see failpoints/sitecustomize.py. `once`: a file that
    is not there yet, for one of all these processes alone."""
    with environment_as_before():
        os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, (str(FOLDER), os.environ.get("PYTHONPATH", ""))))
        os.environ["FAILPOINTS"], os.environ["FAILPOINT_STALL_SECONDS"] = point, str(stall_seconds)
        os.environ["FAILPOINT_ONCE"] = str(once or "")
        yield


def come_through(cluster: LocalCluster, client: PlannerClient, graph_id: str, module: torch.nn.Module) -> None:
    """Plans, deploys, streams and stops, while every service that ends is started again.

    Asserts that there is one plan more and no deployment, and that each batch was answered once, in order and right.
    """
    before = {plan.id for plan in client.list_plans()}
    # The services end with the thread that started them, so the work is done in the other one.
    with ThreadPoolExecutor(1) as pool:
        working = pool.submit(_work, client, graph_id, module)
        while not working.done():
            _start_what_ended(cluster)
            time.sleep(PAUSE_SECONDS)
        plan_id = working.result()
        _start_what_ended(cluster)
    assert {plan.id for plan in client.list_plans()} == before | {plan_id}
    assert list(client.list_deployments(active_only=True)) == []


def _start_what_ended(cluster: LocalCluster) -> None:
    if cluster.planner is not None and cluster.planner.exit_status is not None:
        cluster.start_planner()
    for index, daemon in enumerate(list(cluster.daemons.values())):
        if daemon.exit_status is not None:
            cluster.start_daemon(index)


def _work(client: PlannerClient, graph_id: str, module: torch.nn.Module) -> str:
    """The id of the plan. Each request is repeated, under one request id, until a planner answers."""
    planned, deployed = new_request_id(), new_request_id()
    mode = CutMode(module_paths=("first",))
    operation = _until_answered(lambda: client.start_plan(graph_id, mode, request_id=planned))
    plan_id = _until_answered(lambda: operation.wait(WAIT_SECONDS)).id
    deployment_id = _until_answered(
        lambda: client.deploy(plan_id, wait=False, recovery=RecoveryPolicy.RESTART, request_id=deployed)
    ).id
    _until_answered(lambda: _ready(client, deployment_id))
    history = History()
    with (
        _until_answered(lambda: client.pipeline(deployment_id, deadline_seconds=WAIT_SECONDS)) as pipeline,
        torch.no_grad(),
    ):
        history.asked.extend(torch.randn(1 + number % 5, 8) for number in range(NUM_BATCHES))
        history.answered.extend(enumerate(pipeline.run(history.asked)))
        assert history.faults(lambda x, y: torch.equal(module(x), y)) == []
    assert _until_answered(lambda: client.stop(deployment_id)).state is DeploymentState.STOPPED
    return plan_id


def _ready(client: PlannerClient, deployment_id: str) -> None:
    ends_at = time.monotonic() + WAIT_SECONDS
    while (deployment := client.get_deployment(deployment_id)).state is not DeploymentState.READY:
        assert not deployment.state.has_ended, deployment.failure
        assert time.monotonic() < ends_at, deployment
        time.sleep(PAUSE_SECONDS)


def _until_answered(call: Callable[[], Answer]) -> Answer:
    ends_at = time.monotonic() + WAIT_SECONDS
    while True:
        try:
            return call()
        except Unavailable:
            assert time.monotonic() < ends_at
            time.sleep(PAUSE_SECONDS)
