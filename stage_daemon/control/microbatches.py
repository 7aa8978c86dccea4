"""Whether a client's microbatch fits the deployment's inputs, checked before it gets near a worker."""

from __future__ import annotations

import math
from collections.abc import Sequence

from protos.v1 import graph_pb2, stage_daemon_pb2
from stage_daemon.errors import InvalidMicrobatch
from stage_daemon.transport.dtypes import DTYPES

_BYTES = {graph_pb2.Dtype.Value(f"DTYPE_{name.upper()}"): facts.size_bytes for name, facts in DTYPES.items()}
_KIND_FIELDS = {
    graph_pb2.VALUE_KIND_TENSOR: "tensor",
    graph_pb2.VALUE_KIND_SYM_INT: "integer",
    graph_pb2.VALUE_KIND_SYM_FLOAT: "floating",
    graph_pb2.VALUE_KIND_SYM_BOOL: "boolean",
}


def check_microbatch(
    microbatch: stage_daemon_pb2.Microbatch, inputs: Sequence[stage_daemon_pb2.EdgeValue], expected_sequence: int
) -> None:
    """Raises InvalidMicrobatch, naming the input."""
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
    for index, (datum, declared) in enumerate(zip(microbatch.values, inputs, strict=True)):
        where = f"microbatch {microbatch.sequence}, input {declared.name or index!r}"
        _check_datum(where, datum, declared)


def _check_datum(where: str, datum: stage_daemon_pb2.Datum, declared: stage_daemon_pb2.EdgeValue) -> None:
    found, needed = datum.WhichOneof("kind"), _KIND_FIELDS.get(declared.kind)
    if found != needed:
        raise InvalidMicrobatch(f"{where}: {found or 'nothing'} came, a value of kind {needed} is needed")
    if found == "tensor":
        _check_tensor(where, datum.tensor, declared)


def _check_tensor(where: str, tensor: stage_daemon_pb2.Tensor, declared: stage_daemon_pb2.EdgeValue) -> None:
    if tensor.dtype != declared.dtype:
        raise InvalidMicrobatch(f"{where}: dtype {_dtype(tensor.dtype)}, needs {_dtype(declared.dtype)}")
    dims = tuple(tensor.dims)
    fits = len(dims) == len(declared.dims) and all(
        not wanted.HasField("constant") or wanted.constant == dim
        for wanted, dim in zip(declared.dims, dims, strict=True)
    )
    if not fits:
        wanted_dims = [str(dim.constant) if dim.HasField("constant") else "any" for dim in declared.dims]
        raise InvalidMicrobatch(f"{where}: dims {list(dims)}, needs [{', '.join(wanted_dims)}]")
    size_bytes = math.prod(dims) * _BYTES[tensor.dtype]
    if size_bytes != len(tensor.data):
        raise InvalidMicrobatch(f"{where}: {len(tensor.data)} bytes came, dims {list(dims)} need {size_bytes}")


def _dtype(number: graph_pb2.Dtype.ValueType) -> str:
    if number not in _BYTES:
        return str(number)
    return graph_pb2.Dtype.Name(number).removeprefix("DTYPE_").lower()
