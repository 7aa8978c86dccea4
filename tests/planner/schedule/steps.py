"""Plans of chains with chosen seconds, for schedules whose times can be reckoned by hand."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from planner.cost.inventory import Device, Inventory, LinkSpeed
from planner.partition.objective import PipelineSchedule, Training
from planner.plan.options import BalancedMode, PlanOptions
from planner.plan.plan import Plan, StageEdge, StageMemory, TieGroup
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


def training_plan(
    schedule: PipelineSchedule,
    *,
    devices: Sequence[Sequence[int]],
    pairs: Sequence[tuple[int, int]],
    microbatches: int,
    ties: Sequence[Sequence[int]] = (),
    frozen: Sequence[int] = (),
) -> Plan:
    """Stages on these devices; for each pair of stages an edge of what its source makes. It does not verify.

    `ties`: stages that share a trained state, group by group. `frozen`: stages without any trained state. A gradient
    comes back over an edge behind which, looking back, something is trained.
    """
    count = len(devices)
    plan = chain_plan([1.0] * count, schedule, microbatches=microbatches, devices=devices, gradient_bytes=8)
    has_gradient = [stage not in frozen for stage in range(count)]
    for source, target in sorted(pairs):
        has_gradient[target] |= has_gradient[source]
    return replace(
        plan,
        stages=tuple(
            replace(stage, memory=replace(stage.memory, gradient_bytes=0)) if stage.index in frozen else stage
            for stage in plan.stages
        ),
        edges=tuple(
            StageEdge(
                source_stage=source,
                target_stage=target,
                value_ids=(source + 2,),
                size_bytes=48,
                gradient_value_ids=(source + 2,) if has_gradient[source] else (),
            )
            for source, target in sorted(pairs)
        ),
        tie_groups=tuple(
            TieGroup(
                id=index + 1,
                members=tuple((f"weight.{index}", stage) for stage in stages),
                size_bytes=4,
                requires_grad=True,
            )
            for index, stages in enumerate(ties)
        ),
    )


def _with_gradients(edge: StageEdge) -> StageEdge:
    return replace(edge, gradient_value_ids=edge.value_ids)
