"""Plans of chains with chosen seconds, for schedules whose times can be reckoned by hand."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from planner.cost.inventory import Device, Inventory, LinkSpeed
from planner.partition.objective import PipelineSchedule, Training
from planner.plan.options import BalancedMode, PlanOptions
from planner.plan.plan import Plan, StageEdge, StageMemory
from tests.builders.plans import plan_of
from tests.builders.random_graphs import GraphWriter


def chain_plan(
    seconds: Sequence[float],
    schedule: PipelineSchedule = PipelineSchedule.ONE_F_ONE_B,
    *,
    microbatches: int = 8,
    backward_ratio: float = 2.0,
    devices: Sequence[Sequence[int]] | None = None,
    transfer_seconds: float = 0.0,
    gradient_bytes: int = 0,
) -> Plan:
    """One stage per entry, each sending one tensor of 48 bytes to the next, whose gradient comes back.

    `transfer_seconds`: of each message between two devices. Its own costs only: it does not verify.
    """
    count = len(seconds)
    writer = GraphWriter()
    value = writer.input()
    for _ in range(count):
        value = writer.multiply(value)
    plan = plan_of(writer.graph(value), range(count))
    copies = devices or [[stage] for stage in range(count)]
    names = tuple(f"d{index}" for index in range(max(max(own) for own in copies) + 1))
    return replace(
        plan,
        options=PlanOptions(
            mode=BalancedMode(),
            training=Training(schedule=schedule, microbatches=microbatches, backward_ratio=backward_ratio),
        ),
        inventory=Inventory(
            devices=tuple(Device(id=name, kind="cpu", host="h", memory_bytes=1 << 40) for name in names),
            default_link=LinkSpeed(bytes_per_second=1e30, latency_seconds=transfer_seconds),
        ),
        stages=tuple(
            replace(
                stage,
                device_ids=tuple(names[device] for device in copies[stage.index]),
                compute_seconds=own,
                backward_seconds=own * backward_ratio,
                memory=StageMemory(state_bytes=0, activation_bytes=0, buffer_bytes=0, gradient_bytes=gradient_bytes),
            )
            for stage, own in zip(plan.stages, seconds, strict=True)
        ),
        edges=tuple(_with_gradients(edge) for edge in plan.edges),
    )


def _with_gradients(edge: StageEdge) -> StageEdge:
    return replace(edge, gradient_value_ids=edge.value_ids)
