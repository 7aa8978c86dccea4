"""Checkpoints that the planner knows: listed, deleted, and downloaded as files that safetensors alone reads."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import uuid
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass
from datetime import datetime
from itertools import chain
from pathlib import Path

from planner.client.arguments import checks_arguments
from planner.client.connection import Connection
from planner.client.graphs import GraphCalls
from planner.client.request_ids import new_request_id
from planner.client.weight_layout import INDEX_FILE, safetensors_header
from planner.errors import Conflict, Corrupt, NotFound
from planner.graph.checkpoint import CHECKPOINT_ID_START, Checkpoint, CheckpointRecord, SavedFile, SavedTensor
from planner.graph.ir import Graph
from planner.graph.state_names import StateNames
from planner.store.weights import TensorLocation
from planner.wire.checkpoints import checkpoint_from_proto, checkpoint_record_from_proto, checkpoint_to_proto
from protos.v1 import planner_pb2

# What a download says of itself, beside its tensors.
RECORD_FILE = "checkpoint.json"
# Tensors under a second name, and those that no stage reads.
_OTHERS_FILE = "model-others.safetensors"
_UNFINISHED = ".unfinished-"


@checks_arguments
class CheckpointCalls(GraphCalls):
    _connection: Connection

    def create_checkpoint(self, checkpoint: Checkpoint) -> CheckpointRecord:
        """Of files that are blobs already; id and moment are the server's."""
        request = planner_pb2.CreateCheckpointRequest(request_id=new_request_id())
        request.checkpoint.CopyFrom(checkpoint_to_proto(checkpoint))
        return checkpoint_record_from_proto(self._connection.call(self._connection.stub.CreateCheckpoint, request))

    def get_checkpoint(self, checkpoint_id: str) -> Checkpoint:
        """With the file and place of each tensor. Raises NotFound."""
        request = planner_pb2.GetCheckpointRequest(checkpoint_id=checkpoint_id)
        return checkpoint_from_proto(self._connection.call(self._connection.stub.GetCheckpoint, request))

    def list_checkpoints(
        self, *, run: str = "", graph_id: str = "", owner: str = "", created_since: datetime | None = None
    ) -> Iterator[CheckpointRecord]:
        """Newest first, page by page. Empty filters let everything through; `owner` is the holder of a token."""
        request = planner_pb2.ListCheckpointsRequest(run=run, graph_id=graph_id)
        stub = self._connection.stub
        for page in self._connection.pages(stub.ListCheckpoints, request, owner=owner, created_since=created_since):
            yield from map(checkpoint_record_from_proto, page.checkpoints)

    def latest_checkpoint(self, run: str) -> CheckpointRecord | None:
        """The run's checkpoint of most steps; of several the newest."""
        records = by_steps(self.list_checkpoints(run=run))
        return records[-1] if records else None

    def find_checkpoint(self, name: str) -> Checkpoint:
        """By its id, or the latest of the run of that name. Raises NotFound."""
        if name.startswith(CHECKPOINT_ID_START):
            return self.get_checkpoint(name)
        latest = self.latest_checkpoint(name)
        if latest is None:
            raise NotFound(
                f"no checkpoint is of run {name[:100]!r}; `planner-cli checkpoint list` shows which there are"
            )
        return self.get_checkpoint(latest.id)

    def delete_checkpoint(self, checkpoint_id: str) -> str:
        """The id of what is gone; its files stay with the planner until they are collected."""
        request = planner_pb2.DeleteCheckpointRequest(checkpoint_id=checkpoint_id)
        return str(self._connection.call(self._connection.stub.DeleteCheckpoint, request).id)

    def download_checkpoint(self, name: str, directory: Path | str) -> CheckpointRecord:
        """Its files into a new folder, which is there whole or not at all. See docs/training.md for what it has.

        Raises Conflict where there is something already, Corrupt for bytes that are not what was saved.
        """
        checkpoint = self.find_checkpoint(name)
        graph = self.read_graph(checkpoint.record.graph_id)
        target = Path(directory)
        if target.exists():
            raise Conflict(f"{target} is there already; name a folder that is not")
        target.parent.mkdir(parents=True, exist_ok=True)
        aside = target.with_name(f"{_UNFINISHED}{uuid.uuid4().hex}")
        aside.mkdir()
        try:
            self._download(checkpoint, graph, aside)
            aside.rename(target)
        finally:
            shutil.rmtree(aside, ignore_errors=True)
        return checkpoint.record

    def _download(self, checkpoint: Checkpoint, graph: Graph, folder: Path) -> None:
        saved = checkpoint.record.files
        files = {file.sha256: _named(saved, index) for index, file in enumerate(saved)}
        for sha256, name in files.items():
            digest = _write(folder / name, self.read_blob(sha256))
            if digest != sha256:
                raise Corrupt(f"file {sha256.hex()} of checkpoint {checkpoint.record.id} came damaged; try again")
        layout = _Layout.of(checkpoint, graph)
        unread = self._weight_places(checkpoint.record.graph_id, layout.names, layout.unread)
        others: dict[str, SavedTensor | TensorLocation] = {**layout.tied, **unread}
        if others:
            header = safetensors_header({name: (one.dtype, one.dims) for name, one in others.items()})
            _write(folder / _OTHERS_FILE, chain((header,), *map(self._read_range, others.values())))
        places = {name: files[tensor.file_sha256] for name, tensor in layout.own.items()}
        places |= dict.fromkeys(others, _OTHERS_FILE)
        _write(folder / INDEX_FILE, iter((json.dumps({"weight_map": places}).encode(),)))
        document = asdict(checkpoint.record) | {
            "created_at": checkpoint.record.created_at.isoformat(),
            "files": {name: sha256.hex() for sha256, name in files.items()},
        }
        _write(folder / RECORD_FILE, iter((json.dumps(document).encode(),)))


def by_steps(records: Iterable[CheckpointRecord]) -> list[CheckpointRecord]:
    """The one of most steps last; of several the newest."""
    return sorted(records, key=lambda record: (record.progress.num_steps, record.created_at, record.id))


@dataclass(frozen=True, slots=True, kw_only=True)
class _Layout:
    """By the names of the module's state_dict: what the files have under that name, what under a tied one, and what no
    stage reads, which is as it came with the graph."""

    names: StateNames
    own: dict[str, SavedTensor]
    tied: dict[str, SavedTensor]
    unread: tuple[str, ...]

    @classmethod
    def of(cls, checkpoint: Checkpoint, graph: Graph) -> _Layout:
        names = StateNames(graph)
        saved = {tensor.name: tensor for tensor in checkpoint.tensors if not tensor.optimizer_tensor}
        own = {name: saved[name] for name in names.saved if name in saved}
        tied = {
            name: saved[other]
            for name in names.saved
            if name not in saved
            for other in names.tied(name)
            if other in saved
        }
        unread = tuple(name for name in names.saved if name not in own and name not in tied)
        return cls(names=names, own=own, tied=tied, unread=unread)


def _named(files: Sequence[SavedFile], index: int) -> str:
    kind = files[index].is_model
    number = sum(file.is_model is kind for file in files[: index + 1])
    return f"{'model' if kind else 'training'}-{number:05d}.safetensors"


def _write(path: Path, chunks: Iterator[bytes]) -> bytes:
    """The sha256 of the file, which is on the disk."""
    digest = hashlib.sha256()
    with path.open("wb") as file:
        for chunk in chunks:
            digest.update(chunk)
            file.write(chunk)
        file.flush()
        os.fsync(file.fileno())
    return digest.digest()
