"""A deployment whose stage is compiled: its outputs lie within a tolerance, which is told."""

from __future__ import annotations

import json

import pytest
import torch
from torch import nn

from planner.cli.__main__ import main
from planner.client import PlannerClient, export
from planner.client.local_cluster import LocalCluster
from planner.plan.options import SingleMode

pytestmark = [pytest.mark.services, pytest.mark.slow]

BATCH = torch.export.Dim("batch", min=1, max=64)


def test_it_answers_what_the_module_does_and_says_how_far_it_is(
    cluster: LocalCluster, client: PlannerClient, capsys: pytest.CaptureFixture[str]
) -> None:
    torch.manual_seed(0)
    module = nn.Sequential(nn.Linear(16, 32), nn.GELU(), nn.LayerNorm(32), nn.Linear(32, 4)).eval()
    graph = client.submit(export(module, (torch.ones(2, 16),), dynamic_shapes=({0: BATCH},)))
    plan = client.create_plan(graph.id, SingleMode())
    with pytest.raises(SystemExit) as ended:
        main(["deploy", plan.id, "--compile", "-o", "json", "--server", cluster.planner_address])
    printed = capsys.readouterr()
    assert not ended.value.code, printed.err
    deployment = client.get_deployment(json.loads(printed.out)["id"])
    assert deployment.compile
    assert [stage.compiled_difference is not None for stage in deployment.stages] == [True]
    assert all(stage.compiled_difference < 1e-4 for stage in deployment.stages)
    batches = [torch.rand(size, 16) for size in (2, 1, 33)]
    with client.pipeline(deployment.id) as pipeline:
        outputs = list(pipeline.run(batches))
    client.stop(deployment.id)
    for batch, output in zip(batches, outputs, strict=True):
        torch.testing.assert_close(output, module(batch))
