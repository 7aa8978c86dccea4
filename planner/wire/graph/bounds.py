"""Bounds that a message must hold before records of it are built; the graph's own are in planner.graph.bounds."""

from __future__ import annotations

from collections.abc import Sized

from planner.errors import GraphError
from planner.graph import bounds
from planner.graph.bounds import check_count
from protos.v1 import graph_pb2

MAX_TABLE_ENTRIES = bounds.MAX_NODES
MAX_SEQUENCE_LENGTH = 1_000_000
# protobuf refuses messages nested more than 100 deep, and one level of ours takes two of its.
MAX_DEPTH = 45


def check_sizes(message: graph_pb2.Graph, depth: int) -> None:
    """Raises GraphError for a graph that is too large or nested too deep."""
    if depth > bounds.MAX_SUBGRAPH_DEPTH:
        raise GraphError(f"graph: subgraphs are nested more than {bounds.MAX_SUBGRAPH_DEPTH} deep")
    check_count("nodes", len(message.nodes), bounds.MAX_NODES)
    check_count("values", len(message.values), bounds.MAX_VALUES)
    check_count("states", len(message.states), bounds.MAX_STATES)
    check_count("symbols", len(message.symbols), bounds.MAX_SYMBOLS)
    check_count("subgraphs", len(message.subgraphs), bounds.MAX_TOTAL_SUBGRAPHS)
    check_count("inputs", len(message.inputs), bounds.MAX_INPUTS)
    check_count("outputs", len(message.outputs), bounds.MAX_INPUTS)
    for table in ("operators", "contexts", "module_paths", "custom_backwards"):
        check_count(table, len(getattr(message, table)), MAX_TABLE_ENTRIES)


def check_length(what: str, items: Sized, most: int = MAX_SEQUENCE_LENGTH) -> None:
    if len(items) > most:
        raise GraphError(f"{len(items)} {what}, at most {most} are allowed")


def check_depth(what: str, depth: int) -> None:
    if depth > MAX_DEPTH:
        raise GraphError(f"{what} is nested more than {MAX_DEPTH} deep")
