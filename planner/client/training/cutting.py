"""A batch into microbatches, and what each microbatch's loss counts in the step's."""

from __future__ import annotations

import math
from collections.abc import Sequence

from planner.client.microbatches import carried
from planner.errors import InvalidArgument
from planner.graph.expression import SymbolReference
from planner.graph.ir import Graph, Value, ValueKind


def cut(graph: Graph, leaves: Sequence[object], microbatches: int) -> list[list[object]]:
    """The graph's inputs cut along their first dimension; what has another first dimension goes to each whole, and so
    does what is given one microbatch's rows where these are fixed.

    A dynamic first dimension is cut into `microbatches` parts that differ by one row at most, or as many more or fewer
    as its bounds ask for; a fixed one into as many as there are. Raises InvalidArgument for a batch that cannot be cut
    so.
    """
    values = _values(graph)
    if len(leaves) != len(values):
        raise InvalidArgument(f"{len(leaves)} inputs found, the graph takes {len(values)}")
    first = next((index for index, value in enumerate(values) if value.dims), None)
    if first is None:
        raise InvalidArgument("no input has a dimension to cut along; pass a list of microbatches")
    names = _names(graph)
    along, rows = values[first].dims[0], _rows(names[first], leaves[first])
    sizes = _sizes(graph, rows, along, microbatches, f"input {names[first]!r}")
    is_cut = []
    for name, value, leaf in zip(names, values, leaves, strict=True):
        own = _rows(name, leaf) if value.dims and value.dims[0] == along else None
        if own not in (None, rows) and isinstance(along, SymbolReference):
            raise InvalidArgument(f"input {name!r} has {own} rows, and input {names[first]!r} of one batch has {rows}")
        is_cut.append(own == rows)
    ends = [sum(sizes[: index + 1]) for index in range(len(sizes))]
    return [
        [leaf[end - size : end] if cuts else leaf for leaf, cuts in zip(leaves, is_cut, strict=True)]  # type: ignore[index]
        for size, end in zip(sizes, ends, strict=True)
    ]


def num_rows(graph: Graph, leaves: Sequence[object]) -> int:
    """Of a microbatch: the first dimension of its first input that has one."""
    inputs = zip(_names(graph), _values(graph), leaves, strict=True)
    return next((_rows(name, leaf) for name, value, leaf in inputs if value.dims), 1)


def _sizes(graph: Graph, rows: int, along: object, microbatches: int, where: str) -> list[int]:
    if isinstance(along, SymbolReference):
        if rows < 1:
            raise InvalidArgument(f"{where} has no rows, needs at least 1")
        [symbol] = (one for one in graph.symbols if one.id == along.symbol_id)
        count = min(microbatches, max(1, rows // max(1, symbol.lower)))
        if symbol.upper is not None:
            count = max(count, math.ceil(rows / symbol.upper))
        return [rows // count + (index < rows % count) for index in range(count)]
    if not isinstance(along, int) or along < 1:
        raise InvalidArgument(f"{where}: its first dimension follows from others; pass a list of microbatches")
    if rows < 1 or rows % along:
        raise InvalidArgument(
            f"{where} has {rows} rows, a microbatch of this graph has {along}: pass a multiple of that, or export with"
            " a dynamic first dimension"
        )
    return [along] * (rows // along)


def _rows(name: str, leaf: object) -> int:
    shape = getattr(leaf, "shape", None) or getattr(leaf, "dims", None)
    if not shape:
        raise InvalidArgument(f"input {name!r}: a {type(leaf).__name__} without a first dimension cannot be cut")
    return int(shape[0])


def _values(graph: Graph) -> list[Value]:
    values = graph.values_by_id()
    return [values[value_id] for _, value_id in carried(graph.inputs)]


def _names(graph: Graph) -> list[str]:
    return [name for name, _ in carried(graph.inputs)]


def loss_output(graph: Graph, loss: str | None) -> tuple[int, int]:
    """(position among the outputs that are data, value id) of the named output, or of the only scalar one.

    Raises InvalidArgument for one that no gradient can start from.
    """
    values = graph.values_by_id()
    outputs = carried(graph.outputs)
    names = ", ".join(repr(name) for name, _ in outputs)
    if loss is None:
        scalars = [position for position, (_, value_id) in enumerate(outputs) if _is_loss(values[value_id])]
        if len(scalars) != 1:
            raise InvalidArgument(
                f"{len(scalars)} outputs are floating scalars, of {names}; return the loss from the module, or name it"
                " with loss="
            )
        return scalars[0], outputs[scalars[0]][1]
    for position, (name, value_id) in enumerate(outputs):
        if name == loss:
            if not _is_loss(values[value_id]):
                dims = len(values[value_id].dims)
                raise InvalidArgument(f"output {loss!r} has {dims} dimensions; a loss is a floating scalar: reduce it")
            return position, value_id
    raise InvalidArgument(f"no output is called {loss!r}, there are {names}")


def _is_loss(value: Value) -> bool:
    return (
        value.kind is ValueKind.TENSOR
        and not value.dims
        and value.dtype is not None
        and value.dtype.name[:5] in _FLOATS
    )


_FLOATS = ("FLOAT", "BFLOA")
