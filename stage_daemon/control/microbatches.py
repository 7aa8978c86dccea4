"""Whether what a client streams fits the deployment, checked before it gets near a worker.

Its size is, before it is parsed: a message may be as large as a service takes, and parsing takes as much again.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

from google.protobuf.message import DecodeError

from access.pieces import PIECE_BYTES
from protos.v1 import graph_pb2, stage_daemon_pb2
from stage_daemon.control.callers import LISTS_BYTES
from stage_daemon.control.skimming import SkimmedMicrobatch, skim_microbatch
from stage_daemon.errors import InvalidMicrobatch, InvalidRequest
from stage_daemon.transport.dtypes import DTYPES

_BYTES = {graph_pb2.Dtype.Value(f"DTYPE_{name.upper()}"): facts.size_bytes for name, facts in DTYPES.items()}
_KIND_FIELDS = {
    graph_pb2.VALUE_KIND_TENSOR: "tensor",
    graph_pb2.VALUE_KIND_SYM_INT: "integer",
    graph_pb2.VALUE_KIND_SYM_FLOAT: "floating",
    graph_pb2.VALUE_KIND_SYM_BOOL: "boolean",
}
# Of a message beside the bytes of its tensors: more than its fields, and a tensor's dims, take.
_FIELD_BYTES = 64
_DIM_BYTES = 16
# Of a state beside its name and its content: a digest, dims, the names of fields.
_STATE_BYTES = 256
# A step may bring more microbatches than its schedule has, which then run in rounds.
MOST_ROUNDS = 64


def parse_inputs(content: bytes, most_bytes: float) -> stage_daemon_pb2.SendInputsRequest:
    """Raises InvalidMicrobatch where there are more, InvalidRequest where they are no such message."""
    _check_size(content, most_bytes)
    try:
        return stage_daemon_pb2.SendInputsRequest.FromString(content)
    except DecodeError:
        raise InvalidRequest("SendInputs: a message cannot be parsed") from None


def read_microbatch(content: bytes, most_bytes: float) -> SkimmedMicrobatch:
    """Of a message after `open`; raises as parse_inputs. A large one is not parsed, and goes on as it came."""
    _check_size(content, most_bytes)
    if len(content) > PIECE_BYTES:
        try:
            return skim_microbatch(content)
        except DecodeError as error:
            raise InvalidRequest(f"SendInputs: a large message holds one `microbatch`, simply: {error}") from None
    request = parse_inputs(content, most_bytes)
    if request.WhichOneof("content") != "microbatch":
        raise InvalidRequest("SendInputs: after `open` each message has to be a `microbatch`")
    microbatch = request.microbatch
    return SkimmedMicrobatch(
        microbatch=microbatch,
        data_bytes=tuple(len(datum.tensor.data) for datum in microbatch.values),
        content=microbatch.SerializeToString(),
    )


def _check_size(content: bytes, most_bytes: float) -> None:
    if len(content) > most_bytes:
        raise InvalidMicrobatch(
            f"a message of {len(content)} bytes came, and at most {most_bytes:.0f} are taken here; "
            "send fewer samples in each microbatch",
            most_bytes=int(most_bytes),
        )


def most_input_bytes(connection: stage_daemon_pb2.ConnectStagesRequest) -> float:
    """Of a message with inputs as large as their dimensions allow; infinite where one has no bound that is known."""
    symbols = {symbol.id: symbol for symbol in connection.symbols}
    return _FIELD_BYTES + sum(_most_bytes(declared, symbols) for declared in connection.inputs)


def most_training_bytes(
    connection: stage_daemon_pb2.ConnectStagesRequest, loaded: stage_daemon_pb2.LoadStagesRequest
) -> float:
    """Of a TrainRequest behind `open`, whichever it is: a step, every state that is here, or names of states."""
    microbatch_bytes = _FIELD_BYTES + (most_input_bytes(connection) if connection.inputs else 0)
    step_bytes = MOST_ROUNDS * max(1, connection.training.microbatches) * microbatch_bytes
    states = (state for stage in loaded.stages for state in stage.states)
    states_bytes = sum(_STATE_BYTES + len(state.name.encode()) + state.length_bytes for state in states)
    return LISTS_BYTES + max(step_bytes, states_bytes)


def check_training_bytes(content: bytes, most_bytes: float) -> None:
    """Raises InvalidRequest."""
    if len(content) > most_bytes:
        raise InvalidRequest(
            f"Train: a message of {len(content):,} bytes came, and at most {most_bytes:,.0f} are taken here; bring the "
            "microbatches of a step in several parts (`accumulate`, then `apply`)"
        )


def _most_bytes(declared: stage_daemon_pb2.EdgeValue, symbols: Mapping[int, graph_pb2.Symbol]) -> float:
    if declared.kind != graph_pb2.VALUE_KIND_TENSOR:
        return _FIELD_BYTES
    content_bytes = math.prod(_most(dim, symbols) for dim in declared.dims) * _BYTES.get(declared.dtype, math.inf)
    return _FIELD_BYTES + _DIM_BYTES * len(declared.dims) + content_bytes


def _most(dim: graph_pb2.Expression, symbols: Mapping[int, graph_pb2.Symbol]) -> float:
    if dim.HasField("constant"):
        return dim.constant
    symbol = symbols.get(dim.symbol) if dim.HasField("symbol") else None
    return symbol.upper if symbol is not None and symbol.HasField("upper") else math.inf


def check_microbatch(
    skimmed: SkimmedMicrobatch, inputs: Sequence[stage_daemon_pb2.EdgeValue], expected_sequence: int
) -> None:
    """Raises InvalidMicrobatch, naming the input."""
    microbatch = skimmed.microbatch
    if microbatch.sequence != expected_sequence:
        raise InvalidMicrobatch(
            f"microbatch {microbatch.sequence} came where {expected_sequence} was due; count from 1 without gaps",
            sequence=microbatch.sequence,
        )
    if len(microbatch.values) != len(inputs):
        names = ", ".join(declared.name or f"#{index}" for index, declared in enumerate(inputs))
        raise InvalidMicrobatch(
            f"microbatch {microbatch.sequence} has {len(microbatch.values)} values, the deployment takes "
            f"{len(inputs)}: {names}",
            sequence=microbatch.sequence,
        )
    for index, (datum, data_bytes, declared) in enumerate(
        zip(microbatch.values, skimmed.data_bytes, inputs, strict=True)
    ):
        where = f"microbatch {microbatch.sequence}, input {declared.name or index!r}"
        _check_datum(where, datum, data_bytes, declared)


def _check_datum(
    where: str, datum: stage_daemon_pb2.Datum, data_bytes: int, declared: stage_daemon_pb2.EdgeValue
) -> None:
    kind, needed = datum.WhichOneof("kind"), _KIND_FIELDS.get(declared.kind)
    if kind != needed:
        raise InvalidMicrobatch(f"{where}: {kind or 'nothing'} came, a value of kind {needed} is needed")
    if kind == "tensor":
        _check_tensor(where, datum.tensor, data_bytes, declared)


def _check_tensor(
    where: str, tensor: stage_daemon_pb2.Tensor, data_bytes: int, declared: stage_daemon_pb2.EdgeValue
) -> None:
    if tensor.dtype != declared.dtype:
        raise InvalidMicrobatch(f"{where}: dtype {_dtype(tensor.dtype)}, needs {_dtype(declared.dtype)}")
    dims = tuple(tensor.dims)
    fits = len(dims) == len(declared.dims) and all(
        not declared_dim.HasField("constant") or declared_dim.constant == dim
        for declared_dim, dim in zip(declared.dims, dims, strict=True)
    )
    if not fits:
        wanted_dims = [str(dim.constant) if dim.HasField("constant") else "any" for dim in declared.dims]
        raise InvalidMicrobatch(f"{where}: dims {list(dims)}, needs [{', '.join(wanted_dims)}]")
    size_bytes = math.prod(dims) * _BYTES[tensor.dtype]
    if size_bytes != data_bytes:
        raise InvalidMicrobatch(f"{where}: {data_bytes} bytes came, dims {list(dims)} need {size_bytes}")


def _dtype(number: graph_pb2.Dtype.ValueType) -> str:
    if number not in _BYTES:
        return str(number)
    return graph_pb2.Dtype.Name(number).removeprefix("DTYPE_").lower()
