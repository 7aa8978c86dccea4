"""What an error while a stage runs means: for its microbatch alone, or for the device."""

from __future__ import annotations

import torch

from stage_daemon.errors import DaemonError, InsufficientMemory, StageFailed
from stage_daemon.runtime.stage import Stage
from stage_daemon.transport.parcel import MicrobatchFailure


def raise_if_ruinous(stage: Stage, error: Exception) -> None:
    if ruins_device(error):
        raise StageFailed(
            f"{stage.name}: {_words(error)}; the device must be set up anew",
            stage=stage.index,
            device_id=stage.device_id,
        ) from error


def stage_failure(stage: Stage, error: Exception) -> MicrobatchFailure:
    """Why one microbatch has no result, with the stage that could not run it."""
    if isinstance(error, DaemonError):
        reason = error.reason
    else:
        reason = InsufficientMemory.reason if _is_out_of_memory(error) else StageFailed.reason
    return MicrobatchFailure(
        reason=reason,
        message=f"{stage.name} on device {stage.device_id!r}: {_words(error)}",
        stage=stage.index,
        device_id=stage.device_id,
    )


def _is_out_of_memory(error: Exception) -> bool:
    # The CPU's allocator has no error type of its own.
    return isinstance(error, torch.OutOfMemoryError | MemoryError) or "DefaultCPUAllocator" in str(error)


def ruins_device(error: Exception) -> bool:
    """After a CUDA error other than lack of memory, every later call on the device fails too."""
    return isinstance(error, torch.AcceleratorError) and not isinstance(error, torch.OutOfMemoryError)


def _words(error: Exception) -> str:
    return f"{type(error).__name__}: {error}"
