"""Words for people about segments and bytes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from planner.partition.evaluate import StageEvaluation
    from planner.partition.problem import PartitionProblem

_UNITS = ((1 << 40, "TiB"), (1 << 30, "GiB"), (1 << 20, "MiB"), (1 << 10, "KiB"))


def describe_bytes(size: int) -> str:
    """ "1536 bytes (1.5 KiB)"."""
    for unit, name in _UNITS:
        if size >= unit:
            return f"{size} bytes ({size / unit:.1f} {name})"
    return "1 byte" if size == 1 else f"{size} bytes"


def describe_seconds(seconds: float) -> str:
    if seconds >= 1:
        return f"{seconds:.3g} s"
    return f"{seconds * 1e3:.3g} ms" if seconds >= 1e-3 else f"{seconds * 1e6:.3g} µs"


def describe_node(problem: PartitionProblem, node: int) -> str:
    path = problem.labels.module_paths[node]
    return f"node {node} ({problem.labels.nodes[node]!r}{f' of {path!r}' if path else ''})"


def describe_stage(
    problem: PartitionProblem, boundaries: Sequence[int], stage: int, evaluation: StageEvaluation
) -> str:
    start, end = boundaries[stage], boundaries[stage + 1]
    nodes = describe_node(problem, start) + (f" to {describe_node(problem, end - 1)}" if end > start + 1 else "")
    needed = describe_bytes(evaluation.peak_bytes)
    return f"stage {stage}, {nodes}, needs {needed} ({describe_memory_parts(evaluation)})"


class MemoryParts(Protocol):
    """What a stage holds."""

    @property
    def state_bytes(self) -> int: ...
    @property
    def gradient_bytes(self) -> int: ...
    @property
    def optimizer_bytes(self) -> int: ...
    @property
    def saved_bytes(self) -> int: ...
    @property
    def activation_bytes(self) -> int: ...
    @property
    def buffer_bytes(self) -> int: ...


def describe_memory_parts(held: MemoryParts) -> str:
    """What only training has is left out where it is nothing."""
    parts_bytes = {
        "states": held.state_bytes,
        "gradients": held.gradient_bytes,
        "optimizer": held.optimizer_bytes,
        "saved for backward": held.saved_bytes,
        "activations": held.activation_bytes,
        "buffers": held.buffer_bytes,
    }
    always = ("states", "activations", "buffers")
    return ", ".join(f"{name} {describe_bytes(size)}" for name, size in parts_bytes.items() if size or name in always)


def smaller_batch_hint(evaluation: StageEvaluation, lacking: int) -> str:
    """Only where what grows with the batch is enough to make the difference."""
    scaling = evaluation.activation_bytes + evaluation.buffer_bytes + evaluation.saved_bytes
    if scaling <= lacking:
        return ""
    return f", or a batch (symbol_values, or the example inputs) smaller by {-(-100 * lacking // scaling)} %"
