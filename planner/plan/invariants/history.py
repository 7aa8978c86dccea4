"""Which in-place writes each read of the unsplit program sees: what every split of it must show too.

A value's storages are the tokens that it may share; a token's history is the set of nodes that have written it so far.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from planner.graph.effects import shares, writes
from planner.graph.ir import Graph, Value, values_in, values_read

History = frozenset[int]
UNWRITTEN: History = frozenset()


@dataclass(slots=True)
class Memory:
    """Values by id to their tokens, tokens to their histories. One per program, or per stage of it."""

    tokens: dict[int, tuple[int, ...]] = field(default_factory=dict)
    histories: dict[int, History] = field(default_factory=dict)

    def hold(self, value_id: int, token: int, history: History = UNWRITTEN) -> None:
        self.tokens[value_id] = (token,)
        if history:
            self.histories[token] = history

    def history(self, value_id: int) -> History:
        tokens = self.tokens[value_id]
        if len(tokens) == 1:
            return self.histories.get(tokens[0], UNWRITTEN)
        return UNWRITTEN.union(*(self.histories.get(token, UNWRITTEN) for token in tokens))

    def run(self, effect: Effect, index: int) -> None:
        """What node `index` does: writes first, since what it returns shows them."""
        for value_id in effect.written:
            for token in self.tokens[value_id]:
                self.histories[token] = self.histories.get(token, UNWRITTEN) | {index}
        for value_id in effect.outputs:
            sources = effect.sources.get(value_id)
            if sources:
                self.tokens[value_id] = tuple(sorted({t for source in sources for t in self.tokens[source]}))
            else:
                self.tokens[value_id] = (value_id,)


@dataclass(frozen=True, slots=True, kw_only=True)
class Effect:
    """What a node reads, writes and returns; `sources`: what an output may share storage with."""

    reads: tuple[int, ...]
    written: tuple[int, ...]
    outputs: tuple[int, ...]
    sources: Mapping[int, tuple[int, ...]]


@dataclass(frozen=True, slots=True, kw_only=True)
class ProgramHistory:
    """`seen`: by node, the history of each value it reads. `final`: of each value at the end.

    `touched_by`: the nodes that read or return something of a token, for tokens that some node writes or that hold a
    state marked as mutated. `given_tokens`: inputs and states to their tokens.
    """

    effects: tuple[Effect, ...]
    seen: tuple[tuple[History, ...], ...]
    final: Memory
    touched_by: Mapping[int, tuple[int, ...]]
    given_tokens: Mapping[int, int]


def program_history(graph: Graph) -> ProgramHistory:
    values = graph.values_by_id()
    memory = Memory()
    given_tokens = {value: value for entry in graph.inputs for value in values_in(entry.content)}
    given_tokens.update(_state_tokens(graph))
    for value_id, token in given_tokens.items():
        memory.hold(value_id, token)
    effects = tuple(_effect(graph, index, values) for index in range(len(graph.nodes)))
    seen = []
    for index, effect in enumerate(effects):
        seen.append(tuple(memory.history(value_id) for value_id in effect.reads))
        memory.run(effect, index)
    mutated = {given_tokens[state.value_id] for state in graph.states if state.mutated}
    return ProgramHistory(
        effects=effects,
        seen=tuple(seen),
        final=memory,
        touched_by=_touches(effects, memory, mutated.union(memory.histories)),
        given_tokens=given_tokens,
    )


def _effect(graph: Graph, index: int, values: dict[int, Value]) -> Effect:
    node = graph.nodes[index]
    sources: dict[int, list[int]] = {}
    for output, source in shares(graph, node, values):
        sources.setdefault(output, []).append(source)
    return Effect(
        reads=values_read(node),
        written=writes(graph, node),
        outputs=tuple(value_id for value_id in node.outputs if value_id),
        sources={output: tuple(arguments) for output, arguments in sources.items()},
    )


def _state_tokens(graph: Graph) -> dict[int, int]:
    """Tied states have the token of the first of them."""
    first: dict[int, int] = {}
    return {
        state.value_id: first.setdefault(state.tie_group, state.value_id) if state.tie_group else state.value_id
        for state in graph.states
    }


def _touches(effects: Iterable[Effect], memory: Memory, written: set[int]) -> dict[int, tuple[int, ...]]:
    nodes_of_token: dict[int, list[int]] = {token: [] for token in written}
    if not written:
        return {}
    for index, effect in enumerate(effects):
        tokens = {token for value_id in (*effect.reads, *effect.outputs) for token in memory.tokens[value_id]}
        for token in tokens & written:
            nodes_of_token[token].append(index)
    return {token: tuple(nodes) for token, nodes in nodes_of_token.items()}
