"""Model families are trained as one process trains them: skip edges, encoders read by every layer, ties, branches."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
from torch import nn

from planner.client.pytree import flatten_inputs
from planner.partition.objective import PipelineSchedule
from planner.plan.options import Routing
from tests.builders.registry import FAMILIES
from tests.stage_daemon.runtime.training.devices import train_on_threads
from tests.stage_daemon.runtime.training.eager import Eager
from tests.stage_daemon.runtime.training.test_step import cut_into

pytestmark = pytest.mark.slow


class Squared(nn.Module):
    """The mean square of what the model returns first."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, *args: Any, **kwargs: Any) -> torch.Tensor:
        output = self.model(*args, **kwargs)
        if not isinstance(output, torch.Tensor):
            output = output[0] if isinstance(output, tuple) else next(iter(output.values()))
        return output.pow(2).mean()


@pytest.mark.parametrize(
    ("family", "sizes", "devices", "schedule", "routing"),
    [
        ("gpt2", {"layers": 2}, (0, 1, 2), PipelineSchedule.ZERO_BUBBLE, Routing.DIRECT),
        ("t5", {"layers": 1}, (0, 1, 2, 3), PipelineSchedule.ONE_F_ONE_B, Routing.RELAY),
        ("unet", {"depth": 2}, (0, 1, 0, 1), PipelineSchedule.INTERLEAVED, Routing.DIRECT),
        ("mixture", {"blocks": 1}, (0, 1), PipelineSchedule.GPIPE, Routing.DIRECT),
    ],
)
def test_three_steps_equal_one_process(
    family: str, sizes: dict[str, int], devices: tuple[int, ...], schedule: PipelineSchedule, routing: Routing
) -> None:
    case = FAMILIES[family](**sizes)
    module = Squared(case.module).eval()
    cluster = train_on_threads(
        copy.deepcopy(module),
        case.args,
        kwargs=dict(case.kwargs),
        stage_of_node=cut_into(len(devices)),
        devices=devices,
        schedule=schedule,
        routing=routing,
        microbatches=3,
    )
    optimizer = torch.optim.SGD(module.parameters(), lr=0.1, momentum=0.9)
    eager = Eager(Called(module, dict(case.kwargs)), optimizer)
    leaves = flatten_inputs(cluster.graph, case.args, case.kwargs)
    for _ in range(3):
        outcome = cluster.step([leaves] * 3, rate=1e-2)
        losses, norm = eager.step([case.args] * 3, rate=1e-2)
        assert [float(output[0]) for output in outcome.outputs.values()] == pytest.approx(losses, rel=1e-5)
        assert outcome.gradient_norm == pytest.approx(norm, rel=1e-5)
    expected = dict(module.named_parameters(remove_duplicate=False))
    for name, tensor in cluster.states().items():
        torch.testing.assert_close(tensor, expected[name].detach(), rtol=1e-5, atol=1e-6)


class Called(nn.Module):
    """The module with its keyword arguments."""

    def __init__(self, module: nn.Module, kwargs: dict[str, Any]) -> None:
        super().__init__()
        self.module = module
        self.kwargs = kwargs

    def forward(self, *args: Any) -> torch.Tensor:
        loss: torch.Tensor = self.module(*args, **self.kwargs)
        return loss
