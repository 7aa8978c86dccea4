"""A cost graph with its devices in one file: what `solve` reads besides the published format.

```yaml
devices: [{id: gpu0, kind: a100, memory: 40GiB}, …]      # as in an inventory file, with links and default_link
nodes:
- id: attention.0
  seconds: {a100: 0.004, t4: 0.02}      # a kind that is left out cannot run the node; "*" stands for all others
  inputs: [embed, norm.0/mean]          # a node's only output, or one of its outputs by name
  output_bytes: 4194304                 # or outputs: {mean: 4096, scale: 4096}
  weights: {wq: 1048576}                # by name; one name in two nodes is one weight. Or weight_bytes: 1048576
  module: layers.0                      # may be left out
```
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from planner.cli.inventory_file import INVENTORY_KEYS, parse_inventory
from planner.cost.inventory import Inventory
from planner.errors import GraphError, InvalidArgument
from planner.graph.check import check_graph
from planner.graph.ir import (
    Dtype,
    Graph,
    Node,
    Operator,
    OperatorKind,
    Output,
    State,
    StateKind,
    TreeLeaf,
    TreeTuple,
    Value,
    ValueKind,
    ValueReference,
)

MAX_NODES = 1_000_000
MAX_BYTES = 1 << 50
_NODE_KEYS = frozenset(
    {"id", "seconds", "inputs", "output_bytes", "outputs", "weights", "weight_bytes", "module", "trained"}
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Instance:
    """`node_ids` are the file's, by node index of the graph, which is in topological order."""

    graph: Graph
    inventory: Inventory
    node_ids: tuple[str, ...]


def read_document(path: Path) -> Any:
    """JSON, or YAML by the file's name. Raises InvalidArgument."""
    try:
        text = path.read_text()
        return yaml.safe_load(text) if path.suffix in (".yaml", ".yml") else json.loads(text)
    except (OSError, ValueError, RecursionError, yaml.YAMLError) as error:
        raise InvalidArgument(f"{path}: {error}") from None


def parse_instance(document: Any) -> Instance:
    """Raises GraphError or InventoryError that names the node or the device."""
    if not isinstance(document, Mapping) or not isinstance(document.get("nodes"), list):
        raise GraphError('the instance has no list of nodes; write {"devices": […], "nodes": […]}')
    unknown = sorted(str(key) for key in document if key not in (*INVENTORY_KEYS, "nodes"))
    if unknown:
        raise GraphError(f"unknown key {unknown[0]!r}; known: {', '.join(('nodes', *sorted(INVENTORY_KEYS)))}")
    inventory = parse_inventory({key: document[key] for key in sorted(INVENTORY_KEYS) if key in document})
    entries = _entries(document["nodes"])
    ordered = _topological(entries)
    graph = _Builder().build(ordered)
    check_graph(graph)
    return Instance(graph=graph, inventory=inventory, node_ids=tuple(str(entry["id"]) for entry in ordered))


def _entries(nodes: Sequence[Any]) -> dict[str, Mapping[str, Any]]:
    if not nodes:
        raise GraphError("the instance has no nodes; there is nothing to place")
    if len(nodes) > MAX_NODES:
        raise GraphError(f"the instance has {len(nodes)} nodes; at most {MAX_NODES} are read")
    entries: dict[str, Mapping[str, Any]] = {}
    for index, entry in enumerate(nodes):
        where = f"nodes[{index}]"
        if not isinstance(entry, Mapping) or "id" not in entry:
            raise GraphError(f"{where} is {entry!r:.80}, needs a mapping with an id")
        unknown = sorted(str(key) for key in entry if key not in _NODE_KEYS)
        if unknown:
            raise GraphError(f"{where}: unknown key {unknown[0]!r}; known: {', '.join(sorted(_NODE_KEYS))}")
        name = str(entry["id"])
        if name in entries:
            raise GraphError(f"{where}: a node {name!r} exists already; give each its own id", node=name)
        entries[name] = entry
    return entries


def _topological(entries: Mapping[str, Mapping[str, Any]]) -> list[Mapping[str, Any]]:
    """Nodes after those that they read, else in the file's order. Raises GraphError naming a cycle."""
    producers = {name: _producers(name, entry, entries) for name, entry in entries.items()}
    done: dict[str, None] = {}
    for root in entries:
        path: dict[str, None] = {}
        stack = [root]
        while stack:
            name = stack[-1]
            if name in done:
                stack.pop()
                continue
            path[name] = None
            waiting = [producer for producer in producers[name] if producer not in done]
            if not waiting:
                done[name] = None
                path.pop(name)
                stack.pop()
                continue
            if waiting[0] in path:
                cycle = [*list(path)[list(path).index(waiting[0]) :], waiting[0]]
                raise GraphError(f"the nodes form a cycle: {' reads '.join(reversed(cycle[-8:]))}", node=waiting[0])
            stack.append(waiting[0])
    return [entries[name] for name in done]


def _producers(name: str, entry: Mapping[str, Any], entries: Mapping[str, Mapping[str, Any]]) -> list[str]:
    inputs = entry.get("inputs", [])
    if not isinstance(inputs, list):
        raise GraphError(f"node {name!r}: inputs is {inputs!r:.80}, needs a list of node ids", node=name)
    found = []
    for given in map(str, inputs):
        producer = given if given in entries else given.rpartition("/")[0]
        if producer not in entries:
            raise GraphError(f"node {name!r} reads {given!r}, and no node has that id", node=name)
        found.append(producer)
    return found


