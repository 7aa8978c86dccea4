"""Inputs into leaves, leaves into outputs, in the containers that the module takes and returns. Needs no torch."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from planner.errors import InvalidArgument
from planner.graph.ir import (
    Graph,
    PyTree,
    TreeDict,
    TreeLeaf,
    TreeList,
    TreeNone,
    TreeObject,
    TreeTuple,
    ValueReference,
)

# Builds a container from its items, in the order of its keys.
Rebuild = Callable[[Sequence[Any]], Any]

_containers: dict[tuple[str, tuple[str, ...]], Rebuild] = {}


def remember_container(type_name: str, keys: tuple[str, ...], rebuild: Rebuild) -> None:
    """Has outputs of this label come back as the caller's own type: called by export, which has seen that type."""
    _containers[type_name, keys] = rebuild


def flatten_inputs(graph: Graph, args: Sequence[Any], kwargs: Mapping[str, Any]) -> list[Any]:
    """The leaves that are data, in the order of the graph's inputs that are not constant.

    Names are bound as in a call of the module, also those of arguments that it was captured with by position. What
    holds constants only may be left out. Raises InvalidArgument, naming the input, for another structure or another
    constant than the graph was captured with.
    """
    given, named = arguments_of(graph)
    # Tensors alone, as most modules take: what follows takes as long as it takes to send them.
    if (
        len(args) == len(given.items)
        and kwargs.keys() == set(named.keys)
        and all(isinstance(item, TreeLeaf) for item in (*given.items, *named.items))
        and all(isinstance(entry.content, ValueReference) for entry in graph.inputs)
    ):
        return [*args, *(kwargs[name] for name in named.keys)]
    names = iter(graph.inputs)
    data = []
    for leaf in _leaves(graph.input_tree, _bound(graph, args, kwargs), "inputs", _Constants(graph)):
        entry = next(names)
        if isinstance(entry.content, ValueReference):
            data.append(leaf)
        elif leaf is not _LEFT_OUT and not _equal(leaf, entry.content):
            raise InvalidArgument(
                f"input {entry.name!r} is {leaf!r:.80}, the graph was captured with {entry.content!r}; "
                "pass that, or export the module again with the other"
            )
    return data


def arguments_of(graph: Graph) -> tuple[TreeTuple, TreeDict]:
    """What the graph was captured with, by position and by name."""
    arguments = graph.input_tree
    assert isinstance(arguments, TreeTuple)
    given, named = arguments.items
    assert isinstance(given, TreeTuple)
    assert isinstance(named, TreeDict)
    return given, named


def argument_names(graph: Graph) -> tuple[str, ...]:
    """Of the module that the graph was captured from; containers that were given by position are left out."""
    given, named = arguments_of(graph)
    return (*filter(None, _positional_names(graph, given)), *named.keys)


def unflatten_outputs(graph: Graph, leaves: Sequence[Any]) -> Any:
    """The module's result, of the leaves that are not constant, in order; constants and None come from the graph.

    A registered container comes back as its own type if this process has it, else as a dict.
    """
    needed = sum(isinstance(entry.content, ValueReference) for entry in graph.outputs)
    if len(leaves) != needed:
        raise InvalidArgument(f"{len(leaves)} output leaves, the graph gives {needed}")
    data = iter(leaves)
    every = iter(
        [next(data) if isinstance(entry.content, ValueReference) else entry.content for entry in graph.outputs]
    )
    return _build(graph.output_tree, every)


_LEFT_OUT = object()


def _positional_names(graph: Graph, given: TreeTuple) -> list[str | None]:
    """None for a container: the graph has only the names of what is in it."""
    names, position = list[str | None](), 0
    for item in given.items:
        names.append(graph.inputs[position].name if isinstance(item, TreeLeaf) else None)
        position += _count_leaves(item)
    return names


def _bound(graph: Graph, args: Sequence[Any], kwargs: Mapping[str, Any]) -> tuple[tuple[Any, ...], Mapping[str, Any]]:
    """By position, where the graph was captured so, and by name."""
    given, named = arguments_of(graph)
    if len(args) == len(given.items) and all(name in named.keys for name in kwargs):
        return tuple(args), kwargs
    names = _positional_names(graph, given)
    takes_container = bool(given.items) and not isinstance(given.items[0], TreeLeaf)
    if len(args) == 1 and not (kwargs or takes_container) and isinstance(args[0], (tuple, list, Mapping)):
        raise InvalidArgument(
            f"one {type(args[0]).__name__} for {len(argument_names(graph))} inputs: unpack it, as step(*batch) or"
            " step(**batch) does"
        )
    if len(args) > len(names):
        by_name = f"; by name it has {', '.join(map(repr, named.keys))}" if named.keys else ""
        raise InvalidArgument(f"inputs by position: {len(args)}, the graph was captured with {len(names)}{by_name}")
    left = dict(kwargs)
    bound = (*args, *(left.pop(name, _LEFT_OUT) if name else _LEFT_OUT for name in names[len(args) :]))
    for name in left:
        if name not in named.keys:
            raise InvalidArgument(
                f"input {name!r} is given by position too"
                if name in names
                else f"input {name!r}: the graph was captured without it; it has {list(argument_names(graph))}"
            )
    return bound, left


