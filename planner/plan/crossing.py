"""Which values leave the stage that holds them, and for which stages.

All that liveness tables, edges and stage outputs say follows from this list.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from planner.graph.alias import written_storages
from planner.graph.ir import Graph, values_in, values_read


@dataclass(frozen=True, slots=True, kw_only=True)
class Crossing:
    """A value on its way from `source_stage` to stages behind it.

    `reading_stages`, ascending, have a node that reads it; the source is among them only for an input of the graph.
    `returned`: the last stage gives it back. `is_input`: an input of the graph, as it enters at stage 0.
    """

    value_id: int
    source_stage: int
    reading_stages: tuple[int, ...]
    returned: bool
    is_input: bool
    num_stages: int

    @property
    def target_stages(self) -> tuple[int, ...]:
        """Stages behind the source that need it, ascending."""
        targets = {stage for stage in self.reading_stages if stage > self.source_stage}
        if self.returned and self.num_stages - 1 > self.source_stage:
            targets.add(self.num_stages - 1)
        return tuple(sorted(targets))


@dataclass(frozen=True, slots=True, kw_only=True)
class Residence:
    """Where values are: `crossings` in table order, `outputs` of each stage and the `states` that each owns.

    Table order: inputs of the graph in signature order, then states, then by producing node and output position.
    """

    crossings: tuple[Crossing, ...]
    outputs: tuple[tuple[int, ...], ...]
    states: tuple[tuple[str, ...], ...]


def find_residence(graph: Graph, stage_of_node: Sequence[int], num_stages: int) -> Residence:
    """Linear in the graph, but for values that many stages read."""
    readers = _reading_stages(graph, stage_of_node)
    returned = {value for output in graph.outputs for value in values_in(output.content)}
    written_in = _written_in(graph, stage_of_node, num_stages)
    crossings: list[Crossing] = []
    outputs: list[list[int]] = [[] for _ in range(num_stages)]

    def leave(value_id: int, source: int, reading: set[int], *, is_input: bool, goes_on: bool = True) -> None:
        crossing = Crossing(
            value_id=value_id,
            source_stage=source,
            reading_stages=tuple(sorted(reading)),
            returned=goes_on and value_id in returned,
            is_input=is_input,
            num_stages=num_stages,
        )
        if is_input or crossing.target_stages:
            crossings.append(crossing)
        if not is_input and (crossing.target_stages or crossing.returned):
            outputs[source].append(value_id)

    for value_id in _input_ids(graph):
        home = written_in.get(value_id)
        leave(value_id, 0, readers.get(value_id, set()), is_input=True, goes_on=home is None)
        if home is not None:
            leave(value_id, home, set(), is_input=False)
    for state in graph.states:
        if state.value_id in returned:
            leave(state.value_id, written_in.get(state.value_id, num_stages - 1), set(), is_input=False)
    for node, stage in zip(graph.nodes, stage_of_node, strict=True):
        for value_id in node.outputs:
            if value_id:
                leave(value_id, stage, readers.get(value_id, set()) - {stage}, is_input=False)
    return Residence(
        crossings=tuple(crossings),
        outputs=tuple(tuple(value_ids) for value_ids in outputs),
        states=_states(graph, readers, returned, written_in, num_stages),
    )


def _reading_stages(graph: Graph, stage_of_node: Sequence[int]) -> dict[int, set[int]]:
    readers: dict[int, set[int]] = {}
    for node, stage in zip(graph.nodes, stage_of_node, strict=True):
        for value_id in values_read(node):
            readers.setdefault(value_id, set()).add(stage)
    return readers


def _written_in(graph: Graph, stage_of_node: Sequence[int], num_stages: int) -> dict[int, int]:
    """Inputs and states that nodes write, to the stage that holds all their accesses.

    What stands behind that stage gets them from there: the copy that entered at stage 0 has not been written.
    """
    return {
        value_id: stage_of_node[storage.accesses[0]] if storage.accesses else num_stages - 1
        for storage in written_storages(graph)
        if storage.has_copies
        for value_id in storage.value_ids
    }


def _states(
    graph: Graph,
    readers: Mapping[int, set[int]],
    returned: set[int],
    written_in: Mapping[int, int],
    num_stages: int,
) -> tuple[tuple[str, ...], ...]:
    """Names of the states that each stage reads or returns, in the graph's order."""
    owned: list[list[str]] = [[] for _ in range(num_stages)]
    for state in graph.states:
        stages = set(readers.get(state.value_id, ()))
        if state.value_id in returned:
            stages.add(written_in.get(state.value_id, num_stages - 1))
        for stage in stages:
            owned[stage].append(state.name)
    return tuple(tuple(names) for names in owned)


def _input_ids(graph: Graph) -> tuple[int, ...]:
    return tuple(value_id for graph_input in graph.inputs for value_id in values_in(graph_input.content))
