"""A plan in sentences: why it is cut where it is, what each stage costs and what crosses."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from planner.partition.describe import describe_bytes, describe_memory_parts, describe_seconds
from planner.partition.objective import UNSPLIT_SCHEDULES, Objective
from planner.plan.depths import held_up
from planner.plan.edges import sent_ahead
from planner.plan.options import OptimalMode
from planner.plan.plan import Plan, Stage, StageEdge
from planner.plan.update import after_passes


@dataclass(frozen=True, slots=True, kw_only=True)
class CutAlternative:
    """The next best place for a cut: `after` a node, with the objective's `value` there, and its change as a share.

    No node: no other place fits memory.
    """

    cut_index: int
    after: str
    value: float
    change: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Alone:
    """The device that would be fastest with the whole program on it, and what a training step takes there."""

    device_id: str
    step_seconds: float


def explain(plan: Plan, alternatives: Sequence[CutAlternative] = (), alone: Alone | None = None) -> tuple[str, ...]:
    """Lines to print: the plan, each stage with the edges that leave it, states held twice."""
    next_best = {alternative.cut_index: alternative for alternative in alternatives}
    return (
        *_headline(plan),
        *_pipelining(plan, alone),
        *([held.text()] if (held := held_up(plan)) else []),
        *(line for stage in plan.stages for line in _stage(plan, stage, next_best)),
        *_ties(plan),
    )


def _headline(plan: Plan) -> Iterator[str]:
    name = plan.graph_name or plan.graph_id
    yield (
        f"{name}: {_count(len(plan.stages), 'stage')} of {_count(plan.num_nodes, 'node')}, "
        f"mode {plan.options.mode.name}, {plan.options.routing.value} routing"
    )
    for source in plan.cost_sources:
        yield f"seconds of {source.device_kind}: {source.text()}"
        if source.message_seconds is not None and len(plan.stages) > 1:
            ends = f"an end of a message between two {source.device_kind} of a host"
            in_turn = ", in steps one end after the other" if plan.step_seconds is not None else ""
            yield f"{ends}: {describe_seconds(source.message_seconds)}, as deliveries were measured{in_turn}"
        if source.norm_bytes_per_second and source.optimizer_bytes_per_second and plan.step_seconds is not None:
            norms, states = (rate / 1e9 for rate in (source.norm_bytes_per_second, source.optimizer_bytes_per_second))
            yield (
                f"{source.device_kind} reads norms of gradients at {norms:.3g} GB/s and updates states at {states:.3g} "
                "GB/s, as measured"
            )
    yield from plan.shares_of_cores
    if plan.symbol_values:
        yield f"planned for {', '.join(f'{symbol} = {size}' for symbol, size in plan.symbol_values)}"
    yield (
        f"a result every {describe_seconds(plan.bottleneck_seconds)} ({_busiest_device(plan)} is the bottleneck), "
        f"a lone batch takes {describe_seconds(plan.latency_seconds)}"
    )
    if plan.step_seconds is not None:
        update = after_passes(plan)
        parts = "the norm of gradients, its agreement and the optimizer"
        after = f", {describe_seconds(update)} of it for {parts}" if update else ""
        yield f"a training step takes {describe_seconds(plan.step_seconds)}{after}"
    if plan.lower_bound_seconds is not None:
        objective = plan.options.objective
        yield (
            f"objective {objective.value}: no plan that the mode allows does better than "
            f"{_BOUNDS[objective](plan.lower_bound_seconds)}; this one is {_closeness(plan)}"
        )


def _pipelining(plan: Plan, alone: Alone | None) -> Iterator[str]:
    """Whether bubbles and messages leave anything of what several devices are for."""
    if plan.step_seconds is None or alone is None:
        return
    if len(plan.stages) == 1:
        was_searched = plan.options.mode.name == OptimalMode.name and plan.options.objective is Objective.STEP_TIME
        if was_searched and len(plan.inventory.devices) > len(plan.stages[0].device_ids):
            yield f"do not pipeline: no stages on the {len(plan.inventory.devices)} devices were found that take less"
        return
    alone_takes = (
        f"{alone.device_id} holds the whole program and takes {describe_seconds(alone.step_seconds)} for a step"
    )
    if alone.step_seconds <= plan.step_seconds:
        yield f"do not pipeline: {alone_takes}, no more than these {len(plan.stages)} stages"
    else:
        yield f"{alone_takes}: the pipeline is {alone.step_seconds / plan.step_seconds:.2f} times as fast"


def _stage(plan: Plan, stage: Stage, next_best: Mapping[int, CutAlternative]) -> Iterator[str]:
    in_turn = ", in turn" if len(stage.device_ids) > 1 else ""
    yield f"stage {stage.index} on {', '.join(stage.device_ids)}{in_turn}: {_count(stage.num_nodes, 'node')}"
    yield f"  ends because: {stage.reason}"
    if stage.index in next_best:
        yield f"  {_next_best(plan, next_best[stage.index])}"
    parts = {
        "compute": stage.compute_seconds,
        "backward": stage.backward_seconds,
        "communication": stage.communication_seconds,
        "deliveries": stage.delivery_seconds,
    }
    always = ("compute", "communication")
    part_texts = [f"{name} {describe_seconds(seconds)}" for name, seconds in parts.items() if seconds or name in always]
    yield f"  load {describe_seconds(stage.load_seconds)}: {', '.join(part_texts)}"
    yield f"  memory {_memory(plan, stage)}"
    consumed = sum(entry.consumed for entry in stage.liveness)
    bypassing = sum(entry.bypassing and not entry.consumed for entry in stage.liveness)
    yield f"  on entry {_count(len(stage.liveness), 'value')} live: {consumed} read here, {bypassing} only passing by"
    training = plan.options.training
    if training and training.schedule not in UNSPLIT_SCHEDULES and stage.backward_seconds:
        yield f"  {stage.weight_share:.0%} of its backward pass is for weights"
    if stage.recomputes_activations and stage.backward_seconds:
        yield "  computes its activations again before each backward pass, which has that forward pass in its seconds"
    if stage.recomputed_ranges:
        yield f"  runs {_count(stage.num_recomputed_nodes, 'node')} of earlier stages again: {_recomputed(stage)}"
    ahead = sent_ahead(plan) if training is None else ()
    for index, edge in enumerate(plan.edges):
        if edge.source_stage == stage.index:
            yield f"  {_edge(plan, edge, is_ahead=index in ahead)}"


def _recomputed(stage: Stage) -> str:
    range_texts = [f"{start} to {end - 1}" if end - start > 1 else f"{start}" for start, end in stage.recomputed_ranges]
    return ", ".join([*range_texts[:6], "…"] if len(range_texts) > 6 else range_texts)


def _next_best(plan: Plan, alternative: CutAlternative) -> str:
    if not alternative.after:
        return "no other place for this cut fits memory, with the other cuts where they are"
    promise = f"{_PROMISES[plan.options.objective](alternative.value)} ({alternative.change:+.1%})"
    return f"next best, with the other cuts where they are: after {alternative.after}, {promise}"


def _closeness(plan: Plan) -> str:
    return f"within {plan.gap:.2%} of optimal" if plan.gap else "optimal"


_BOUNDS: Mapping[Objective, Callable[[float], str]] = {
    objective: "{:.1%} of the fullest device".format if objective is Objective.MEMORY else describe_seconds
    for objective in Objective
}
_PROMISES: Mapping[Objective, Callable[[float], str]] = {
    Objective.THROUGHPUT: lambda value: f"a result every {describe_seconds(value)}",
    Objective.LATENCY: lambda value: f"a lone batch takes {describe_seconds(value)}",
    Objective.STEP_TIME: lambda value: f"a step takes {describe_seconds(value)}",
    Objective.MEMORY: lambda value: f"the fullest device is filled to {value:.1%}",
}


def _memory(plan: Plan, stage: Stage) -> str:
    of_devices = []
    for device in plan.inventory.devices:
        if device.id in stage.device_ids:
            device_peak_bytes = sum(other.memory.peak_bytes for other in plan.stages if device.id in other.device_ids)
            of_devices.append(f"{device.id} is filled to {device_peak_bytes / device.memory_bytes:.0%}")
    parts = describe_memory_parts(stage.memory)
    return f"{describe_bytes(stage.memory.peak_bytes)}: {parts}; {', '.join(of_devices)}"


def _edge(plan: Plan, edge: StageEdge, *, is_ahead: bool) -> str:
    names = {entry.value_id: entry.name for entry in plan.stages[edge.target_stage].liveness}
    value_names = [names.get(value_id) or f"value {value_id}" for value_id in edge.value_ids[:4]]
    if len(edge.value_ids) > len(value_names):
        value_names.append("…")
    return (
        f"sends {_count(len(edge.value_ids), 'value')}, {describe_bytes(edge.size_bytes)}, "
        f"to stage {edge.target_stage}{' before its pass' if is_ahead else ''}: {', '.join(value_names)}"
    )


def _ties(plan: Plan) -> Iterator[str]:
    for group in plan.tie_groups:
        members = ", ".join(f"{name} in stage {stage}" for name, stage in group.members)
        yield f"held by several stages, {describe_bytes(group.size_bytes)} each: {members}"


def _busiest_device(plan: Plan) -> str:
    load: dict[str, float] = {}
    for stage in plan.stages:
        for device_id in stage.device_ids:
            load[device_id] = load.get(device_id, 0.0) + stage.load_seconds / len(stage.device_ids)
    return max(load, key=load.__getitem__)


def _count(number: int, noun: str) -> str:
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"
