"""Graphs as bytes. What comes in may be anything: it is bounded before it is built and checked before it is used."""

from __future__ import annotations

from google.protobuf.message import DecodeError

from planner.errors import GraphError
from planner.graph.check import check_graph
from planner.graph.ir import Graph
from planner.wire.graph.decode import graph_from_proto
from planner.wire.graph.encode import graph_to_proto
from protos.v1 import graph_pb2

MAX_GRAPH_BYTES = 2**30


def graph_to_bytes(graph: Graph) -> bytes:
    """The same graph gives the same bytes."""
    return graph_to_proto(graph).SerializeToString(deterministic=True)


def graph_from_bytes(data: bytes) -> Graph:
    """A sound graph. Raises GraphError for bytes that are not one."""
    if len(data) > MAX_GRAPH_BYTES:
        raise GraphError(f"graph: {len(data)} bytes, at most {MAX_GRAPH_BYTES} are read")
    try:
        message = graph_pb2.Graph.FromString(data)
    except (DecodeError, RecursionError, UnicodeDecodeError) as error:
        raise GraphError(f"these {len(data)} bytes are not a serialized graph: {error}") from None
    graph = graph_from_proto(message)
    check_graph(graph)
    return graph
