"""Structures of nested containers to messages and back."""

from __future__ import annotations

from collections.abc import Iterable

from planner.errors import GraphError
from planner.graph.ir import PyTree, TreeDict, TreeLeaf, TreeList, TreeNone, TreeObject, TreeTuple
from planner.wire.graph.bounds import check_depth, check_length
from protos.v1 import graph_pb2


def tree_to_proto(tree: PyTree, depth: int = 0) -> graph_pb2.PyTree:
    """Raises GraphError for one nested too deep."""
    check_depth("input or output structure", depth)
    if isinstance(tree, TreeLeaf):
        return graph_pb2.PyTree(leaf=graph_pb2.LeafNode())
    if isinstance(tree, TreeNone):
        return graph_pb2.PyTree(none=graph_pb2.NoneArgument())
    items = [tree_to_proto(item, depth + 1) for item in tree.items]
    if isinstance(tree, TreeList):
        return graph_pb2.PyTree(list=graph_pb2.TreeSequence(items=items))
    if isinstance(tree, TreeTuple):
        return graph_pb2.PyTree(tuple=graph_pb2.TreeSequence(items=items))
    if isinstance(tree, TreeDict):
        return graph_pb2.PyTree(dict=graph_pb2.TreeMapping(keys=tree.keys, items=items))
    return graph_pb2.PyTree(object=graph_pb2.TreeObject(type_name=tree.type_name, keys=tree.keys, items=items))


def tree_from_proto(message: graph_pb2.PyTree, depth: int = 0) -> PyTree:
    """Raises GraphError for an empty structure, keys that do not match the items, or one nested too deep."""
    check_depth("input or output structure", depth)
    kind = message.WhichOneof("kind")
    if kind == "leaf":
        return TreeLeaf()
    if kind == "none":
        return TreeNone()
    if kind == "list":
        return TreeList(_items(message.list.items, depth))
    if kind == "tuple":
        return TreeTuple(_items(message.tuple.items, depth))
    if kind == "dict":
        return TreeDict(_keys("dict", message.dict), _items(message.dict.items, depth))
    if kind == "object":
        tree = message.object
        return TreeObject(tree.type_name, _keys(tree.type_name, tree), _items(tree.items, depth))
    raise GraphError("input or output structure is empty")


def _items(messages: Iterable[graph_pb2.PyTree], depth: int) -> tuple[PyTree, ...]:
    items = tuple(messages)
    check_length("items of a container", items)
    return tuple(tree_from_proto(item, depth + 1) for item in items)


def _keys(what: str, message: graph_pb2.TreeMapping | graph_pb2.TreeObject) -> tuple[str, ...]:
    if len(message.keys) != len(message.items):
        raise GraphError(f"container {what!r}: {len(message.keys)} keys for {len(message.items)} items")
    return tuple(message.keys)
