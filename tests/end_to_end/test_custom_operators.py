"""Operators of torch.library through the whole system: run where the daemon's operator allows them, else refused."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch
from torch import nn

from planner.client import PlannerClient, export
from planner.client.local_cluster import LocalCluster
from planner.errors import DeploymentFailed
from planner.graph.ir import OperatorKind
from planner.plan.options import CutMode, SingleMode
from tests.builders.custom_operators import ALLOWED, MODULE, scaled_gelu, shifted
from tests.waiting import WAIT_SECONDS

pytestmark = pytest.mark.services
BATCH = torch.export.Dim("batch", min=1, max=16)


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalCluster]:
    """Of this module alone: to register an operator takes a worker as long as all else that it does before it runs."""
    with LocalCluster(
        data_dir=tmp_path_factory.mktemp("custom"),
        memory_bytes=(256 << 20,) * 2,
        planner_arguments=("--lease-seconds", str(WAIT_SECONDS)),
        daemon_arguments=("--custom-operators", f"{MODULE}={ALLOWED}"),
        environment={"OMP_NUM_THREADS": "1"},
    ) as running:
        yield running


class Allowed(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(3, 4), nn.Linear(4, 2)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return scaled_gelu(self.second(scaled_gelu(self.first(x))), 0.5)


class Unknown(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return shifted(x)


def test_an_operator_that_is_allowed_runs(client: PlannerClient) -> None:
    module = Allowed().eval()
    model = export(module, (torch.zeros(2, 3),), dynamic_shapes={"x": {0: BATCH}})
    kinds = {node.operator.name: node.operator.kind for node in model.graph.nodes}
    assert kinds[ALLOWED] is OperatorKind.CUSTOM
    graph = client.submit(model)
    plan = client.create_plan(graph.id, CutMode(module_paths=("first",)))
    deployment = client.deploy(plan.id)
    try:
        with client.pipeline(deployment.id) as pipeline, torch.no_grad():
            for rows in (1, 5):
                batch = torch.randn(rows, 3)
                assert torch.equal(pipeline(batch), module(batch))
    finally:
        client.stop(deployment.id)


def test_an_operator_that_is_allowed_is_timed(client: PlannerClient) -> None:
    graph = client.submit(export(Allowed().eval(), (torch.zeros(2, 3),)))
    [profile] = client.profile_graph(graph.id, device_kinds=["cpu"], repetitions=1)
    timed = dict(client.get_profile(profile.id).times.seconds)
    nodes = client.read_graph(graph.id).nodes
    custom = [index for index, node in enumerate(nodes) if node.operator.name == ALLOWED]
    assert len(custom) == 2
    assert all(timed[index] > 0 for index in custom)


def test_an_operator_that_nobody_allowed_is_refused_with_what_to_do(client: PlannerClient) -> None:
    graph = client.submit(export(Unknown(), (torch.zeros(2, 3),)))
    plan = client.create_plan(graph.id, SingleMode())
    with pytest.raises(DeploymentFailed, match=r"--custom-operators MODULE='?planner_tests::shifted\.default"):
        client.deploy(plan.id)
