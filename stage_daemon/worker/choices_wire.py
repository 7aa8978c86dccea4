"""What a session chose of the outputs, from its message, within bounds."""

from __future__ import annotations

from collections.abc import Sequence

from protos.v1 import stage_daemon_pb2
from stage_daemon.errors import InvalidRequest
from stage_daemon.runtime.choices import Choice

MAX_CHOICES = 4096
MAX_DIMS = 64


def choices_from_proto(messages: Sequence[stage_daemon_pb2.ChosenOutput], num_outputs: int) -> tuple[Choice, ...]:
    """Raises InvalidRequest."""
    if len(messages) > MAX_CHOICES:
        raise InvalidRequest(f"outputs: {len(messages)} are chosen, {MAX_CHOICES} at most can be")
    return tuple(_choice(position, message, num_outputs) for position, message in enumerate(messages))


def _choice(position: int, message: stage_daemon_pb2.ChosenOutput, num_outputs: int) -> Choice:
    where = f"outputs[{position}]"
    if message.index >= num_outputs:
        raise InvalidRequest(f"{where}: output {message.index} of a graph that gives {num_outputs}")
    if len(message.dims) > MAX_DIMS:
        raise InvalidRequest(f"{where}: {len(message.dims)} dimensions, {MAX_DIMS} at most can be named")
    return Choice(
        index=message.index,
        dims=tuple(_dim(where, dim) for dim in message.dims),
        argmax_dim=message.argmax_dim if message.HasField("argmax_dim") else None,
    )


def _dim(where: str, message: stage_daemon_pb2.ChosenDimension) -> int | slice:
    kind = message.WhichOneof("kind")
    if kind == "index":
        return message.index
    if kind is None or not 1 <= message.slice.step < 1 << 63:
        raise InvalidRequest(f"{where}: a dimension that is neither an index nor a slice of a step of at least 1")
    part = message.slice
    return slice(
        part.start if part.HasField("start") else None, part.stop if part.HasField("stop") else None, part.step
    )
