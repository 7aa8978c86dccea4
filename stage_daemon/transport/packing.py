"""Items to what a header says of them and the memory to send; what a shape needs is worked out once."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch

from stage_daemon.transport.header import Content, Contents, HeaderFormat
from stage_daemon.transport.layout import pack
from stage_daemon.transport.parcel import Item

# Shapes that are remembered at the same time.
_MAX_OUTLINES = 256

_Key = tuple[tuple[torch.dtype, torch.Size, tuple[int, ...]], ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Outline:
    """What all microbatches of one shape have in common. Sizes are of the payloads: of tensors that are not empty."""

    encoded_contents: bytes
    sizes_bytes: tuple[int, ...]
    payload_bytes: int
    slot_bytes: int
    # Each tensor's own memory is its payload.
    is_dense: bool
    # No tensor is empty.
    is_full: bool


class Packer:
    def __init__(self, format: HeaderFormat) -> None:
        self._format = format
        self._outlines: dict[_Key, Outline] = {}

    def pack(self, items: Sequence[Item]) -> tuple[Outline, list[torch.Tensor]]:
        """The payloads' bytes begin at each one's data_ptr. Raises BadHeader for what the edge does not declare."""
        key = _key(items)
        outline = self._outlines.get(key) if key is not None else None
        if outline is not None and outline.is_dense:
            tensors: list[torch.Tensor] = list(items)  # type: ignore[arg-type]  # only these have a key
            return outline, tensors if outline.is_full else [tensor for tensor in tensors if tensor.numel()]
        outline, payloads = self._outline([_resolved(item) for item in items])
        if key is not None:
            if len(self._outlines) >= _MAX_OUTLINES:
                self._outlines.clear()
            self._outlines[key] = outline
        return outline, payloads

    def _outline(self, items: Sequence[Item]) -> tuple[Outline, list[torch.Tensor]]:
        contents: list[Content] = []
        payloads: list[torch.Tensor] = []
        is_dense = True
        for item in items:
            if not isinstance(item, torch.Tensor):
                contents.append(item)
                continue
            layout, payload = pack(item)
            contents.append(layout)
            if payload.numel():
                payloads.append(payload)
                is_dense = is_dense and layout.is_dense and payload.data_ptr() == item.data_ptr()
        described = Contents(contents)
        outline = Outline(
            encoded_contents=self._format.encode_contents(described),
            sizes_bytes=tuple(layout.size_bytes for layout in described.layouts),
            payload_bytes=described.payload_bytes,
            slot_bytes=described.slot_bytes,
            is_dense=is_dense,
            is_full=len(payloads) == len(items),
        )
        return outline, payloads


def _resolved(item: Item) -> Item:
    return item.resolve_conj().resolve_neg() if isinstance(item, torch.Tensor) else item


def _key(items: Sequence[Item]) -> _Key | None:
    """None where more than shapes decides what is sent: a scalar is among them, which the header's contents hold, or a
    tensor whose memory holds other values than its own."""
    key = []
    for item in items:
        if not isinstance(item, torch.Tensor) or item.is_neg() or item.is_conj():
            return None
        key.append((item.dtype, item.shape, item.stride()))
    return tuple(key)
