"""What a user asks of where modules go: modules kept on a device, and modules kept together, as arrays by node."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from difflib import get_close_matches

import numpy as np

from planner.errors import OptionsError
from planner.graph.alias import DisjointSets
from planner.partition.problem import FREE, Integers

_MAX_SHOWN = 1000

Groups = tuple[tuple[int, ...], ...]


def joined_groups(groups: Groups, module_paths: Sequence[str], together: Sequence[Sequence[str]]) -> Groups:
    """`groups` of node indexes, with the modules of each entry of `together` joined. Raises OptionsError.

    In an entry of one path, `*` stands for a name: "layers.*" keeps each layer whole, apart from the others.
    """
    if not together:
        return groups
    modules = _Modules(module_paths)
    sets = DisjointSets()
    entries = [names for entry in together for names in modules.matching(entry)]
    for group in (*groups, *(modules.nodes_of(names, "together") for names in entries)):
        for node in group[1:]:
            sets.join(group[0], node)
    return sets.sets()


def fixed_devices(
    fixed: Sequence[tuple[str, str]], module_paths: Sequence[str], groups: Groups, device_ids: Sequence[str]
) -> Integers:
    """[n] the device index that each node is kept on, or FREE. The longest path that holds a node decides; a whole
    group goes where any of its nodes has to. Raises OptionsError."""
    device_of_node = np.full(len(module_paths), FREE, dtype=np.int64)
    if not fixed:
        return device_of_node
    modules = _Modules(module_paths)
    index = {device_id: position for position, device_id in enumerate(device_ids)}
    device_of_path: dict[str, str] = {}
    for path, device_id in fixed:
        if device_id not in index:
            near = get_close_matches(device_id[:_MAX_SHOWN], list(index), n=3, cutoff=0.4) or list(index)[:10]
            raise OptionsError(
                f"fixed: module {path!r} is to be on device {device_id[:_MAX_SHOWN]!r}, which is not in the inventory; "
                f"it has {', '.join(map(repr, near))}",
                device=device_id[:_MAX_SHOWN],
            )
        if device_of_path.setdefault(path, device_id) != device_id:
            raise OptionsError(
                f"fixed: module {path!r} is to be on {device_of_path[path]!r} and on {device_id!r}; name one"
            )
    for path in sorted(device_of_path, key=len):
        device_of_node[list(modules.nodes_of((path,), "fixed"))] = index[device_of_path[path]]
    for group in groups:
        _fix_group(device_of_node, group, module_paths, device_ids)
    return device_of_node


def _fix_group(
    device_of_node: Integers, group: Sequence[int], module_paths: Sequence[str], device_ids: Sequence[str]
) -> None:
    nodes = [node for node in group if device_of_node[node] != FREE]
    if not nodes:
        return
    first = nodes[0]
    other = next((node for node in nodes if device_of_node[node] != device_of_node[first]), None)
    if other is not None:
        raise OptionsError(
            f"fixed: node {first} of {module_paths[first]!r} is to be on {device_ids[device_of_node[first]]!r}, node "
            f"{other} of {module_paths[other]!r} on {device_ids[device_of_node[other]]!r}, but the two have to share a "
            f"stage: they use storage that is written in place, or are named together"
        )
    device_of_node[list(group)] = device_of_node[first]


class _Modules:
    """Nodes of each module, those of the modules inside it included."""

    def __init__(self, module_paths: Sequence[str]) -> None:
        self._nodes: dict[str, list[int]] = {}
        for node, path in enumerate(module_paths):
            while path:
                self._nodes.setdefault(path, []).append(node)
                path = path.rpartition(".")[0]

    def matching(self, entry: Sequence[str]) -> list[tuple[str, ...]]:
        """The entry itself, or an entry for each module that its one pattern matches."""
        if len(entry) != 1 or "*" not in entry[0]:
            return [tuple(entry)]
        pattern = entry[0].split(".")
        matches: list[tuple[str, ...]] = [
            (path,)
            for path in self._nodes
            if len(names := path.split(".")) == len(pattern)
            and all(want in ("*", name) for want, name in zip(pattern, names, strict=True))
        ]
        return matches or [tuple(entry)]

    def nodes_of(self, paths: Sequence[str], option: str) -> tuple[int, ...]:
        """Ascending."""
        if not paths:
            raise OptionsError(f"{option}: an entry names no module; name two or more, or leave it out")
        nodes: set[int] = set()
        for path in paths:
            if path not in self._nodes:
                raise unknown_module(option, path, self._nodes)
            nodes.update(self._nodes[path])
        return tuple(sorted(nodes))


def unknown_module(option: str, path: str, modules: Collection[str]) -> OptionsError:
    """Says what comes near it."""
    shown = path if len(path) <= _MAX_SHOWN else path[:_MAX_SHOWN] + "..."
    near = get_close_matches(path[:_MAX_SHOWN], modules, n=3, cutoff=0.5)
    if not modules:
        help_ = "the graph's nodes carry no module paths, so none can be named"
    elif near:
        help_ = f"did you mean {' or '.join(map(repr, near))}?"
    else:
        help_ = f"its top modules are {', '.join(map(repr, sorted(name for name in modules if '.' not in name)[:10]))}"
    return OptionsError(f"{option}: no node runs in module {shown!r}; {help_}", module_path=shown)
