"""What studies of plans look like to people: differences, explanations, simulations."""

from __future__ import annotations

from rich.console import Group, RenderableType
from rich.text import Text

from planner.cli.quantities import format_bytes, format_seconds
from planner.cli.tables import plain_table
from planner.plan.diff import PlanDiff
from planner.plan.plan import Plan
from planner.schedule.timeline import Simulation


def diff_table(before: str, after: str, diff: PlanDiff) -> RenderableType:
    """The figures side by side; below, which nodes move and which bytes."""
    figures = plain_table("", before, after, "change")
    figures.add_row("stages", *map(str, diff.num_stages), f"{diff.num_stages[1] - diff.num_stages[0]:+d}")
    for name, (one, other) in (("bottleneck", diff.bottleneck_seconds), ("latency", diff.latency_seconds)):
        figures.add_row(name, format_seconds(one), format_seconds(other), change(one, other))
    one_step, other_step = diff.step_seconds
    if one_step is not None and other_step is not None:
        figures.add_row("step", format_seconds(one_step), format_seconds(other_step), change(one_step, other_step))
    share = diff.num_nodes_moved / diff.num_nodes if diff.num_nodes else 0.0
    lines = [Text(f"{diff.num_nodes_moved:,} of {diff.num_nodes:,} nodes move ({share:.1%})")]
    lines += [
        Text(f"  {', '.join(move.source_device_ids)} → {', '.join(move.target_device_ids)}: {move.num_nodes:,} nodes")
        for move in diff.node_moves
    ]
    lines.append(Text(f"{format_bytes(diff.moved_bytes)} of state to move"))
    lines += [
        Text(
            f"  {move.source_device_id or 'nowhere'} → {move.target_device_id}: "
            f"{move.num_states:,} tensors, {format_bytes(move.size_bytes)}"
        )
        for move in diff.state_moves
    ]
    lines += [Text(f"  {device} lets go of {format_bytes(size)}") for device, size in diff.dropped_bytes]
    return Group(figures, *lines)


def change(before: float, after: float) -> str:
    return f"{after / before - 1:+.1%}" if before else "-"


def simulation_table(plan: Plan, schedule: str, simulation: Simulation) -> RenderableType:
    """One row per device; below, the whole beside what the plan promised."""
    makespan = simulation.makespan_seconds
    table = plain_table(
        "device",
        "computing",
        "transfers",
        "waiting",
        "busy",
        title=f"{schedule}, {simulation.microbatches} microbatches",
    )
    for column in table.columns[1:]:
        column.justify = "right"
    for device in simulation.devices:
        share = (device.busy_seconds + device.communication_seconds) / makespan if makespan else 0.0
        table.add_row(
            device.device_id,
            format_seconds(device.busy_seconds),
            format_seconds(device.communication_seconds),
            format_seconds(device.waiting_seconds),
            f"{share:.1%}",
        )
    lines = [f"{format_seconds(makespan)} in all, {simulation.bubble_share:.1%} of device time is bubble"]
    if plan.options.training is None and simulation.seconds_between_outputs:
        lines.append(
            f"a result every {format_seconds(simulation.seconds_between_outputs)} once it is steady "
            f"(the plan says {format_seconds(plan.bottleneck_seconds)}), "
            f"the first after {format_seconds(simulation.output_seconds[0])}"
        )
    elif plan.step_seconds is not None:
        lines.append(f"the plan says {format_seconds(plan.step_seconds)} for its own schedule and microbatches")
    return Group(table, *map(Text, lines))
