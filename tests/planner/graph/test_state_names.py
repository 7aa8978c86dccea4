"""What of a graph's states is in a checkpoint, and under which names."""

from __future__ import annotations

from planner.graph.ir import Graph, State, StateKind
from planner.graph.state_names import StateNames


def state(name: str, kind: StateKind = StateKind.BUFFER, **facts: object) -> State:
    return State(value_id=0, name=name, kind=kind, **facts)  # type: ignore[arg-type]


def test_parameters_and_what_a_state_dict_or_a_step_keeps_are_in_checkpoints() -> None:
    states = (
        state("table", StateKind.PARAMETER, tie_group=1),
        state("head", StateKind.PARAMETER, tie_group=1),
        state("mean", persistent=True),
        state("seen", persistent=False, mutated=True),
        state("mask", persistent=False),
        state("constant", StateKind.CONSTANT),
    )
    names = StateNames(Graph(torch_version="", name="", states=states))
    assert [one.name for one in states if names.is_in_checkpoints(one.name)] == ["table", "head", "mean", "seen"]
    assert names.saved == ("table", "head", "mean")
    assert names.other_buffers == {"seen"}
    assert names.tied("head") == ("table", "head")


def test_a_buffer_counts_where_one_of_its_tied_names_is_saved() -> None:
    states = (state("alias", persistent=False, tie_group=1), state("mean", persistent=True, tie_group=1))
    assert StateNames(Graph(torch_version="", name="", states=states)).is_in_checkpoints("alias")
