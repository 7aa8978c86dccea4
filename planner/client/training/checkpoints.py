"""What a trainer saves and takes up again: states by the module's names, each from a daemon that holds it.

Daemons write and read the tensors; here is decided which of them writes which, and what belongs together.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Protocol

from planner.client.checkpoints import by_steps
from planner.client.tensors import RawTensor
from planner.errors import InvalidArgument, NotFound
from planner.graph.checkpoint import Checkpoint, CheckpointRecord, TrainingProgress, checked_run
from planner.graph.ir import Dtype, Graph
from planner.graph.state_names import StateNames
from planner.wire.checkpoints import checkpoint_to_proto, saved_file_from_proto, saved_tensor_from_proto
from protos.v1 import stage_daemon_pb2


@dataclass(frozen=True, slots=True, kw_only=True)
class Checkpointing:
    """A checkpoint after every so many steps, under the name of a run; of the run's so many are kept, None: all.

    With `every` 0 there is one at the beginning, and those that are asked for.
    """

    run: str
    every: int = 0
    keep: int | None = None

    def __post_init__(self) -> None:
        checked_run(self.run)
        check_keep(self.keep)
        if self.every < 0:
            raise InvalidArgument(f"every is {self.every}, needs 0 or more")

    def is_due(self, num_steps: int) -> bool:
        return self.every > 0 and num_steps % self.every == 0


class CheckpointStore(Protocol):
    """As PlannerClient has it."""

    def create_checkpoint(self, checkpoint: Checkpoint) -> CheckpointRecord: ...
    def find_checkpoint(self, name: str) -> Checkpoint: ...
    def list_checkpoints(self, *, run: str = "") -> Iterator[CheckpointRecord]: ...
    def delete_checkpoint(self, checkpoint_id: str) -> str: ...
    def read_weights(self, graph_id: str, names: StateNames, wanted: Iterable[str]) -> dict[str, RawTensor]: ...


def check_keep(keep: int | None) -> None:
    if keep is not None and keep < 1:
        raise InvalidArgument(f"keep is {keep}, needs at least 1")


def snapshot_requests(
    states_by_device: Mapping[str, Sequence[str]], names: StateNames
) -> dict[str, stage_daemon_pb2.TrainRequest]:
    """By device, of what each holds. A state that several hold, also under tied names, is the first one's to save."""
    requests, seen = {}, set()
    for device_id, states in states_by_device.items():
        request = requests[device_id] = stage_daemon_pb2.TrainRequest()
        request.take_snapshot.SetInParent()
        for name in states:
            first = names.first(name)
            if first in seen or not names.is_in_checkpoints(name):
                continue
            seen.add(first)
            of_kind = request.take_snapshot.others if first in names.other_buffers else request.take_snapshot.states
            of_kind.append(name)
    return requests


def assembled(
    parts: Iterable[stage_daemon_pb2.SaveSnapshotResponse],
    *,
    run: str,
    graph_id: str,
    optimizer: str,
    progress: TrainingProgress,
) -> Checkpoint:
    """Of what the daemons have uploaded; its id is the planner's to give."""
    parts = tuple(parts)
    record = CheckpointRecord(
        id="",
        run=run,
        graph_id=graph_id,
        optimizer=optimizer,
        progress=progress,
        files=tuple(saved_file_from_proto(file) for part in parts for file in part.files),
        created_at=datetime.now(UTC),
    )
    tensors = tuple(saved_tensor_from_proto(tensor) for part in parts for tensor in part.tensors)
    return Checkpoint(record=record, tensors=tensors)


def forget_older(store: CheckpointStore, written: CheckpointRecord, keep: int) -> None:
    """Of the run's other checkpoints those of most steps stay, so many in all."""
    others = [record for record in by_steps(store.list_checkpoints(run=written.run)) if record.id != written.id]
    for record in others[: max(len(others) - (keep - 1), 0)]:
        # Somebody else may delete it meanwhile.
        with suppress(NotFound):
            store.delete_checkpoint(record.id)


def check_fits(checkpoint: Checkpoint, graph: Graph, optimizer: str, states: Iterable[str]) -> None:
    """Raises InvalidArgument for states that the graph has otherwise, for ones that are held and missing, and for
    another optimizer."""
    names, declared = StateNames(graph), _declared(graph)
    name_of_first: dict[str, str] = {}
    for tensor in checkpoint.tensors:
        if tensor.optimizer_tensor:
            continue
        if tensor.name not in names:
            raise _of_another_module(f"state {tensor.name!r} is only in the checkpoint")
        if (tensor.dtype, tensor.dims) != declared[tensor.name]:
            dtype, dims = declared[tensor.name]
            raise _of_another_module(
                f"state {tensor.name!r} is {tensor.dtype.value} {list(tensor.dims)} in it, and"
                f" {dtype.value} {list(dims)} in the graph"
            )
        other = name_of_first.setdefault(names.first(tensor.name), tensor.name)
        if other != tensor.name:
            raise _of_another_module(f"states {other!r} and {tensor.name!r} are two in it, and tied in the graph")
    for name in states:
        if names.is_in_checkpoints(name) and names.first(name) not in name_of_first:
            raise _of_another_module(f"state {name!r} is only in the graph")
    if checkpoint.record.optimizer != optimizer:
        raise InvalidArgument(
            f"the checkpoint is of {checkpoint.record.optimizer}, this trainer has {optimizer}; its weights alone can"
            " be loaded: download it, and give them to load_state_dict"
        )


def fetch_request(checkpoint: Checkpoint, names: StateNames) -> stage_daemon_pb2.TrainRequest:
    """All tensors, under each name that a daemon may know them by."""
    request = stage_daemon_pb2.TrainRequest()
    request.fetch_states.SetInParent()
    for tensor in checkpoint_to_proto(checkpoint).tensors:
        for name in names.tied(tensor.name):
            request.fetch_states.tensors.add().CopyFrom(tensor)
            request.fetch_states.tensors[-1].name = name
    return request


def _of_another_module(what: str) -> InvalidArgument:
    return InvalidArgument(f"the checkpoint is of another module: {what}")


def _declared(graph: Graph) -> dict[str, tuple[Dtype, tuple[int, ...]]]:
    values = graph.values_by_id()
    dtypes_and_dims = {}
    for state in graph.states:
        value = values[state.value_id]
        assert value.dtype is not None
        dtypes_and_dims[state.name] = value.dtype, tuple(map(int, value.dims))  # type: ignore[arg-type]
    return dtypes_and_dims
