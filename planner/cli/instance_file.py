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

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from planner.cli.inventory_file import INVENTORY_KEYS, parse_inventory
from planner.cost.inventory import Inventory
from planner.errors import GraphError, InventoryError
from planner.graph.bounds import MAX_NODES, shown, shown_value
from planner.graph.check import check_graph
from planner.graph.cycle import cycle_text
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

MAX_BYTES = 1 << 50
MAX_SECONDS = 1e15
_NODE_KEYS = frozenset(
    {"id", "seconds", "inputs", "output_bytes", "outputs", "weights", "weight_bytes", "module", "trained"}
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Instance:
    """`node_ids` are the file's, by node index of the graph, which is in topological order."""

    graph: Graph
    inventory: Inventory
    node_ids: tuple[str, ...]


def parse_instance(document: Any) -> Instance:
    """Raises GraphError or InventoryError that names the node or the device."""
    if not isinstance(document, Mapping) or not isinstance(document.get("nodes"), list):
        raise GraphError(
            'the instance has no list of nodes; write {"devices": […], "nodes": […]}, or the published '
            "format, which has maxFPGAs, maxCPUs, nodes and edges"
        )
    unknown = sorted(str(key) for key in document if key not in (*INVENTORY_KEYS, "nodes"))
    if unknown:
        known_keys = ", ".join(("nodes", *sorted(INVENTORY_KEYS)))
        raise GraphError(f"unknown key {shown(unknown[0])}; known: {known_keys}")
    if not document.get("devices"):
        raise InventoryError('the instance has no devices; list at least one under "devices"')
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
        raise GraphError(
            f"the instance has {len(nodes):,} nodes, and at most {MAX_NODES:,} can be placed; "
            f"give groups of nodes as one"
        )
    entries: dict[str, Mapping[str, Any]] = {}
    for index, entry in enumerate(nodes):
        where = f"nodes[{index}]"
        if not isinstance(entry, Mapping) or "id" not in entry:
            raise GraphError(f"{where} is {shown_value(entry)}, needs a mapping with an id")
        unknown = sorted(str(key) for key in entry if key not in _NODE_KEYS)
        if unknown:
            raise GraphError(f"{where}: unknown key {shown(unknown[0])}; known: {', '.join(sorted(_NODE_KEYS))}")
        name = _name(entry["id"], f"{where}: id")
        if name in entries:
            raise GraphError(f"{where}: a node {shown(name)} exists already; give each its own id", node=name)
        entries[name] = entry
    return entries


def _name(content: Any, where: str) -> str:
    """A number is taken for its digits."""
    if isinstance(content, bool) or not isinstance(content, (str, int)) or content == "":
        raise GraphError(f"{where} is {shown_value(content)}, needs a text or a whole number")
    return str(content)


def _topological(entries: Mapping[str, Mapping[str, Any]]) -> list[Mapping[str, Any]]:
    """Nodes after those that they read, else in the file's order. Raises GraphError naming a cycle."""
    done: dict[str, None] = {}
    for root in entries:
        # From each node on the path to what it reads, with the rest of what it reads.
        path: dict[str, Iterator[str]] = {}
        if root not in done:
            path[root] = iter(_producers(root, entries[root], entries))
        while path:
            name, unseen = next(reversed(path.items()))
            producer = next((producer for producer in unseen if producer not in done), None)
            if producer is None:
                done[name] = None
                path.popitem()
            elif producer in path:
                names = list(path)
                cycle = names[names.index(producer) :]
                text = cycle_text([shown(node) for node in reversed(cycle)])
                raise GraphError(f"the nodes form a cycle: {text}, each read by the next; leave one out", node=producer)
            else:
                path[producer] = iter(_producers(producer, entries[producer], entries))
    return [entries[name] for name in done]


def _producers(name: str, entry: Mapping[str, Any], entries: Mapping[str, Mapping[str, Any]]) -> list[str]:
    producers = []
    for source in _inputs(name, entry):
        producer = source if source in entries else source.rpartition("/")[0]
        if producer not in entries:
            raise GraphError(f"node {shown(name)} reads {shown(source)}, and no node has that id", node=name)
        producers.append(producer)
    return producers


def _inputs(name: str, entry: Mapping[str, Any]) -> list[str]:
    inputs = entry.get("inputs", [])
    if not isinstance(inputs, list):
        raise GraphError(f"node {shown(name)}: inputs is {shown_value(inputs)}, needs a list of node ids", node=name)
    return [_name(source, f"node {shown(name)}: inputs[{index}]") for index, source in enumerate(inputs)]


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
        arguments = [self._input(name, source) for source in _inputs(name, entry)]
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
            module_path=_module(name, entry),
            name=name,
            opaque_seconds=tuple(_seconds(name, entry).items()),
        )

    def _input(self, name: str, source: str) -> int:
        producer, output = (source, "") if source in self._outputs else source.rsplit("/", 1)
        outputs = self._outputs[producer]
        if not output and len(outputs) == 1:
            value = next(iter(outputs.values()))
        elif output in outputs:
            value = outputs[output]
        else:
            raise GraphError(
                f"node {shown(name)} reads {shown(source)}; {shown(producer)} has outputs "
                f"{', '.join(f'{shown(producer)[1:-1]}/{output_name[:80]}' for output_name in list(outputs)[:10])}",
                node=name,
            )
        self._read.add(value)
        return value

    def _state(self, name: str, weight: str, size: int, entry: Mapping[str, Any]) -> int:
        value, size_elsewhere = self._states.setdefault(weight, (len(self._values) + 1, size))
        if value > len(self._values):
            self._values.append(_weight_value(value, weight, size))
        if size_elsewhere != size:
            raise GraphError(
                f"node {shown(name)}: weight {shown(weight)} has {size} bytes, and {size_elsewhere} elsewhere",
                node=name,
            )
        if _trained(name, entry):
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
    sizes = entry.get("weights", {})
    if not isinstance(sizes, Mapping):
        raise GraphError(
            f"node {shown(name)}: weights is {shown_value(sizes)}, needs a mapping from name to bytes", node=name
        )
    weights = {str(weight): _size(name, f"weights.{weight}", size) for weight, size in sizes.items()}
    own = f"{name}.weight"
    if "weight_bytes" in entry:
        if own in weights:
            raise GraphError(f"node {shown(name)}: weights has {shown(own)}, which weight_bytes stands for; give one")
        weights[own] = _size(name, "weight_bytes", entry["weight_bytes"])
    return weights


