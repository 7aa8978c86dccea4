"""What a large message says of its tensors, read without their bytes.

Protobuf's parser copies them, and a service's event loop does nothing else meanwhile; so does whoever serializes them
again for the worker. What is read here is what the parser would read: of a message in which a field stands twice, which
it would merge, nothing.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from dataclasses import dataclass

from google.protobuf.message import DecodeError

from access.fields import field_head, read_field
from protos.v1 import stage_daemon_pb2

# Of all values together: far more than a deployment has, and little work.
MOST_FIELDS = 4096
MOST_BYTES = 1 << 16

_MICROBATCH = stage_daemon_pb2.SendInputsRequest.DESCRIPTOR.fields_by_name["microbatch"].number
_VALUES = stage_daemon_pb2.Microbatch.DESCRIPTOR.fields_by_name["values"].number
_TENSOR = stage_daemon_pb2.Datum.DESCRIPTOR.fields_by_name["tensor"].number
_DATA = stage_daemon_pb2.Tensor.DESCRIPTOR.fields_by_name["data"].number


@dataclass(frozen=True, slots=True, kw_only=True)
class Skimmed:
    """A microbatch, whose tensors may lack their bytes; how many each value has; and all of it, serialized."""

    microbatch: stage_daemon_pb2.Microbatch
    data_bytes: tuple[int, ...]
    content: bytes


def skim_microbatch(content: bytes) -> Skimmed:
    """Of a SendInputsRequest. Raises DecodeError where it holds anything but one microbatch, each field once."""
    message = _Message(content)
    start, end = _only(message, (0, len(content)), _MICROBATCH)
    head, data_bytes = bytearray(), []
    for field in message.fields(start, end):
        if field.number == _VALUES:
            value, size_bytes = _skim_value(message, field.content())
            head += field_head(_VALUES, len(value)) + value
            data_bytes.append(size_bytes)
        else:
            head += message.taken(field)
    microbatch = stage_daemon_pb2.Microbatch.FromString(bytes(head))
    return Skimmed(microbatch=microbatch, data_bytes=tuple(data_bytes), content=content[start:end])


def _only(message: _Message, extent: tuple[int, int], number: int) -> tuple[int, int]:
    """The extent of the content of the field that is there alone."""
    fields = list(itertools.islice(message.fields(*extent), 2))
    if [field.number for field in fields] != [number]:
        raise DecodeError(f"not field {number} alone")
    return fields[0].content()


def _skim_value(message: _Message, extent: tuple[int, int]) -> tuple[bytes, int]:
    """A Datum without the bytes of its tensor, and how many those are."""
    fields = list(itertools.islice(message.fields(*extent), 2))
    if [field.number for field in fields] != [_TENSOR]:
        if len(fields) > 1:
            raise DecodeError("a value is two")
        return b"".join(map(message.taken, fields)), 0
    head, sizes = bytearray(), []
    for field in message.fields(*fields[0].content()):
        if field.number == _DATA:
            start, end = field.content()
            sizes.append(end - start)
        else:
            head += message.taken(field)
    if len(sizes) > 1:
        raise DecodeError("the bytes of a tensor stand twice")
    return field_head(_TENSOR, len(head)) + bytes(head), sum(sizes)


@dataclass(frozen=True, slots=True)
class _Field:
    """From `begin` to `end`; its content, where it says its length, from `start`."""

    number: int
    begin: int
    start: int | None
    end: int

    def content(self) -> tuple[int, int]:
        if self.start is None:
            raise DecodeError(f"field {self.number} says no length")
        return self.start, self.end


class _Message:
    """Counts the fields that are read, and the bytes that are taken."""

    def __init__(self, content: bytes) -> None:
        self._content = content
        self._num_fields = 0
        self._num_bytes = 0

    def fields(self, at: int, end: int) -> Iterator[_Field]:
        while at < end:
            self._num_fields += 1
            if self._num_fields > MOST_FIELDS:
                raise DecodeError(f"more than {MOST_FIELDS:,} fields")
            begin = at
            number, start, at = read_field(self._content, begin)
            if at > end:
                raise DecodeError("a field is longer than its message")
            yield _Field(number, begin, start, at)

    def taken(self, field: _Field) -> bytes:
        self._num_bytes += field.end - field.begin
        if self._num_bytes > MOST_BYTES:
            raise DecodeError(f"more than {MOST_BYTES:,} bytes beside those of tensors")
        return self._content[field.begin : field.end]
