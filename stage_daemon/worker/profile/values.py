"""What a graph's values are at one setting of its dynamic dimensions."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache

from protos.v1 import graph_pb2 as pb
from stage_daemon.errors import InvalidGraph, InvalidRequest
from stage_daemon.loader.bounds import shown
from stage_daemon.loader.declared import Declared, declared_tensor, symbol_hints
from stage_daemon.loader.expressions import evaluate

Scalar = int | float | bool
Described = Declared | Scalar

# Of scalars that depend on data.
_STAND_INS: Mapping[int, Scalar] = {
    pb.VALUE_KIND_SYM_INT: 1,
    pb.VALUE_KIND_SYM_FLOAT: 1.0,
    pb.VALUE_KIND_SYM_BOOL: True,
}


class ValueTable:
    """Tensors as they are declared, scalars as numbers; looked up by value id, each found out once."""

    def __init__(self, graph: pb.Graph, symbol_values: Mapping[str, int]) -> None:
        self._values = {value.id: value for value in graph.values}
        self._symbols = _symbols(graph, symbol_values)
        self.describe = cache(self._describe)

    def tensor(self, value_id: int) -> Declared | None:
        """None for a scalar."""
        described = self.describe(value_id)
        return described if isinstance(described, Declared) else None

    def _describe(self, value_id: int) -> Described:
        value = self._values.get(value_id)
        if value is None:
            raise InvalidGraph(f"value {value_id} is not in the graph")
        if value.kind == pb.VALUE_KIND_TENSOR:
            return declared_tensor("", value, self._symbols)
        if value.kind not in _STAND_INS:
            raise InvalidGraph(f"value {value.id} ({shown(value.name)}): has no type that can be run")
        if value.HasField("expression"):
            return evaluate(f"value {value.id} ({shown(value.name)})", value.expression, self._symbols)
        return _STAND_INS[value.kind]


def _symbols(graph: pb.Graph, symbol_values: Mapping[str, int]) -> dict[int, int]:
    """Symbol id to value. Raises InvalidRequest for an unknown symbol or a value that it was not exported for."""
    values = symbol_hints("", graph)
    by_name = {symbol.name: symbol for symbol in graph.symbols}
    for name, value in symbol_values.items():
        symbol = by_name.get(name)
        if symbol is None:
            names = ", ".join(map(shown, sorted(by_name))) or "none"
            raise InvalidRequest(f"symbol_values: {shown(name)} is no dynamic dimension of the graph; it has {names}")
        upper = symbol.upper if symbol.HasField("upper") else None
        if value < symbol.lower or (upper is not None and value > upper):
            raise InvalidRequest(
                f"symbol_values: {shown(name)} is {value}, the graph was exported for {symbol.lower} to "
                f"{'any' if upper is None else upper}"
            )
        values[symbol.id] = value
    return values