def _output_bytes(name: str, entry: Mapping[str, Any]) -> dict[str, int]:
    outputs = entry.get("outputs")
    if outputs is None:
        return {"": _size(name, "output_bytes", entry.get("output_bytes", 0))}
    if not isinstance(outputs, Mapping) or not outputs:
        raise GraphError(
            f"node {shown(name)}: outputs is {shown_value(outputs)}, needs a mapping from name to bytes", node=name
        )
    if "output_bytes" in entry:
        raise GraphError(f"node {shown(name)} has outputs and output_bytes; give one of them", node=name)
    return {str(output): _size(name, f"outputs.{output}", size) for output, size in outputs.items()}


def _seconds(name: str, entry: Mapping[str, Any]) -> dict[str, float]:
    seconds_of_kind = entry.get("seconds")
    if not isinstance(seconds_of_kind, Mapping) or not seconds_of_kind:
        raise GraphError(
            f"node {shown(name)}: seconds is {shown_value(seconds_of_kind)}, needs a mapping from device kind to "
            "seconds",
            node=name,
        )
    for kind, seconds in seconds_of_kind.items():
        if isinstance(seconds, bool) or not isinstance(seconds, (int, float)) or not 0 <= seconds <= MAX_SECONDS:
            raise GraphError(
                f"node {shown(name)}: seconds.{str(kind)[:80]} is {shown_value(seconds)}, needs a finite number "
                f"from 0 to {MAX_SECONDS:g}; leave a kind out that cannot run the node",
                node=name,
            )
    return {str(kind): float(seconds) for kind, seconds in seconds_of_kind.items()}


def _module(name: str, entry: Mapping[str, Any]) -> str:
    path = entry.get("module", "")
    if not isinstance(path, str):
        raise GraphError(f"node {shown(name)}: module is {shown_value(path)}, needs a text such as layers.0", node=name)
    return path


def _trained(name: str, entry: Mapping[str, Any]) -> bool:
    is_trained = entry.get("trained", True)
    if not isinstance(is_trained, bool):
        raise GraphError(f"node {shown(name)}: trained is {shown_value(is_trained)}, needs true or false", node=name)
    return is_trained


def _size(name: str, field: str, content: Any) -> int:
    if isinstance(content, bool) or not isinstance(content, int) or not 0 <= content <= MAX_BYTES:
        raise GraphError(
            f"node {shown(name)}: {field[:80]} is {shown_value(content)}, needs whole bytes from 0 to 2^50", node=name
        )
    return content
