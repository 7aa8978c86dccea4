"""Under which names a graph's states are known: to the module, to stages and to checkpoints."""

from __future__ import annotations

from planner.graph.ir import Graph, State, StateKind


class StateNames:
    """Tied states are one tensor, which each stage holds under one or more of their names, and `first` names."""

    def __init__(self, graph: Graph) -> None:
        groups: dict[object, list[str]] = {}
        for state in graph.states:
            groups.setdefault(state.tie_group or state.name, []).append(state.name)
        self._tied = {name: tuple(names) for names in groups.values() for name in names}
        # What a module's state_dict has.
        self.saved = tuple(state.name for state in graph.states if _is_saved(state))
        # What a step changes beside those.
        self.other_buffers = frozenset(
            state.name for state in graph.states if state.kind is StateKind.BUFFER and state.mutated
        ).difference(self.saved)
        self._in_checkpoints = self.other_buffers.union(map(self.first, self.saved))

    def __contains__(self, name: str) -> bool:
        return name in self._tied

    def tied(self, name: str) -> tuple[str, ...]:
        """All names of the tensor, its own among them, in the graph's order."""
        return self._tied[name]

    def first(self, name: str) -> str:
        return self._tied[name][0]

    def is_in_checkpoints(self, name: str) -> bool:
        """What else a graph holds comes from its own weights."""
        return self.first(name) in self._in_checkpoints


def _is_saved(state: State) -> bool:
    return state.kind is StateKind.PARAMETER or (state.kind is StateKind.BUFFER and state.persistent)
