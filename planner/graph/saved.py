"""What a node's backward pass keeps of each call."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from planner.graph.effects import drops_nothing
from planner.graph.ir import Node
from planner.graph.operators import facts_of

_INDEX_BYTES = 8


@dataclass(frozen=True, slots=True, kw_only=True)
class Saved:
    """Whether it keeps what the node reads, states aside, and what it returns; and how many bytes besides, which the
    call made within: the noise of a dropout, a copy of what it reads."""

    inputs: bool
    outputs: bool
    within_bytes: int


def saved_by_rule(node: Node, result_bytes: int, element_bytes: int) -> Saved:
    """By what operators.txt says of its operator; by the size of the call's first result, and of one of its elements,
    0 where it has none."""
    facts = facts_of(node.operator.name)
    within_bytes = 0
    if facts.keeps == "noise" and not drops_nothing(node):
        within_bytes = result_bytes
    elif facts.keeps == "indices":
        within_bytes = result_bytes // max(element_bytes, 1) * _INDEX_BYTES
    return Saved(inputs=facts.saves_inputs, outputs=facts.saves_outputs, within_bytes=within_bytes)


def most_saved(choices: Iterable[Saved]) -> Saved:
    """What is enough for each of them, one at least."""
    kept = tuple(choices)
    return Saved(
        inputs=any(one.inputs for one in kept),
        outputs=any(one.outputs for one in kept),
        within_bytes=max(one.within_bytes for one in kept),
    )
