"""A microbatch's failure as a message of fixed size, so that its receive can be posted without knowing it."""

from __future__ import annotations

import torch

from stage_daemon.transport.parcel import MicrobatchFailure

SIZE_BYTES = 4096


def encode(failure: MicrobatchFailure) -> torch.Tensor:
    """SIZE_BYTES of uint8; a longer message is cut."""
    stage = "" if failure.stage is None else str(failure.stage)
    text = "\n".join([failure.reason, stage, failure.device_id, failure.message]).encode()
    text = text[:SIZE_BYTES].decode(errors="ignore").encode()
    return torch.frombuffer(bytearray(text.ljust(SIZE_BYTES, b"\0")), dtype=torch.uint8)


def decode(buffer: torch.Tensor) -> MicrobatchFailure:
    text = bytes(buffer.tolist()).rstrip(b"\0").decode(errors="replace")
    reason, stage, device_id, message = (text.split("\n", 3) + [""] * 4)[:4]
    return MicrobatchFailure(
        reason=reason, message=message, stage=int(stage) if stage.isdecimal() else None, device_id=device_id
    )
