"""What may be given as one batch: arguments of a call of the module, by position, by name, or as loaders give them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from planner.client.pytree import arguments_of, flatten_inputs
from planner.graph.ir import Graph, PyTree, TreeDict, TreeList, TreeObject


@dataclass(frozen=True, slots=True)
class Batch:
    """The arguments of one call of the module."""

    args: tuple[Any, ...] = ()
    kwargs: Mapping[str, Any] = field(default_factory=dict)


def batch_of(graph: Graph, given: Any) -> Batch:
    """A tuple or list is arguments, a mapping is named ones, anything else the only argument.

    A loader of torch gives a list where its dataset has tuples. A module whose only argument is a list, or a mapping,
    is given it as it is.
    """
    if isinstance(given, Batch):
        return given
    if isinstance(given, Mapping):
        return Batch(args=(given,)) if isinstance(_only(graph), TreeDict | TreeObject) else Batch(kwargs=given)
    if isinstance(given, tuple) or (isinstance(given, list) and not isinstance(_only(graph), TreeList)):
        return Batch(args=tuple(given))
    return Batch(args=(given,))


def flatten_batch(graph: Graph, given: Any) -> list[Any]:
    """Its leaves, as flatten_inputs."""
    batch = batch_of(graph, given)
    return flatten_inputs(graph, batch.args, batch.kwargs)


def _only(graph: Graph) -> PyTree | None:
    """The argument that the graph was captured with, if it was one by position."""
    given, named = arguments_of(graph)
    return given.items[0] if len(given.items) == 1 and not named.keys else None
