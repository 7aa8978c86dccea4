"""Whether stages fit, found out before the first byte of them is fetched."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import torch

from protos.v1 import stage_daemon_pb2
from stage_daemon.errors import InsufficientMemory

_MEMORY_FILE = Path("/proc/meminfo")


def check_states_fit(
    stages: Sequence[stage_daemon_pb2.StageModule], device: torch.device, present_bytes: int = 0
) -> None:
    """Raises InsufficientMemory naming the first stage that does not fit beside those before it.

    `present_bytes` of the tensors are there already.
    """
    available = available_bytes(device)
    taken_bytes = -present_bytes
    for stage in stages:
        needed = _state_bytes(stage)
        if available is not None and taken_bytes + needed > available:
            raise InsufficientMemory(
                f"stage {stage.stage}: its tensors need {needed} bytes, {available - taken_bytes} are free on {device};"
                " free some or plan with less memory for this device",
                stage=stage.stage,
                needed_bytes=needed,
                available_bytes=available - taken_bytes,
            )
        taken_bytes += needed


def _state_bytes(stage: stage_daemon_pb2.StageModule) -> int:
    """Tied states lie at one place, and are loaded once."""
    places = {(state.file_sha256, state.offset_bytes, state.length_bytes) for state in stage.states}
    return sum(length_bytes for _, _, length_bytes in places)


def available_bytes(device: torch.device) -> int | None:
    """What can be taken without others losing theirs; None where the system does not say."""
    if device.type == "cuda":
        return int(torch.cuda.mem_get_info(device)[0])
    try:
        lines = _MEMORY_FILE.read_text().splitlines()
    except OSError:
        return None
    for line in lines:
        if line.startswith("MemAvailable:"):
            return int(line.split()[1]) * 1024
    return None
