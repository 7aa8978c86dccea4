"""Measured times as JSON, for people who measured by other means.

    {"graph_id": "3f9a…",                      optional: the digest of the graph; checked where it is known
     "device_kind": "h200",
     "symbol_values": {"batch": 8},            optional: dynamic dimensions that the times were taken at, else the hints
     "source": "profiler run of 3 May",        optional: for people
     "delivery": {"input_seconds": 2.1e-4,     optional: of taking a microbatch's inputs from a client,
                  "output_seconds": 1.8e-4},   and of handing its outputs over
     "update": {"norm_seconds": 3e-4,          optional: of the norms of all gradients at a training step's end,
                "optimizer_seconds": 2e-4},    and of a step of SGD on all states
     "num_threads": 1,                         optional: of an operator, where a CPU's workers have as many each
     "times": [{"node": 0, "seconds": 1.2e-5},
               {"nodes": [4, 9, 14], "seconds": 3.1e-4,
                "backward_seconds": 6e-4,        optional: of the backward pass through each,
                "input_gradient_seconds": 3e-4,  and of that in two, as schedules that split it have it:
                "weight_gradient_seconds": 4e-4, both or neither;
                "saved": {"inputs": true,        and what is kept for it of each call: what it reads,
                          "outputs": false,      what it returns,
                          "within_bytes": 65536}} and what it makes besides
              ]}

`node` is an index into the graph's nodes; nodes without a time fall back to the roofline. A file holds one such object,
or a list of them (several kinds, several dimensions).
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict
from typing import Any, NamedTuple

from planner.cost.measured import Delivery, MeasuredTimes, StateUpdate, symbol_values_of
from planner.declared_types import MOST_INTEGER
from planner.errors import InvalidArgument
from planner.graph.saved import Saved

MAX_NODE = 1 << 40
# A field of an entry that may be left out.
BACKWARD = "backward_seconds"
# Both or neither, beside it: the same pass in two.
SPLIT = ("input_gradient_seconds", "weight_gradient_seconds")
# And what is kept for it.
SAVED = "saved"
SAVED_FIELDS = ("inputs", "outputs", "within_bytes")
DELIVERY_FIELDS = ("input_seconds", "output_seconds")
UPDATE_FIELDS = ("norm_seconds", "optimizer_seconds")
FIELDS = ("graph_id", "device_kind", "symbol_values", "source", "delivery", "update", "num_threads", "times")


def read_times(text: str | bytes) -> tuple[MeasuredTimes, ...]:
    """Raises InvalidArgument, naming the entry."""
    try:
        content = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise InvalidArgument(f"measured times: not JSON ({error})") from None
    if isinstance(content, list):
        return tuple(_table(f"[{index}].", one) for index, one in enumerate(content))
    return (_table("", content),)


def write_times(tables: Sequence[MeasuredTimes]) -> str:
    """What `read_times` reads back as the same tables; nodes of one time stand together."""
    documents = [_document(times) for times in tables]
    return json.dumps(documents[0] if len(documents) == 1 else documents, indent=1) + "\n"


def _document(times: MeasuredTimes) -> dict[str, Any]:
    backward = dict(times.backward_seconds)
    split = {node: halves for node, *halves in times.split_seconds}
    saved = dict(times.saved)
    nodes: dict[tuple[tuple[str, float | Saved], ...], list[int]] = {}
    for node, seconds in times.seconds:
        fields: list[tuple[str, float | Saved]] = [("seconds", seconds)]
        fields += [(BACKWARD, backward[node])] if node in backward else []
        fields += zip(SPLIT, split.get(node, ()), strict=False)
        fields += [(SAVED, saved[node])] if node in saved else []
        nodes.setdefault(tuple(fields), []).append(node)
    return {
        "graph_id": times.graph_id,
        "device_kind": times.device_kind,
        "symbol_values": dict(times.symbol_values),
        "source": times.source,
        **({} if times.delivery is None else {"delivery": asdict(times.delivery)}),
        **({} if times.update is None else {"update": asdict(times.update)}),
        **({"num_threads": times.num_threads} if times.num_threads else {}),
        "times": [
            {"nodes": together} | {name: asdict(one) if isinstance(one, Saved) else one for name, one in fields}
            for fields, together in nodes.items()
        ],
    }


def _table(where: str, content: object) -> MeasuredTimes:
    table = _object(where.rstrip(".") or "measured times", content)
    unknown = sorted(table.keys() - set(FIELDS))
    if unknown:
        raise InvalidArgument(f"{where}{unknown[0][:80]}: no such field; there are {', '.join(FIELDS)}")
    seconds: dict[int, float] = {}
    backward: dict[int, float] = {}
    split: dict[int, tuple[float, float]] = {}
    saved: dict[int, Saved] = {}
    for at, node, one in _times(where, table.get("times")):
        if node in seconds:
            raise InvalidArgument(f"{at}: node {node} has a time already")
        seconds[node] = one.seconds
        if one.backward is not None:
            backward[node] = one.backward
        if one.halves is not None:
            split[node] = one.halves
        if one.saved is not None:
            saved[node] = one.saved
    graph_id = _text(f"{where}graph_id", table.get("graph_id", ""))
    device_kind = _text(f"{where}device_kind", table.get("device_kind", ""))
    symbols = _symbols(f"{where}symbol_values", table.get("symbol_values", {}))
    source = _text(f"{where}source", table.get("source", ""))
    num_threads = _integer(f"{where}num_threads", table.get("num_threads", 0))
    try:
        return MeasuredTimes(
            graph_id=graph_id,
            device_kind=device_kind,
            symbol_values=symbol_values_of(symbols),
            source=source,
            seconds=tuple(sorted(seconds.items())),
            backward_seconds=tuple(sorted(backward.items())),
            split_seconds=tuple((node, *halves) for node, halves in sorted(split.items())),
            saved=tuple((node, saved[node]) for node in sorted(saved)),
            delivery=_delivery(f"{where}delivery", table["delivery"]) if "delivery" in table else None,
            update=_update(f"{where}update", table["update"]) if "update" in table else None,
            num_threads=num_threads,
        )
    except InvalidArgument as error:
        raise InvalidArgument(f"{where}{error.message}") from None


class _Entry(NamedTuple):
    seconds: float
    backward: float | None
    halves: tuple[float, float] | None
    saved: Saved | None


def _times(where: str, content: object) -> Iterator[tuple[str, int, _Entry]]:
    """(where it stands, node, what is said of it)."""
    if not isinstance(content, list) or not content:
        raise InvalidArgument(f"{where}times: needs a list of at least one {{node, seconds}}")
    for index, entry in enumerate(content):
        at = f"{where}times[{index}]"
        fields = _object(at, entry)
        node_fields = [name for name in ("node", "nodes") if name in fields]
        if len(node_fields) != 1 or fields.keys() - {BACKWARD, *SPLIT, SAVED} != {node_fields[0], "seconds"}:
            raise InvalidArgument(f"{at}: has {sorted(fields)[:5]}, needs seconds and either node or nodes")
        one = _Entry(
            seconds=_seconds(f"{at}.seconds", fields["seconds"]),
            backward=_seconds(f"{at}.{BACKWARD}", fields[BACKWARD]) if BACKWARD in fields else None,
            halves=_halves(at, fields),
            saved=_saved(f"{at}.{SAVED}", fields[SAVED]) if SAVED in fields else None,
        )
        for node in _nodes(at, node_fields[0], fields[node_fields[0]]):
            yield at, node, one


def _halves(at: str, fields: Mapping[str, object]) -> tuple[float, float] | None:
    present = [name for name in SPLIT if name in fields]
    if not present:
        return None
    if len(present) == 1:
        raise InvalidArgument(f"{at}: has {present[0]} alone, needs {' and '.join(SPLIT)} or neither")
    inputs, weights = (_seconds(f"{at}.{name}", fields[name]) for name in SPLIT)
    return inputs, weights


def _saved(where: str, content: object) -> Saved:
    fields = _all(where, content, SAVED_FIELDS)
    for name in ("inputs", "outputs"):
        if not isinstance(fields[name], bool):
            raise InvalidArgument(f"{where}.{name} is {str(fields[name])[:40]}, needs true or false")
    within_bytes = _integer(f"{where}.within_bytes", fields["within_bytes"])
    return Saved(inputs=fields["inputs"], outputs=fields["outputs"], within_bytes=within_bytes)


def _nodes(at: str, name: str, content: object) -> Iterable[int]:
    nodes = [content] if name == "node" else content
    if not isinstance(nodes, list):
        raise InvalidArgument(f"{at}.nodes: needs a list of node indexes")
    for node in nodes:
        if isinstance(node, bool) or not isinstance(node, int) or not 0 <= node <= MAX_NODE:
            raise InvalidArgument(f"{at}.{name}: {str(node)[:40]!r} is no index of a node, which is an integer from 0")
    return nodes


def _delivery(where: str, content: object) -> Delivery:
    return Delivery(**_both(where, content, DELIVERY_FIELDS))


def _update(where: str, content: object) -> StateUpdate:
    return StateUpdate(**_both(where, content, UPDATE_FIELDS))


def _both(where: str, content: object, names: tuple[str, str]) -> dict[str, float]:
    fields = _all(where, content, names)
    return {name: _seconds(f"{where}.{name}", fields[name]) for name in names}


def _all(where: str, content: object, names: Sequence[str]) -> Mapping[str, Any]:
    fields = _object(where, content)
    if fields.keys() != set(names):
        raise InvalidArgument(f"{where}: has {sorted(fields)[:5]}, needs {', '.join(names[:-1])} and {names[-1]}")
    return fields


def _seconds(where: str, content: object) -> float:
    if isinstance(content, bool) or not isinstance(content, (int, float)) or not 0 <= content <= sys.float_info.max:
        raise InvalidArgument(f"{where} is {content!r:.40}, needs a finite number from 0")
    return float(content)


def _symbols(where: str, content: object) -> Mapping[str, int]:
    symbols = _object(where, content)
    return {name: _integer(f"{where}.{name[:80]}", value) for name, value in symbols.items()}


def _integer(where: str, content: object) -> int:
    if isinstance(content, bool) or not isinstance(content, int) or not -MOST_INTEGER <= content <= MOST_INTEGER:
        raise InvalidArgument(f"{where} is {content!r:.40}, needs an integer of at most 64 bits")
    return content


def _text(where: str, content: object) -> str:
    if not isinstance(content, str):
        raise InvalidArgument(f"{where} is {str(content)[:40]}, needs a text")
    return content


def _object(where: str, content: object) -> Mapping[str, Any]:
    if not isinstance(content, dict):
        raise InvalidArgument(f"{where}: is {type(content).__name__}, needs an object")
    return content
