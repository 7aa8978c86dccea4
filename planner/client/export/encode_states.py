"""States as records, once it is known which of them the program writes."""

from __future__ import annotations

from collections import Counter

from planner.client.export.encode_nodes import NodeEncoder
from planner.client.export.states import CapturedState, overlap, storage_of
from planner.errors import UnsupportedModule
from planner.graph.ir import State, StateKind


def encode_states(states: tuple[CapturedState, ...], encoder: NodeEncoder, *, training: bool) -> tuple[State, ...]:
    """Raises UnsupportedModule for a constant that is written, or a state that is written, by forward or in training,
    of which another views a part."""
    written_groups = {state.tie_group for state in states if state.tie_group and encoder.is_mutated(state.placeholder)}
    by_storage: dict[int, list[CapturedState]] = {}
    for state in states:
        by_storage.setdefault(storage_of(state.tensor), []).append(state)
    records = []
    for state in states:
        mutated = encoder.is_mutated(state.placeholder) or state.tie_group in written_groups
        if mutated:
            _check_mutable(state, states)
        if training and state.tensor.requires_grad:
            _check_trainable(state, by_storage[storage_of(state.tensor)])
        records.append(
            State(
                name=state.name,
                value_id=encoder.value_id(state.placeholder),
                kind=state.kind,
                sha256=state.sha256,
                tie_group=state.tie_group,
                requires_grad=state.tensor.requires_grad,
                persistent=state.persistent,
                mutated=mutated,
            )
        )
    return tuple(records)


def _check_mutable(state: CapturedState, states: tuple[CapturedState, ...]) -> None:
    if state.kind is StateKind.CONSTANT:
        raise UnsupportedModule(
            f"{state.name!r}: the forward writes this tensor, which is no buffer; register it with register_buffer"
        )
    sharing = Counter(
        other.tie_group if other.tie_group else -index
        for index, other in enumerate(states, start=1)
        if storage_of(other.tensor) == storage_of(state.tensor)
    )
    if len(sharing) > 1:
        raise UnsupportedModule(
            f"{state.name!r}: the forward writes it, and another state is a different view of the same storage; "
            "give each its own storage"
        )


def _check_trainable(state: CapturedState, in_storage: list[CapturedState]) -> None:
    """Each state is carried by itself, so a step on one would not be seen in another that lies in the same bytes."""
    for other in in_storage:
        is_tied = other is state or (state.tie_group and other.tie_group == state.tie_group)
        if is_tied and other.tensor is not state.tensor and other.tensor.requires_grad:
            raise UnsupportedModule(
                f"{state.name!r} and {other.name!r}: two parameters over the same elements, which an optimizer would "
                "step one after the other; tie them, as one parameter under both names, or give each its own tensor"
            )
        if not is_tied and overlap(state.tensor, other.tensor):
            raise UnsupportedModule(
                f"{state.name!r}: training writes it, and {other.name!r} is a different view of the same bytes; "
                "compute one from the other in forward, or call eval() on a module that is not to be trained"
            )
