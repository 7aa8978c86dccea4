"""Large messages read and written piece by piece, so that no thread keeps Python's lock for long.

Protobuf's own parser and serializer hold it from beginning to end: for messages with hundreds of thousands of entries a
tenth of a second and more, in whichever thread they run. What is here lets other threads in every few milliseconds.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache
from io import BytesIO
from typing import Any

from google.protobuf.descriptor import Descriptor, FieldDescriptor
from google.protobuf.message import DecodeError, Message

from access.fields import field_head, read_field

# A few milliseconds' work, whatever the bytes are.
PIECE_BYTES = 1 << 18
PIECE_ENTRIES = 1024
# An entry may take twenty times its bytes once it is parsed.
MOST_FIELDS = 1 << 20


def parse_in_pieces(message: Message, content: bytes) -> None:
    """Fills the empty message as MergeFromString does. Raises DecodeError, also for more than MOST_FIELDS fields."""
    _Reader(content).merge(message, 0, len(content))


def is_large(message: Message) -> bool:
    """Whether to serialize it takes more than a few milliseconds, because of its entries."""
    for field, content in message.ListFields():
        if not _holds_messages(field):
            continue
        if not field.is_repeated:
            if is_large(content):
                return True
        elif len(content) > PIECE_ENTRIES or (_may_be_large(field.message_type) and any(map(is_large, content))):
            return True
    return False


def serialize_in_pieces(message: Message, without: str = "") -> bytes:
    """What parses to the message, or to what it is without that field; of equal messages the same bytes."""
    # Whose bytes are taken as they are: to join all pieces at once would hold the lock as long as to copy them takes.
    whole = BytesIO()
    for piece in _pieces(message, without):
        whole.write(piece)
    return whole.getvalue()


class _Reader:
    def __init__(self, content: bytes) -> None:
        self._content = content
        self._num_fields = 0

    def merge(self, message: Message, start: int, end: int) -> None:
        """Fields from `start` to `end`; those that are larger than a piece, and messages themselves, field by field."""
        begun = at = start
        while at < end:
            field_start = at
            number, body, at = self._field(at)
            if at > end:
                raise DecodeError("a field is longer than its message")
            is_entered = body is not None and at - field_start > PIECE_BYTES
            if is_entered and (field := _message_field(message, number)) is not None:
                self._flush(message, begun, field_start)
                self.merge(_entered(message, field), body or 0, at)
                begun = at
            elif at - begun > PIECE_BYTES:
                self._flush(message, begun, at)
                begun = at
        self._flush(message, begun, end)

    def _flush(self, message: Message, start: int, end: int) -> None:
        if end > start:
            message.MergeFromString(self._content[start:end])

    def _field(self, at: int) -> tuple[int, int | None, int]:
        self._num_fields += 1
        if self._num_fields > MOST_FIELDS:
            raise DecodeError(f"a message has more than {MOST_FIELDS} fields")
        return read_field(self._content, at)


def _message_field(message: Message, number: int) -> Any:
    field = message.DESCRIPTOR.fields_by_number.get(number)
    return field if field is not None and _holds_messages(field) else None


def _entered(message: Message, field: Any) -> Message:
    """The message that the field's content belongs to; of several the next."""
    inner: Any = getattr(message, field.name)
    if field.is_repeated:
        return inner.add()  # type: ignore[no-any-return]
    inner.SetInParent()
    return inner  # type: ignore[no-any-return]


def _pieces(message: Message, without: str = "") -> Iterator[bytes]:
    if not without and not is_large(message):
        yield message.SerializeToString(deterministic=True)
        return
    rest: Any = type(message)()
    for field, content in message.ListFields():
        if field.name == without:
            continue
        if not _holds_messages(field):
            _put(rest, field, content)
        elif not field.is_repeated:
            yield from _delimited(field, content)
        elif _may_be_large(field.message_type) and any(map(is_large, content)):
            for entry in content:
                yield from _delimited(field, entry)
        else:
            for start in range(0, len(content), PIECE_ENTRIES):
                some: Any = type(message)()
                getattr(some, field.name).extend(content[start : start + PIECE_ENTRIES])
                yield some.SerializeToString(deterministic=True)
    yield rest.SerializeToString(deterministic=True)


def _delimited(field: FieldDescriptor, content: Message) -> Iterator[bytes]:
    pieces = tuple(_pieces(content))
    yield field_head(field.number, sum(map(len, pieces)))
    yield from pieces


def _put(message: Any, field: FieldDescriptor, content: Any) -> None:
    if field.is_repeated:
        getattr(message, field.name).MergeFrom(content)
    else:
        setattr(message, field.name, content)


def _holds_messages(field: Any) -> bool:
    """Maps do not count: their entries are no messages to Python."""
    return field.type == FieldDescriptor.TYPE_MESSAGE and not field.message_type.GetOptions().map_entry


@cache
def _may_be_large(descriptor: Descriptor) -> bool:
    """Whether it has a repeated message in it. One that may hold itself does."""
    return _reaches_repeated(descriptor, frozenset())


def _reaches_repeated(descriptor: Any, above: frozenset[str]) -> bool:
    if descriptor.full_name in above:
        return True
    above |= {descriptor.full_name}
    return any(
        field.is_repeated or _reaches_repeated(field.message_type, above)
        for field in descriptor.fields
        if _holds_messages(field)
    )
