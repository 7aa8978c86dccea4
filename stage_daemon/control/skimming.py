"""What a large microbatch says of its tensors, read without their bytes.

Protobuf's parser copies them, and a service's event loop does nothing else meanwhile; so does whoever serializes them
again for the worker.
"""

from __future__ import annotations

from dataclasses import dataclass

from google.protobuf.message import DecodeError

from access.tensor_fields import Numbers, skim, split
from protos.v1 import stage_daemon_pb2

_MICROBATCH = stage_daemon_pb2.SendInputsRequest.DESCRIPTOR.fields_by_name["microbatch"].number
_VALUES = Numbers.of(stage_daemon_pb2.Microbatch.DESCRIPTOR.fields_by_name["values"])


@dataclass(frozen=True, slots=True, kw_only=True)
class SkimmedMicrobatch:
    """A microbatch, whose tensors may lack their bytes; how many each value has; and all of it, serialized."""

    microbatch: stage_daemon_pb2.Microbatch
    data_bytes: tuple[int, ...]
    content: bytes


def skim_microbatch(content: bytes) -> SkimmedMicrobatch:
    """Of a SendInputsRequest. Raises DecodeError where it holds anything but one microbatch, each field once."""
    rest, extent = split(content, _MICROBATCH)
    if rest:
        raise DecodeError(f"field {_MICROBATCH} is not alone")
    skimmed = skim(content, _VALUES, extent)
    return SkimmedMicrobatch(
        microbatch=stage_daemon_pb2.Microbatch.FromString(skimmed.message),
        data_bytes=tuple(end - start for start, end in skimmed.data),
        content=content[slice(*extent)],
    )
