"""Fields of serialized protobuf messages, found without parsing what is in them."""

from __future__ import annotations

from google.protobuf.message import DecodeError

LENGTH_DELIMITED = 2
_VARINT, _FIXED64, _FIXED32 = 0, 1, 5
_MOST_VARINT_BYTES = 10
_MORE = 0x80


def read_field(content: bytes | memoryview, at: int) -> tuple[int, int | None, int]:
    """Its number, where its content begins if it says its length, and where it ends, which may be behind the end.

    Raises DecodeError.
    """
    tag, at = _read_varint(content, at)
    kind = tag & 7
    if kind == LENGTH_DELIMITED:
        size, at = _read_varint(content, at)
        return tag >> 3, at, at + size
    if kind == _VARINT:
        return tag >> 3, None, _read_varint(content, at)[1]
    if kind in (_FIXED32, _FIXED64):
        return tag >> 3, None, at + (4 if kind == _FIXED32 else 8)
    raise DecodeError(f"a field of wire type {kind}")


def field_head(number: int, size_bytes: int) -> bytes:
    """What stands before the content of a field that says its length."""
    return _varint_bytes(number << 3 | LENGTH_DELIMITED) + _varint_bytes(size_bytes)


def _read_varint(content: bytes | memoryview, at: int) -> tuple[int, int]:
    number = 0
    for index in range(_MOST_VARINT_BYTES):
        if at + index >= len(content):
            break
        byte = content[at + index]
        number |= (byte & ~_MORE) << (7 * index)
        if not byte & _MORE:
            return number, at + index + 1
    raise DecodeError("a number does not end")


def _varint_bytes(number: int) -> bytes:
    content = bytearray()
    while number >= _MORE:
        content.append(number & ~_MORE & 0xFF | _MORE)
        number >>= 7
    content.append(number)
    return bytes(content)