class _Builder:
    """Values are numbered as they come: states where they are first used, then each node's outputs."""

    def __init__(self) -> None:
        self._values: list[Value] = []
        self._states: dict[str, tuple[int, int]] = {}
        self._trained: set[str] = set()
        self._outputs: dict[str, dict[str, int]] = {}
        self._read: set[int] = set()

    def build(self, entries: Sequence[Mapping[str, Any]]) -> Graph:
        nodes = tuple(self._node(str(entry["id"]), entry) for entry in entries)
        unread = [value for outputs in self._outputs.values() for value in outputs.values() if value not in self._read]
        return Graph(
            torch_version="",
            name="instance",
            values=tuple(self._values),
            nodes=nodes,
            states=tuple(
                State(name=name, value_id=value, kind=StateKind.PARAMETER, requires_grad=name in self._trained)
                for name, (value, _) in self._states.items()
            ),
            outputs=tuple(Output(name=f"output_{value}", content=ValueReference(value)) for value in unread),
            input_tree=TreeTuple(()),
            output_tree=TreeTuple(tuple(TreeLeaf() for _ in unread)),
        )

    def _node(self, name: str, entry: Mapping[str, Any]) -> Node:
        arguments = [self._input(name, str(given)) for given in entry.get("inputs", [])]
        arguments += [self._state(name, weight, size, entry) for weight, size in _weights(name, entry).items()]
        self._outputs[name] = {
            output: self._value(f"{name}/{output}" if output else name, size)
            for output, size in _output_bytes(name, entry).items()
        }
        return Node(
            operator=Operator(kind=OperatorKind.OPAQUE, name="opaque"),
            arguments=tuple(map(ValueReference, dict.fromkeys(arguments))),
            outputs=tuple(self._outputs[name].values()),
            returns_tuple=len(self._outputs[name]) != 1,
            module_path=str(entry.get("module", "")),
            name=name,
            opaque_seconds=tuple(_seconds(name, entry).items()),
        )

    def _input(self, name: str, given: str) -> int:
        producer, output = (given, "") if given in self._outputs else given.rsplit("/", 1)
        outputs = self._outputs[producer]
        if not output and len(outputs) == 1:
            value = next(iter(outputs.values()))
        elif output in outputs:
            value = outputs[output]
        else:
            raise GraphError(
                f"node {name!r} reads {given!r}; {producer!r} has outputs "
                f"{', '.join(f'{producer}/{known}' for known in outputs)}",
                node=name,
            )
        self._read.add(value)
        return value

    def _state(self, name: str, weight: str, size: int, entry: Mapping[str, Any]) -> int:
        value, known = self._states.setdefault(weight, (len(self._values) + 1, size))
        if value > len(self._values):
            self._values.append(_weight_value(value, weight, size))
        if known != size:
            raise GraphError(f"node {name!r}: weight {weight!r} has {size} bytes, and {known} elsewhere", node=name)
        if entry.get("trained", True):
            self._trained.add(weight)
        return value

    def _value(self, name: str, size: int) -> int:
        self._values.append(Value(id=len(self._values) + 1, kind=ValueKind.OPAQUE, opaque_bytes=size, name=name))
        return len(self._values)


def _weight_value(value_id: int, name: str, size: int) -> Value:
    """Four-byte elements, where the size allows: what an optimizer keeps goes by elements."""
    dtype = Dtype.UINT8 if size % 4 else Dtype.FLOAT32
    return Value(id=value_id, kind=ValueKind.TENSOR, dtype=dtype, dims=(size // dtype.size_bytes,), name=name)


def _weights(name: str, entry: Mapping[str, Any]) -> dict[str, int]:
    found = entry.get("weights", {})
    if not isinstance(found, Mapping):
        raise GraphError(f"node {name!r}: weights is {found!r:.80}, needs a mapping from name to bytes", node=name)
    weights = {str(weight): _size(name, f"weights.{weight}", size) for weight, size in found.items()}
    if entry.get("weight_bytes"):
        weights[f"{name}.weight"] = _size(name, "weight_bytes", entry["weight_bytes"])
    return weights


def _output_bytes(name: str, entry: Mapping[str, Any]) -> dict[str, int]:
    outputs = entry.get("outputs")
    if outputs is None:
        return {"": _size(name, "output_bytes", entry.get("output_bytes", 0))}
    if not isinstance(outputs, Mapping) or not outputs:
        raise GraphError(f"node {name!r}: outputs is {outputs!r:.80}, needs a mapping from name to bytes", node=name)
    return {str(output): _size(name, f"outputs.{output}", size) for output, size in outputs.items()}


def _seconds(name: str, entry: Mapping[str, Any]) -> dict[str, float]:
    found = entry.get("seconds")
    if not isinstance(found, Mapping) or not found:
        raise GraphError(
            f"node {name!r}: seconds is {found!r:.80}, needs a mapping from device kind to seconds", node=name
        )
    for kind, seconds in found.items():
        if isinstance(seconds, bool) or not isinstance(seconds, (int, float)) or not 0 <= seconds < float("inf"):
            raise GraphError(
                f"node {name!r}: seconds.{kind} is {seconds!r}, needs a finite number from 0; "
                f"leave a kind out that cannot run the node",
                node=name,
            )
    return {str(kind): float(seconds) for kind, seconds in found.items()}


def _size(name: str, field: str, found: Any) -> int:
    if isinstance(found, bool) or not isinstance(found, int) or not 0 <= found <= MAX_BYTES:
        raise GraphError(f"node {name!r}: {field} is {found!r:.80}, needs whole bytes from 0 to 2^50", node=name)
    return found
