"""A microbatch's failure as text that follows its header."""

from __future__ import annotations

from stage_daemon.transport.parcel import MicrobatchFailure

# A longer message is cut.
MAX_BYTES = 4096


def encode(failure: MicrobatchFailure) -> bytes:
    stage = "" if failure.stage is None else str(failure.stage)
    text = "\n".join([failure.reason, stage, failure.device_id, failure.message]).encode()
    return text[:MAX_BYTES].decode(errors="ignore").encode()


def decode(text: bytes) -> MicrobatchFailure:
    reason, stage, device_id, message = (text.decode(errors="replace").split("\n", 3) + [""] * 4)[:4]
    return MicrobatchFailure(
        reason=reason, message=message, stage=int(stage) if stage.isdecimal() else None, device_id=device_id
    )
