"""Wire numbers of the enumerations, both ways. The records name their members as the protos do."""

from __future__ import annotations

from collections.abc import Mapping
from enum import Enum
from typing import Any, Generic, TypeVar

from planner.errors import GraphError
from planner.graph.expression import ExpressionOperator
from planner.graph.ir import Dtype, Layout, MemoryFormat, OperatorKind, StateKind, ValueKind
from protos.v1 import graph_pb2

Member = TypeVar("Member", bound=Enum)


class WireEnum(Generic[Member]):
    """A record's enumeration beside the wire's. An unknown number raises GraphError."""

    def __init__(self, members: type[Member], wire: Any, prefix: str) -> None:
        self._what = prefix.lower().replace("_", " ")
        # Any: protobuf types every enumeration's numbers as a class of its own.
        self.number: Mapping[Member, Any] = {member: wire.Value(f"{prefix}_{member.name}") for member in members}
        self._member = {number: member for member, number in self.number.items()}

    def member(self, number: int) -> Member:
        try:
            return self._member[number]
        except KeyError:
            raise GraphError(f"{self._what} {number} is not known") from None


OPERATOR_KINDS = WireEnum(OperatorKind, graph_pb2.OperatorKind, "OPERATOR_KIND")
VALUE_KINDS = WireEnum(ValueKind, graph_pb2.ValueKind, "VALUE_KIND")
STATE_KINDS = WireEnum(StateKind, graph_pb2.StateKind, "STATE_KIND")
DTYPES = WireEnum(Dtype, graph_pb2.Dtype, "DTYPE")
LAYOUTS = WireEnum(Layout, graph_pb2.Layout, "LAYOUT")
MEMORY_FORMATS = WireEnum(MemoryFormat, graph_pb2.MemoryFormat, "MEMORY_FORMAT")
EXPRESSION_OPERATORS = WireEnum(ExpressionOperator, graph_pb2.Expression.Operation.Operator, "OPERATOR")
