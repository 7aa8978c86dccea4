"""The door between graph records and their protobuf messages: exact both ways, every error names its element."""

from planner.wire.graph.decode import graph_from_proto
from planner.wire.graph.encode import graph_to_proto
from planner.wire.graph.serialize import graph_from_bytes, graph_to_bytes

__all__ = ["graph_from_bytes", "graph_from_proto", "graph_to_bytes", "graph_to_proto"]
