"""The only planner of a client is killed, or ended in order, and started again: calls and waits come through."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest
import torch

from planner.client import PlannerClient, export
from planner.client.local_cluster import LocalCluster
from planner.client.records import DeploymentEvent, DeploymentState
from planner.plan.options import CutMode
from tests.nightly import nightly
from tests.stage_daemon.control.daemons import SHAPES, two_layers
from tests.waiting import WAIT_SECONDS, wait_for

pytestmark = [pytest.mark.services, pytest.mark.slow, pytest.mark.timeout(600)]
MODE = CutMode(module_paths=("first",))


@dataclass(frozen=True, slots=True, kw_only=True)
class World:
    cluster: LocalCluster
    client: PlannerClient
    graph_id: str
    said: list[str]

    def end_planner(self, how: str) -> None:
        assert self.cluster.planner is not None
        if how == "killed":
            self.cluster.planner.kill()
        else:
            self.cluster.planner.stop(WAIT_SECONDS)

    @contextmanager
    def restarting(self, how: str) -> Iterator[ThreadPoolExecutor]:
        """What is asked within it is asked of nobody; the planner starts once the client has said so, or at the end."""
        self.end_planner(how)
        self.said.clear()
        with ThreadPoolExecutor(2) as pool:
            try:
                yield pool
                wait_for(lambda: bool(self.said))
            finally:
                self.cluster.start_planner()


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    lines: list[str] = []
    with (
        LocalCluster(
            data_dir=tmp_path_factory.mktemp("cluster"),
            memory_bytes=(2**29,) * 2,
            planner_arguments=("--lease-seconds", str(WAIT_SECONDS)),
            environment={"OMP_NUM_THREADS": "1", "PLANNER_STOP_GRACE_SECONDS": "0.1"},
        ) as cluster,
        PlannerClient(
            cluster.planner_address, timeout_seconds=WAIT_SECONDS, restart_seconds=WAIT_SECONDS, on_away=lines.append
        ) as client,
    ):
        graph = client.submit(export(two_layers(), (torch.zeros(2, 8),), dynamic_shapes=SHAPES))
        yield World(cluster=cluster, client=client, graph_id=graph.id, said=lines)


@pytest.mark.parametrize("how", ["killed", *nightly(["ended"])])
def test_a_plan_is_made_and_waited_for(world: World, how: str) -> None:
    with world.restarting(how) as pool:
        # Asked of nobody, and the same request is asked again.
        creating = pool.submit(world.client.create_plan, world.graph_id, MODE)
    plan = creating.result(WAIT_SECONDS)
    assert len(plan.stages) == 2
    operation = world.client.start_plan(world.graph_id, MODE)
    with world.restarting(how) as pool:
        waited_for = pool.submit(operation.wait, WAIT_SECONDS)
    assert waited_for.result(WAIT_SECONDS).id == operation.id
    assert len(world.said) == 1


@pytest.mark.parametrize("how", ["killed", *nightly(["ended"])])
def test_a_rollout_is_followed_to_its_end(world: World, how: str) -> None:
    plan = world.client.create_plan(world.graph_id, MODE)
    is_restarted: list[bool] = []

    def restart(_: DeploymentEvent) -> None:
        if not is_restarted:
            is_restarted.append(True)
            world.end_planner(how)
            world.cluster.start_planner()

    deployment = world.client.deploy(plan.id, on_event=restart)
    assert deployment.state is DeploymentState.READY
    assert is_restarted
    assert len(list(world.client.list_deployments(plan_id=plan.id))) == 1
    world.client.stop(deployment.id)


@pytest.mark.parametrize("command", ["plan list", "plan create --graph GRAPH --mode cut --cut first"])
def test_a_command_waits_and_says_so(world: World, command: str, tmp_path: Path) -> None:
    words = command.replace("GRAPH", world.graph_id).split()
    before = len(list(world.client.list_plans()))
    world.end_planner("killed")
    try:
        environment = {**os.environ, "PLANNER_SERVER": world.client.address, "PLANNER_CONFIG": str(tmp_path / "none")}
        environment["PLANNER_RESTART_SECONDS"] = str(WAIT_SECONDS)
        running = subprocess.Popen(
            [sys.executable, "-m", "planner.cli", *words],
            env=environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        assert running.stderr is not None
        first_line = running.stderr.readline()
    finally:
        world.cluster.start_planner()
    _, errors = running.communicate(timeout=WAIT_SECONDS)
    assert first_line.startswith(f"no planner-server answers at {world.client.address}; asking again for")
    assert running.returncode == 0, errors
    assert "asking again" not in errors
    num_plans = len(list(world.client.list_plans())) - before
    assert num_plans == words.count("create")