class _Constants:
    """Tells which subtrees of the inputs hold nothing but constants."""

    def __init__(self, graph: Graph) -> None:
        self._fixed = [not isinstance(entry.content, ValueReference) for entry in graph.inputs]
        self._graph = graph
        self._position = 0

    @property
    def next_name(self) -> str:
        return self._graph.inputs[self._position].name

    def take(self, tree: PyTree) -> tuple[bool, ...]:
        """Which of the tree's leaves, the next ones, are constants."""
        count = _count_leaves(tree)
        are_constant = tuple(self._fixed[self._position : self._position + count])
        self._position += count
        return are_constant


def _leaves(tree: PyTree, given: Any, where: str, constants: _Constants) -> Iterator[Any]:
    if isinstance(tree, TreeLeaf):
        constants.take(tree)
        yield given
        return
    if isinstance(tree, TreeNone):
        if given is not None:
            raise InvalidArgument(f"{where}: found {type(given).__name__}, the graph was captured with None")
        return
    items = _items_of(tree, given, where)
    for key, item in zip(_keys(tree), tree.items, strict=True):
        value = items.get(key, _LEFT_OUT)
        place = f"{where}[{key!r}]"
        if value is not _LEFT_OUT:
            yield from _leaves(item, value, place, constants)
            continue
        first = constants.next_name if _count_leaves(item) else ""
        fixed = constants.take(item)
        if not all(fixed):
            raise InvalidArgument(f"input {first!r} ({place}) is missing; the graph was captured with it")
        yield from (_LEFT_OUT for _ in fixed)


def _items_of(tree: PyTree, given: Any, where: str) -> Mapping[Any, Any]:
    """What was given, by the tree's keys. Raises InvalidArgument for another container or for keys it does not have."""
    keys = _keys(tree)
    if isinstance(tree, TreeObject):
        items = _object_items(tree, given, where)
    elif isinstance(tree, TreeDict):
        items = dict(given) if isinstance(given, Mapping) else None
    else:
        needed = list if isinstance(tree, TreeList) else tuple
        items = dict(enumerate(given)) if isinstance(given, needed) else None
    if items is None:
        raise InvalidArgument(f"{where}: found {type(given).__name__}, the graph was captured with {_kind(tree)}")
    unknown = [key for key in items if key not in keys]
    if unknown:
        raise InvalidArgument(f"{where}[{unknown[0]!r}]: the graph was captured without it; it has {list(keys)}")
    return items


def _object_items(tree: TreeObject, given: Any, where: str) -> dict[Any, Any] | None:
    if isinstance(given, Mapping):
        return dict(given)
    if isinstance(given, list | tuple):
        return dict(zip(tree.keys, given, strict=False)) if len(given) == len(tree.keys) else None
    missing = [key for key in tree.keys if not hasattr(given, key)]
    if missing:
        raise InvalidArgument(f"{where}: {type(given).__name__} has no {missing[0]!r}, as {tree.type_name} has")
    return {key: getattr(given, key) for key in tree.keys}


def _keys(tree: PyTree) -> tuple[Any, ...]:
    if isinstance(tree, TreeDict | TreeObject):
        return tree.keys
    return tuple(range(len(tree.items))) if isinstance(tree, TreeList | TreeTuple) else ()


def _kind(tree: PyTree) -> str:
    if isinstance(tree, TreeObject):
        return tree.type_name
    return {TreeDict: "a dict", TreeList: "a list", TreeTuple: "a tuple"}[type(tree)]


def _count_leaves(tree: PyTree) -> int:
    if isinstance(tree, TreeLeaf):
        return 1
    return 0 if isinstance(tree, TreeNone) else sum(_count_leaves(item) for item in tree.items)


def _equal(value: Any, needed: Any) -> bool:
    return type(value) is type(needed) and bool(value == needed)


def _build(tree: PyTree, leaves: Iterator[Any]) -> Any:
    if isinstance(tree, TreeLeaf):
        return next(leaves)
    if isinstance(tree, TreeNone):
        return None
    items = [_build(item, leaves) for item in tree.items]
    if isinstance(tree, TreeList):
        return items
    if isinstance(tree, TreeTuple):
        return tuple(items)
    if isinstance(tree, TreeDict):
        return dict(zip(tree.keys, items, strict=True))
    rebuild = _containers.get((tree.type_name, tree.keys)) or _registered(tree)
    return dict(zip(tree.keys, items, strict=True)) if rebuild is None else rebuild(items)


def _registered(tree: TreeObject) -> Rebuild | None:
    """The container that this process has registered with torch under that label; nothing is imported for it."""
    pytree = sys.modules.get("torch.utils._pytree")
    if pytree is None:
        return None
    registered = pytree.SERIALIZED_TYPE_TO_PYTHON_TYPE.get(tree.type_name)
    if registered is None:
        return _of_torch(tree.type_name)
    definition = pytree.SUPPORTED_NODES[registered]
    return lambda items: definition.unflatten_fn(items, list(tree.keys))


def _of_torch(type_name: str) -> Rebuild | None:
    """A named tuple as operators return them (`torch.return_types.topk`), which torch registers without a label."""
    module, _, name = type_name.rpartition(".")
    types = sys.modules.get("torch.return_types") if module == "torch.return_types" else None
    kind = getattr(types, name, None)
    return kind if kind in getattr(types, "all_return_types", ()) else None
