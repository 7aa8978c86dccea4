"""Stages that do not fit are refused before anything is fetched."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from protos.v1 import stage_daemon_pb2
from stage_daemon.errors import InsufficientMemory
from stage_daemon.worker import memory
from stage_daemon.worker.memory import available_bytes, check_states_fit

CPU = torch.device("cpu")


@pytest.fixture
def kibibyte_free(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    meminfo = tmp_path / "meminfo"
    meminfo.write_text("MemTotal: 99 kB\nMemAvailable:   1 kB\nMemFree: 7 kB\n")
    monkeypatch.setattr(memory, "_MEMORY_FILE", meminfo)


def stage(index: int, *places: tuple[int, int], file: bytes = b"a") -> stage_daemon_pb2.StageModule:
    """(offset, length) of each state."""
    return stage_daemon_pb2.StageModule(
        stage=index,
        states=[
            stage_daemon_pb2.StateLocation(
                name=f"state{number}", file_sha256=file, offset_bytes=offset, length_bytes=length
            )
            for number, (offset, length) in enumerate(places)
        ],
    )


def test_what_is_free_is_what_the_kernel_says(kibibyte_free: None, monkeypatch: pytest.MonkeyPatch) -> None:
    assert available_bytes(CPU) == 1024
    monkeypatch.setattr(memory, "_MEMORY_FILE", Path("/nowhere/meminfo"))
    assert available_bytes(CPU) is None
    check_states_fit([stage(0, (0, 2**60))], CPU)


def test_stages_fit_together_or_not_at_all(kibibyte_free: None) -> None:
    check_states_fit([stage(0, (0, 600)), stage(1, (600, 424))], CPU)
    with pytest.raises(InsufficientMemory, match="stage 1: its tensors need 425 bytes, 424 are free on cpu") as raised:
        check_states_fit([stage(0, (0, 600)), stage(1, (600, 425)), stage(2, (1025, 1))], CPU)
    assert raised.value.stage == 1
    assert raised.value.metadata == {"needed_bytes": "425", "available_bytes": "424"}


def test_tied_states_are_counted_once(kibibyte_free: None) -> None:
    check_states_fit([stage(0, (0, 600), (0, 600), (600, 424))], CPU)
    with pytest.raises(InsufficientMemory):
        check_states_fit([stage(0, (0, 600), (1, 600))], CPU)
