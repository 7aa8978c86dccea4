"""What passes through a stage; how long it takes stands in its thread's timeline."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(slots=True)
class StageMetrics:
    """Since the stage started. Written by its lane only; a reader may see one field newer than another.

    A microbatch is counted before anything of it leaves the stage, its bytes once they are sent.
    """

    num_microbatches: int = 0
    received_bytes: int = 0
    sent_bytes: int = 0
