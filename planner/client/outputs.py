"""Which outputs a session wants, and which part of each: `logits`, `logits[:, -1]`, `logits[:, -1].argmax(-1)`.

What is not wanted stays on the last stage's device. The text is read here, never evaluated; daemons are told numbers.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from planner.client.microbatches import carried
from planner.errors import InvalidArgument
from planner.graph.ir import Dtype, Graph, Value, ValueKind
from protos.v1 import stage_daemon_pb2

_NUMBER = re.compile(r"-?\d+")
_SLICE = re.compile(r"(?P<start>-?\d+)?\s*:\s*(?P<stop>-?\d+)?\s*(?::\s*(?P<step>\d+)?)?")
_PART = re.compile(r"(?:\[(?P<dims>[^\[\]]*)\])?(?:\.argmax\(\s*(?:dim\s*=\s*)?(?P<argmax>-?\d+)\s*\))?")
# What sint64 holds.
_MOST = 2**63 - 1
_WITHOUT_ARGMAX = frozenset({Dtype.BOOL, Dtype.COMPLEX64, Dtype.COMPLEX128, Dtype.FLOAT8_E4M3FN, Dtype.FLOAT8_E5M2})


@dataclass(frozen=True, slots=True, kw_only=True)
class ChosenOutput:
    """A part of one output. `dims` says of the first dimensions which index (the dimension goes) or slice is wanted.

    `argmax_dim` is the dimension of that part whose greatest value's index is wanted in place of the values.
    `dtype` is the result's; None for a number.
    """

    text: str
    index: int
    dtype: Dtype | None
    dims: tuple[int | slice, ...] = ()
    argmax_dim: int | None = None

    @property
    def is_whole(self) -> bool:
        return not self.dims and self.argmax_dim is None

    def fill(self, message: stage_daemon_pb2.ChosenOutput) -> None:
        message.index = self.index
        for dim in self.dims:
            if isinstance(dim, int):
                message.dims.add().index = dim
                continue
            part = message.dims.add().slice
            if dim.start is not None:
                part.start = dim.start
            if dim.stop is not None:
                part.stop = dim.stop
            part.step = dim.step
        if self.argmax_dim is not None:
            message.argmax_dim = self.argmax_dim


def choose_outputs(graph: Graph, texts: Sequence[str]) -> tuple[ChosenOutput, ...]:
    """In the order given. Raises InvalidArgument for what the graph does not give, or for a part that none can have."""
    if isinstance(texts, str):
        raise InvalidArgument(f"outputs is {texts!r}, needs a sequence: [{texts!r}]")
    doubled = [text for position, text in enumerate(texts) if text in texts[:position]]
    if doubled:
        raise InvalidArgument(f"output {doubled[0]!r} is chosen twice")
    values = graph.values_by_id()
    outputs = {name: (index, values[value_id]) for index, (name, value_id) in enumerate(carried(graph.outputs))}
    return tuple(_choose(text, outputs) for text in texts)


def by_text(chosen: Sequence[ChosenOutput], leaves: Sequence[Any]) -> dict[str, Any]:
    return {choice.text: leaf for choice, leaf in zip(chosen, leaves, strict=True)}


def every_output(graph: Graph) -> tuple[ChosenOutput, ...]:
    """Whole, as they come where none is chosen."""
    values = graph.values_by_id()
    return tuple(
        ChosenOutput(text=name, index=index, dtype=values[value_id].dtype)
        for index, (name, value_id) in enumerate(carried(graph.outputs))
    )


def _choose(text: str, outputs: dict[str, tuple[int, Value]]) -> ChosenOutput:
    # A name may hold brackets and dots of its own: the longest that fits is meant.
    for name in sorted(outputs, key=len, reverse=True):
        match = _PART.fullmatch(text, len(name)) if text.startswith(name) else None
        if match is not None:
            index, value = outputs[name]
            return _part(text, index, value, match)
    raise InvalidArgument(
        f"output {text!r} is none of the graph's; it gives {', '.join(outputs) or 'none'}, and of a tensor a part as "
        "in name[:, -1] or name[:, -1].argmax(-1)",
        output=text,
    )


def _part(text: str, index: int, value: Value, match: re.Match[str]) -> ChosenOutput:
    if value.kind is not ValueKind.TENSOR:
        if match["dims"] is not None or match["argmax"] is not None:
            raise InvalidArgument(f"output {text!r}: {value.name or 'it'} is one number and has no parts", output=text)
        return ChosenOutput(text=text, index=index, dtype=None)
    dims = tuple(_dims(text, match["dims"])) if match["dims"] is not None else ()
    if len(dims) > len(value.dims):
        raise InvalidArgument(f"output {text!r} names {len(dims)} dimensions of {len(value.dims)}", output=text)
    rank = len(value.dims) - sum(isinstance(dim, int) for dim in dims)
    if match["argmax"] is None:
        return ChosenOutput(text=text, index=index, dtype=value.dtype, dims=dims)
    argmax_dim = int(match["argmax"])
    if not -rank <= argmax_dim < rank:
        raise InvalidArgument(f"output {text!r}: argmax over dimension {argmax_dim} of {rank}", output=text)
    assert value.dtype is not None
    if value.dtype in _WITHOUT_ARGMAX:
        raise InvalidArgument(f"output {text!r}: torch has no argmax of {value.dtype.value}", output=text)
    return ChosenOutput(text=text, index=index, dtype=Dtype.INT64, dims=dims, argmax_dim=argmax_dim)


def _dims(text: str, inside: str) -> Iterator[int | slice]:
    for part in inside.split(","):
        number, sliced = _NUMBER.fullmatch(part.strip()), _SLICE.fullmatch(part.strip())
        if number is not None:
            yield _bounded(text, number[0])
        elif sliced is not None:
            start, stop, step = (
                None if number is None else _bounded(text, number) for number in sliced.group("start", "stop", "step")
            )
            if step == 0:
                raise InvalidArgument(f"output {text!r}: a slice of step 0, needs at least 1", output=text)
            yield slice(start, stop, 1 if step is None else step)
        else:
            raise InvalidArgument(
                f"output {text!r}: {part.strip()!r} is no index and no slice; write 3, -1, 2:5, ::2 or :", output=text
            )


def _bounded(text: str, digits: str) -> int:
    number = int(digits) if len(digits) <= len(str(-_MOST)) else _MOST + 1
    if abs(number) > _MOST:
        raise InvalidArgument(f"output {text!r}: {digits[:30]} is beyond any dimension", output=text)
    return number
