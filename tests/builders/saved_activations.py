"""What a module keeps for its backward pass: as torch tells, as its nodes were measured, as a plan says."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import nn

from planner.cost.measured import MeasuredTimes
from planner.graph.ir import Graph
from planner.graph.saved import Saved
from planner.partition.objective import PipelineSchedule, Training
from planner.plan.options import BalancedMode, PlanOptions
from planner.plan.plan import Plan
from planner.planning import make_plan
from planner.wire.graph import graph_to_bytes
from protos.v1 import graph_pb2
from stage_daemon.worker.profile.bench import Bench, Unmeasured
from stage_daemon.worker.profile.clock import Effort
from tests.builders.plans import inventory_of

_ONCE = Effort(repetitions=1, warmup=1)


def kept_bytes(module: nn.Module, *args: Any, **kwargs: Any) -> int:
    """Of all that is no parameter, by torch's own hooks."""
    kept: list[torch.Tensor] = []
    with torch.autograd.graph.saved_tensors_hooks(lambda one: kept.append(one) or one, lambda one: one):
        module(*args, **kwargs)
    parameters = {one.untyped_storage().data_ptr() for one in module.parameters()}
    storages = {one.untyped_storage().data_ptr(): one.untyped_storage().nbytes() for one in kept}
    return sum(size for address, size in storages.items() if address not in parameters)


def measured_saved(graph: Graph) -> dict[int, Saved]:
    """By node, of those that a backward pass goes through and that can be run back alone."""
    bench = Bench(graph_pb2.Graph.FromString(graph_to_bytes(graph)), {}, torch.device("cpu"), _ONCE, backward=True)
    saved = {}
    for one in bench.distinct:
        try:
            backward = bench.measure_backward(one)
        except Unmeasured:
            continue
        if backward is not None:
            _, kept = backward
            record = Saved(inputs=kept.inputs, outputs=kept.outputs, within_bytes=kept.within_bytes)
            saved |= dict.fromkeys(one.nodes, record)
    return saved


def plan_of_one_stage(graph: Graph, saved: Mapping[int, Saved]) -> Plan:
    """For a training step of one microbatch; what is kept is as measured, else by rule."""
    backward = tuple((index, 1e-3) for index in sorted(saved))
    times = MeasuredTimes(
        graph_id="",
        device_kind="cpu",
        seconds=tuple((index, 1e-3) for index in range(len(graph.nodes))),
        backward_seconds=backward,
        saved=tuple((index, saved[index]) for index, _ in backward),
    )
    training = Training(schedule=PipelineSchedule.GPIPE, microbatches=1)
    options = PlanOptions(mode=BalancedMode(num_stages=1), training=training)
    return make_plan(graph, "id", inventory_of(1), options, [times])
