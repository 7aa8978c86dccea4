"""What a training has saved of a graph's states: it knows their names, and no plan."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass
from datetime import datetime

from planner.errors import InvalidArgument
from planner.graph.ir import Dtype

CHECKPOINT_ID_START = "ckpt-"
_RUN = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,99}")


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainingProgress:
    """What a trainer counts. `learning_rate` is one that was set by hand, and replaces the schedule's."""

    num_steps: int
    seed: str
    loss_scale: float = 1.0
    num_grown: int = 0
    learning_rate: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class SavedFile:
    """`is_model`: of parameters and persistent buffers alone."""

    sha256: bytes
    size_bytes: int
    is_model: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class SavedTensor:
    """`optimizer_tensor` as torch's optimizers call it ("exp_avg"); empty for the state itself.

    The bytes lie in the file from `offset_bytes` on, and hash to `sha256`.
    """

    name: str
    optimizer_tensor: str
    dtype: Dtype
    dims: tuple[int, ...]
    file_sha256: bytes
    offset_bytes: int
    length_bytes: int
    sha256: bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckpointRecord:
    """Checkpoints of one training have a `run` in common."""

    id: str
    run: str
    graph_id: str
    optimizer: str
    progress: TrainingProgress
    files: tuple[SavedFile, ...]
    created_at: datetime

    @property
    def size_bytes(self) -> int:
        return sum(file.size_bytes for file in self.files)


@dataclass(frozen=True, slots=True, kw_only=True)
class Checkpoint:
    record: CheckpointRecord
    tensors: tuple[SavedTensor, ...]


def checked_run(name: str) -> str:
    """Raises InvalidArgument for what names no run, or could be a checkpoint's id."""
    if not _RUN.fullmatch(name) or name.startswith(CHECKPOINT_ID_START):
        raise InvalidArgument(
            f"run {name[:100]!r}: needs 1 to 100 letters, digits, dots, dashes or underscores, a letter or a digit"
            f" first, and not to begin with {CHECKPOINT_ID_START}"
        )
    return name


def check_sound(record: CheckpointRecord, tensors: Iterable[SavedTensor]) -> None:
    """Raises InvalidArgument, naming the tensor, for one that does not lie in a file, or stands twice."""
    checked_run(record.run)
    sizes = {file.sha256: file.size_bytes for file in record.files}
    if len(sizes) != len(record.files):
        raise InvalidArgument("the checkpoint names a file twice")
    seen: defaultdict[str, set[str]] = defaultdict(set)
    for tensor in tensors:
        what = f"checkpoint tensor {tensor.name[:200]!r} {tensor.optimizer_tensor[:40]}".rstrip()
        end = tensor.offset_bytes + tensor.length_bytes
        if end > sizes.get(tensor.file_sha256, -1):
            raise InvalidArgument(f"{what}: bytes {tensor.offset_bytes} to {end} are in none of its files")
        if tensor.name in seen[tensor.optimizer_tensor]:
            raise InvalidArgument(f"{what} stands twice; name each once")
        seen[tensor.optimizer_tensor].add(tensor.name)
