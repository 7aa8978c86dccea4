"""Liveness tables, outputs and states of stages, by walking back from the outputs of the graph."""

from __future__ import annotations

from collections.abc import Container, Iterable, Mapping, Sequence
from dataclasses import dataclass

from planner.graph.ir import Graph, Value, values_in
from planner.plan.invariants.broken import broken
from planner.plan.invariants.history import ProgramHistory
from planner.plan.plan import GRAPH_INPUT, LiveTensor, Plan, Stage


@dataclass(frozen=True, slots=True, kw_only=True)
class Needs:
    """What must be true of one stage: value id to (producer stage, consumed, bypassing); value ids; state names."""

    entry: Mapping[int, tuple[int, bool, bool]]
    outputs: tuple[int, ...]
    states: tuple[str, ...]


def find_needs(
    graph: Graph, history: ProgramHistory, stage_of_node: Sequence[int], num_stages: int
) -> tuple[Needs, ...]:
    reads: list[set[int]] = [set() for _ in range(num_stages)]
    makes: list[set[int]] = [set() for _ in range(num_stages)]
    made_in: dict[int, int] = {}
    for effect, stage in zip(history.effects, stage_of_node, strict=True):
        reads[stage].update(effect.reads)
        makes[stage].update(effect.outputs)
        made_in.update((value_id, stage) for value_id in effect.outputs)
    inputs = {value_id: None for entry in graph.inputs for value_id in values_in(entry.content)}
    states = {state.value_id: state.name for state in graph.states}
    returned = {value_id for output in graph.outputs for value_id in values_in(output.content)}
    for value_id, token in history.given_tokens.items():
        if token in history.touched_by:
            nodes = history.touched_by[token]
            made_in[value_id] = stage_of_node[nodes[0]] if nodes else num_stages - 1
        elif value_id in states:
            made_in[value_id] = num_stages - 1
    for value_id, stage in made_in.items():
        makes[stage].add(value_id)
    rank = {value_id: position for position, value_id in enumerate(_all_values(graph, inputs))}

    needs: list[Needs] = []
    live = set(returned)
    for stage in reversed(range(num_stages)):
        passing = live - makes[stage]
        own_states = {value for value in states if value in reads[stage] or (value in live and made_in[value] == stage)}
        consumed = {v for v in reads[stage] if v not in states and (v in inputs or made_in[v] != stage)}
        entry = {*passing, *consumed, *(inputs if stage == 0 else ())}
        needs.append(
            Needs(
                entry={
                    value: (_producer(value, stage, made_in, inputs), value in consumed, value in passing)
                    for value in sorted(entry, key=rank.__getitem__)
                },
                outputs=tuple(sorted(live & makes[stage], key=rank.__getitem__)),
                states=tuple(name for value, name in states.items() if value in own_states),
            )
        )
        live = entry
    return tuple(reversed(needs))


def _all_values(graph: Graph, inputs: Iterable[int]) -> tuple[int, ...]:
    """Ids in table order: inputs in signature order, states, then by producing node and output position."""
    states = (state.value_id for state in graph.states)
    return (*inputs, *states, *(value_id for node in graph.nodes for value_id in node.outputs if value_id))


def _producer(value_id: int, stage: int, made_in: Mapping[int, int], inputs: Container[int]) -> int:
    if value_id in inputs and made_in.get(value_id, stage) >= stage:
        return GRAPH_INPUT
    return made_in[value_id]


def check_tables(plan: Plan, needs: Sequence[Needs], values: Mapping[int, Value], sizes: Mapping[int, int]) -> None:
    for stage, need in zip(plan.stages, needs, strict=True):
        _check_liveness(stage, need, values, sizes)
        if stage.outputs != need.outputs:
            raise broken(
                "outputs", f"stage {stage.index} hands on {stage.outputs}, needs {need.outputs}", stage=stage.index
            )
        if stage.states != need.states:
            differs = sorted({*stage.states} ^ {*need.states}) or "their order"
            raise broken("states", f"stage {stage.index} owns other states than it reads: {differs}", stage=stage.index)


def _check_liveness(stage: Stage, need: Needs, values: Mapping[int, Value], sizes: Mapping[int, int]) -> None:
    value_ids = [entry.value_id for entry in stage.liveness]
    if value_ids != list(need.entry):
        raise broken(
            "liveness", f"stage {stage.index}: live are {value_ids}, needs {list(need.entry)}", stage=stage.index
        )
    for entry in stage.liveness:
        expected = _live_tensor(values[entry.value_id], sizes[entry.value_id], need.entry[entry.value_id])
        if entry != expected:
            raise broken("liveness", f"stage {stage.index}: found {entry}, needs {expected}", stage=stage.index)


def _live_tensor(value: Value, size_bytes: int, flow: tuple[int, bool, bool]) -> LiveTensor:
    producer_stage, consumed, bypassing = flow
    return LiveTensor(
        value_id=value.id,
        name=value.name,
        kind=value.kind,
        dtype=value.dtype,
        dims=value.dims,
        size_bytes=size_bytes,
        producer_stage=producer_stage,
        consumed=consumed,
        bypassing=bypassing,
    )
