"""Messages with tensors, read and written without a copy of the tensors' bytes.

Protobuf's parser and serializer copy them, once for each message that they stand in. What is read here is what the
parser would read: of a message in which a field stands twice, which it would merge, nothing.
A value is a message that holds a tensor's message or a scalar.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

from google.protobuf.descriptor import FieldDescriptor
from google.protobuf.message import DecodeError, Message

from access.fields import field_head, read_field

# Of smaller messages protobuf's own copies cost less than reading them here.
LARGE_BYTES = 1 << 18
# Of all values together: far more than a deployment has, and little work.
MOST_FIELDS = 4096
MOST_BYTES = 1 << 16

# Where a field's content begins, and where it ends.
Extent = tuple[int, int]


@dataclass(frozen=True, slots=True, kw_only=True)
class Numbers:
    """Of the repeated values in their message, of a value's tensor, and of the tensor's bytes."""

    values: int
    tensor: int
    data: int

    @classmethod
    def of(cls, values: FieldDescriptor) -> Numbers:
        """By their names, of the field that holds the values."""
        tensor = _field(values, "tensor")
        return cls(values=values.number, tensor=tensor.number, data=_field(tensor, "data").number)


def _field(outer: FieldDescriptor, name: str) -> FieldDescriptor:
    assert outer.message_type is not None
    return outer.message_type.fields_by_name[name]


@dataclass(frozen=True, slots=True, kw_only=True)
class Skimmed:
    """A message without the bytes of its tensors, serialized, and where each value's bytes stand; scalars have none."""

    message: bytes
    data: tuple[Extent, ...]


def split(content: bytes | memoryview, number: int) -> tuple[bytes, Extent]:
    """The message without that field, and where the field's content stands. Raises DecodeError where it stands there
    twice or not at all."""
    rest, extents = split_all(content, number, (0, len(content)))
    if len(extents) != 1:
        raise DecodeError(f"field {number} stands there {len(extents)} times")
    return rest, extents[0]


def split_all(content: bytes | memoryview, number: int, within: Extent) -> tuple[bytes, tuple[Extent, ...]]:
    """Of the message that stands there: it without that repeated field, and where each of the field stands."""
    message = _Message(content)
    rest, extents = bytearray(), []
    for field in message.fields(*within):
        if field.number == number:
            extents.append(field.content())
        else:
            rest += message.taken(field)
    return bytes(rest), tuple(extents)


def skim(content: bytes | memoryview, numbers: Numbers, within: Extent | None = None) -> Skimmed:
    """Of the message that stands there, or of the whole content. Raises DecodeError where a value's field stands twice,
    for more than MOST_FIELDS fields, and for more than MOST_BYTES beside those of tensors."""
    message = _Message(content)
    head, data = bytearray(), []
    for field in message.fields(*(within or (0, len(content)))):
        if field.number == numbers.values:
            value, extent = _skim_value(message, field.content(), numbers)
            head += field_head(numbers.values, len(value)) + value
            data.append(extent)
        else:
            head += message.taken(field)
    return Skimmed(message=bytes(head), data=tuple(data))


def value_buffers(numbers: Numbers, values: Iterable[Message], data: Iterable[memoryview]) -> list[bytes | memoryview]:
    """The values as fields of their message, to be sent one after the other. `data`: of each tensor that a value is,
    whose own message has none."""
    buffers: list[bytes | memoryview] = []
    contents = iter(data)
    for value in values:
        if value.HasField("tensor"):
            buffers += _tensor_buffers(numbers, value.tensor.SerializeToString(), next(contents))  # type: ignore[attr-defined]
        else:
            buffers += enclosed(numbers.values, [value.SerializeToString()])
    return buffers


def enclosed(number: int, buffers: Sequence[bytes | memoryview]) -> list[bytes | memoryview]:
    """The message that the buffers are, as a field of another."""
    return [field_head(number, sum(map(len, buffers))), *buffers]


def _tensor_buffers(numbers: Numbers, tensor: bytes, data: memoryview) -> list[bytes | memoryview]:
    tensor += field_head(numbers.data, len(data))
    tensor = field_head(numbers.tensor, len(tensor) + len(data)) + tensor
    return [field_head(numbers.values, len(tensor) + len(data)) + tensor, data]


def _skim_value(message: _Message, extent: Extent, numbers: Numbers) -> tuple[bytes, Extent]:
    """Without the bytes of its tensor, and where those are."""
    fields = list(itertools.islice(message.fields(*extent), 2))
    if [field.number for field in fields] != [numbers.tensor]:
        if len(fields) > 1:
            raise DecodeError("a value is two")
        return b"".join(map(message.taken, fields)), (0, 0)
    head, data = bytearray(), []
    for field in message.fields(*fields[0].content()):
        if field.number == numbers.data:
            data.append(field.content())
        else:
            head += message.taken(field)
    if len(data) > 1:
        raise DecodeError("the bytes of a tensor stand twice")
    return field_head(numbers.tensor, len(head)) + bytes(head), (data or [(0, 0)])[0]


@dataclass(frozen=True, slots=True)
class _Field:
    """From `begin` to `end`; its content, where it says its length, from `start`."""

    number: int
    begin: int
    start: int | None
    end: int

    def content(self) -> Extent:
        if self.start is None:
            raise DecodeError(f"field {self.number} says no length")
        return self.start, self.end


class _Message:
    """Counts the fields that are read, and the bytes that are taken."""

    def __init__(self, content: bytes | memoryview) -> None:
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
        return bytes(self._content[field.begin : field.end])
