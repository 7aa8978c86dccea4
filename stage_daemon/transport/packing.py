"""Items to what a header says of them and the memory to send; what a shape needs is worked out once."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch

from stage_daemon.transport.header import Content, HeaderFormat
from stage_daemon.transport.layout import TensorLayout, pack
from stage_daemon.transport.parcel import Item
from stage_daemon.transport.ring import aligned

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


class Packer:
    def __init__(self, format: HeaderFormat) -> None:
        self._format = format
        self._outlines: dict[_Key, Outline] = {}

    def pack(self, items: Sequence[Item]) -> tuple[Outline, list[torch.Tensor]]:
        """The payloads' bytes begin at each one's data_ptr. Raises BadHeader for what the edge does not declare."""
        items = [_resolved(item) for item in items]
        key = _key(items)
        outline = self._outlines.get(key) if key is not None else None
        if outline is not None and outline.is_dense:
            return outline, [item for item in items if isinstance(item, torch.Tensor) and item.numel()]
        outline, payloads = self._outline(items)
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
        sizes = tuple(payload.numel() for payload in payloads)
        outline = Outline(
            encoded_contents=self._format.encode_contents(tuple(contents)),
            sizes_bytes=sizes,
            payload_bytes=sum(sizes),
            slot_bytes=sum(map(aligned, sizes)),
            is_dense=is_dense,
        )
        return outline, payloads


def _resolved(item: Item) -> Item:
    return item.resolve_conj().resolve_neg() if isinstance(item, torch.Tensor) else item


def _key(items: Sequence[Item]) -> _Key | None:
    """None where a scalar is among them, which the header's contents hold."""
    key = tuple((item.dtype, item.shape, item.stride()) for item in items if isinstance(item, torch.Tensor))
    return key if len(key) == len(items) else None


def layouts_of(contents: Sequence[Content]) -> list[TensorLayout]:
    """Of the tensors whose payloads follow: those that are not empty."""
    return [content for content in contents if isinstance(content, TensorLayout) and content.num_core_elements]
