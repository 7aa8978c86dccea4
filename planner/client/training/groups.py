"""Whether parameter groups mean parameters that the graph has: a misspelt name would train with other options."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from difflib import get_close_matches
from fnmatch import fnmatchcase
from itertools import accumulate

from planner.client.training.optimizers import ParameterGroup
from planner.errors import InvalidArgument
from planner.graph.ir import Graph, StateKind

_MOST_NEAR = 3


def check_groups(groups: Sequence[ParameterGroup], graph: Graph) -> None:
    """Raises InvalidArgument for a group that no trained parameter fits, with patterns near it that some do."""
    trained = [state.name for state in graph.states if state.requires_grad]
    frozen = [state.name for state in graph.states if state.kind is StateKind.PARAMETER and not state.requires_grad]
    for group in groups:
        # An empty pattern takes every name, as daemons have it.
        pattern = group.pattern or "*"
        if _fitting(trained, pattern):
            continue
        frozen_names = _fitting(frozen, pattern)
        if frozen_names:
            raise InvalidArgument(
                f"parameter group {pattern!r}: what it fits, such as {frozen_names[0]!r}, is frozen; take the group "
                "away, or export the module with requires_grad set there",
                pattern=pattern,
            )
        near = get_close_matches(pattern, _patterns(trained), n=_MOST_NEAR, cutoff=0.5)
        meant = f"is {' or '.join(map(repr, near))} meant?" if near else f"they are called as {trained[0]!r} is"
        raise InvalidArgument(
            f"parameter group {pattern!r} fits none of the {len(trained)} trained parameters; {meant}", pattern=pattern
        )


def _fitting(names: Iterable[str], pattern: str) -> list[str]:
    return [name for name in names if fnmatchcase(name, pattern)]


def _patterns(names: Iterable[str]) -> list[str]:
    """Each name, and what begins with each module's path."""
    patterns = dict[str, None]()
    for name in names:
        parts = accumulate(name.split("."), lambda path, part: f"{path}.{part}")
        patterns.update(dict.fromkeys([*(f"{path}.*" for path in list(parts)[:-1]), name]))
    return list(patterns)
