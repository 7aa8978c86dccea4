"""What plans count of an optimizer is what daemons keep for it."""

from __future__ import annotations

import copy

import pytest
import torch

from planner.client.export import export
from planner.client.training import ParameterGroup, bytes_per_parameter, optimizer_from_text
from planner.client.training.optimizers import Optimizer, optimizer_to_proto
from stage_daemon.worker.training_wire import optimizer_from_proto
from tests.stage_daemon.runtime.training.devices import train_on_threads
from tests.stage_daemon.runtime.training.modules import Tied, tokens
from tests.stage_daemon.runtime.training.test_step import cut_into

_SUM_BYTES = 4


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize(
    "text",
    ["sgd:lr=0.1", "sgd:lr=0.1,momentum=0.9", "adam:lr=0.1", "adamw:lr=0.1,amsgrad=true", "adafactor:lr=0.1"],
)
@pytest.mark.parametrize("master_weights", [False, True])
def test_as_many_bytes_are_kept_as_plans_count(text: str, dtype: torch.dtype, master_weights: bool) -> None:
    spec = optimizer_from_text(text)
    group = ParameterGroup(pattern="*.bias", learning_rate=0.2)
    optimizer = Optimizer(
        name=spec.name, learning_rate=0.1, options=spec.options, groups=(group,), master_weights=master_weights
    )
    module = Tied().to(dtype)
    exported = export(copy.deepcopy(module), tokens(4, 99))
    cluster = train_on_threads(
        module,
        tokens(4, 99),
        # On one device: a tie over two is kept by both.
        stage_of_node=cut_into(2),
        devices=(0, 0),
        exported=exported,
        loss="0",
        optimizer=optimizer_from_proto(optimizer_to_proto(optimizer)),
    )
    assert cluster.step([tokens(4, 1)] * 2, rates=(0.1, 0.2)).applied
    kept = num_elements = 0
    for interpreter in cluster.interpreters.values():
        for stepping, weight in interpreter.trained().values():
            tensors = stepping.kept(weight)
            kept += sum(one.nbytes for name, one in tensors.items() if name != "step")
            kept += _SUM_BYTES * weight.parameter.numel() if "master" in tensors else 0
            num_elements += weight.parameter.numel()
    assert bytes_per_parameter(optimizer, exported.graph) == pytest.approx(kept / num_elements, rel=1e-12)
