"""Checkpoints on disk: weights and what optimizers keep, by the names of the module's states; they know no plan.

A checkpoint is a folder `step-00000012` with

- `model-*.safetensors`: parameters and persistent buffers as the module's state_dict names them, tied ones under each
  name, and an index that says which file has which;
- `training-*.safetensors`: "exp_avg/<name>" and the like for what the optimizer keeps, tied states once, and
  "buffer/<name>" for what a step changes and a state_dict has not;
- `checkpoint.json`: the counters of the trainer, what the graph's states are, and each file's size and digest.

It is written under another name, and renamed once everything is on the disk.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import shutil
import uuid
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Any

from planner.client.tensors import RawTensor
from planner.client.training.state_names import StateNames
from planner.client.weight_layout import INDEX_FILE, TensorSource, safetensors_header, stored_tensors
from planner.errors import Corrupt, InvalidArgument, NotFound
from planner.graph.ir import Graph
from planner.graph.safetensors_dtypes import SAFETENSORS_DTYPES

MANIFEST = "checkpoint.json"
# Files are written as their tensors arrive: so much is held in memory.
MAX_FILE_BYTES = 1 << 30
_FORMAT = 1
_FOLDER = re.compile(r"step-(\d{8,})")
_UNFINISHED = ".unfinished-"
_MODEL = "model"
_BUFFER = "buffer"


@dataclass(frozen=True, slots=True, kw_only=True)
class Progress:
    """What a trainer counts. `learning_rate` is one that was set by hand, and replaces the schedule's."""

    num_steps: int
    seed: str
    loss_scale: float
    num_grown: int
    learning_rate: float | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Manifest:
    """`states`: of all parameters and buffers, dtype, dims and the first name that each is tied to."""

    graph_id: str
    optimizer: str
    progress: Progress
    states: Mapping[str, tuple[str, tuple[int, ...], str]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Checkpoint:
    """By the first name of tied states: each state, and what the optimizer keeps for it under torch's names."""

    manifest: Manifest
    states: Mapping[str, TensorSource]
    kept: Mapping[str, Mapping[str, TensorSource]]


def latest(directory: Path | str) -> Path | None:
    """The checkpoint of most steps in a folder that `Trainer.save` wrote into."""
    found = _checkpoints(Path(directory))
    return found[max(found)] if found else None


def manifest_of(graph: Graph, graph_id: str, optimizer: str, progress: Progress) -> Manifest:
    return Manifest(graph_id=graph_id, optimizer=optimizer, progress=progress, states=_described(graph))


class CheckpointWriter:
    """Takes tensors in any order, and the same one as often as it comes; `finish` makes them a checkpoint.

    One writer at a time for a folder: what an earlier one left unfinished is deleted.
    """

    def __init__(self, directory: Path | str, graph: Graph) -> None:
        self._directory = Path(directory)
        self._names = StateNames(graph)
        self._seen: set[tuple[str, str]] = set()
        self._model = _Shards(_MODEL)
        self._training = _Shards("training")

    def __enter__(self) -> CheckpointWriter:
        self._directory.mkdir(parents=True, exist_ok=True)
        for left in self._directory.glob(f"{_UNFINISHED}*"):
            shutil.rmtree(left)
        self._folder = _aside(self._directory / MANIFEST)
        self._folder.mkdir()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        shutil.rmtree(self._folder, ignore_errors=True)

    def add(self, state: str, optimizer_tensor: str, tensor: RawTensor) -> None:
        first = self._names.first(state)
        if (first, optimizer_tensor) in self._seen:
            return
        self._seen.add((first, optimizer_tensor))
        if tensor.dtype not in SAFETENSORS_DTYPES.values():
            raise InvalidArgument(f"state {state!r} is {tensor.dtype.value}: safetensors has no such dtype")
        if optimizer_tensor:
            self._put(self._training, f"{optimizer_tensor}/{first}", tensor)
        elif first in self._names.other_buffers:
            self._put(self._training, f"{_BUFFER}/{first}", tensor)
        else:
            for name in self._names.tied(state):
                if name in self._names.saved:
                    self._put(self._model, name, tensor)

    def finish(self, manifest: Manifest, keep: int | None = None) -> Path:
        """The folder of the checkpoint. With `keep`, of the others those of most steps stay, `keep` in all."""
        for shards in (self._model, self._training):
            shards.write(self._folder)
        index = {"weight_map": self._model.places}
        _write(self._folder / INDEX_FILE, json.dumps(index).encode())
        document = {
            "format": _FORMAT,
            "graph_id": manifest.graph_id,
            "optimizer": manifest.optimizer,
            "progress": asdict(manifest.progress),
            "states": manifest.states,
            "files": self._model.files | self._training.files,
        }
        _write(self._folder / MANIFEST, json.dumps(document).encode())
        _sync_folder(self._folder)
        target = self._directory / f"step-{manifest.progress.num_steps:08d}"
        replaced = target.rename(_aside(target)) if target.exists() else None
        self._folder.rename(target)
        _sync_folder(self._directory)
        if replaced is not None:
            shutil.rmtree(replaced)
        if keep is not None:
            _forget(self._directory, target, keep)
        return target

    def _put(self, shards: _Shards, name: str, tensor: RawTensor) -> None:
        if shards.held_bytes and shards.held_bytes + len(tensor.data) > MAX_FILE_BYTES:
            shards.write(self._folder)
        shards.add(name, tensor)


@dataclass(slots=True)
class _Shards:
    """The files of one kind. `places` says which file has each tensor."""

    kind: str
    files: dict[str, dict[str, Any]] = field(default_factory=dict)
    places: dict[str, str] = field(default_factory=dict)
    held: dict[str, RawTensor] = field(default_factory=dict)
    held_bytes: int = 0

    def add(self, name: str, tensor: RawTensor) -> None:
        self.held[name] = tensor
        self.held_bytes += len(tensor.data)

    def write(self, folder: Path) -> None:
        if not self.held:
            return
        file = f"{self.kind}-{len(self.files) + 1:05d}.safetensors"
        header = safetensors_header({name: (raw.dtype, raw.dims) for name, raw in self.held.items()})
        size, sha256 = _write(folder / file, header, *(raw.data for raw in self.held.values()))
        self.files[file] = {"size_bytes": size, "sha256": sha256}
        self.places |= dict.fromkeys(self.held, file)
        self.held, self.held_bytes = {}, 0


def read_manifest(folder: Path) -> Manifest:
    """Of a checkpoint. Raises Corrupt for what is none."""
    return _read_manifest(folder / MANIFEST)[0]


def read_checkpoint(path: Path | str) -> Checkpoint:
    """Of a checkpoint, or of the latest in a folder of several. Every byte is compared with its digest.

    Raises NotFound where there is none that was written whole, and Corrupt for one that is damaged.
    """
    folder = Path(path)
    if not (folder / MANIFEST).is_file():
        found = latest(folder)
        if found is None:
            raise NotFound(f"{folder}: no checkpoint here that was written to its end (no {MANIFEST})")
        folder = found
    manifest, files = _read_manifest(folder / MANIFEST)
    states: dict[str, TensorSource] = {}
    kept: dict[str, dict[str, TensorSource]] = {}
    for file, (size, sha256) in files.items():
        _check_file(folder / file, size, sha256)
        for key, tensor in stored_tensors(folder / file):
            kind, name = ("", key) if file.startswith(_MODEL) else key.split("/", 1)
            first = manifest.states[name][2]
            if kind in ("", _BUFFER):
                states[first] = tensor
            else:
                kept.setdefault(first, {})[kind] = tensor
    return Checkpoint(manifest=manifest, states=states, kept=kept)


def check_fits(manifest: Manifest, graph: Graph, optimizer: str) -> None:
    """Raises InvalidArgument for a graph of other states, and for an optimizer of another name."""
    needed = _described(graph)
    for name in sorted(needed.keys() ^ manifest.states.keys()):
        where = "the graph" if name in needed else "the checkpoint"
        raise InvalidArgument(f"the checkpoint is of another module: state {name!r} is only in {where}")
    for name, (dtype, dims, first) in needed.items():
        found_dtype, found_dims, found_first = manifest.states[name]
        if (found_dtype, found_dims) != (dtype, dims):
            raise InvalidArgument(
                f"the checkpoint is of another module: state {name!r} is {found_dtype} {list(found_dims)} in it, and"
                f" {dtype} {list(dims)} in the graph"
            )
        if found_first != first:
            raise InvalidArgument(
                f"the checkpoint is of another module: state {name!r} is tied to {found_first!r} in it, and to"
                f" {first!r} in the graph"
            )
    if manifest.optimizer != optimizer:
        raise InvalidArgument(
            f"the checkpoint is of {manifest.optimizer}, this trainer has {optimizer}; its weights alone can be loaded"
            " by load_state_dict"
        )


def _described(graph: Graph) -> dict[str, tuple[str, tuple[int, ...], str]]:
    names, values = StateNames(graph), graph.values_by_id()
    found = {}
    for state in graph.states:
        if state.name in names.saved or state.name in names.other_buffers:
            value = values[state.value_id]
            assert value.dtype is not None
            found[state.name] = value.dtype.value, tuple(map(int, value.dims)), names.first(state.name)  # type: ignore[arg-type]
    return found


def _read_manifest(path: Path) -> tuple[Manifest, dict[str, tuple[int, str]]]:
    try:
        document = json.loads(path.read_text(encoding="utf-8"))
        if document["format"] != _FORMAT:
            raise Corrupt(f"{path}: format {document['format']} found, {_FORMAT} needed; read it with its own version")
        manifest = Manifest(
            graph_id=document["graph_id"],
            optimizer=document["optimizer"],
            progress=Progress(**document["progress"]),
            states={name: (dtype, tuple(dims), first) for name, (dtype, dims, first) in document["states"].items()},
        )
        files = {Path(name).name: (entry["size_bytes"], entry["sha256"]) for name, entry in document["files"].items()}
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise Corrupt(f"{path}: no manifest of a checkpoint ({error!r})") from None
    return manifest, files


def _check_file(path: Path, size_bytes: int, sha256: str) -> None:
    if not path.is_file():
        raise Corrupt(f"{path} is missing; the checkpoint is not whole")
    if path.stat().st_size != size_bytes:
        raise Corrupt(f"{path} has {path.stat().st_size} bytes, needs {size_bytes}")
    with path.open("rb") as file:
        if hashlib.file_digest(file, "sha256").hexdigest() != sha256:
            raise Corrupt(f"{path} is damaged: its bytes are not those that were written")


def _checkpoints(directory: Path) -> dict[int, Path]:
    """By their steps."""
    return {
        int(match[1]): path
        for path in directory.glob("step-*")
        if (match := _FOLDER.fullmatch(path.name)) and (path / MANIFEST).is_file()
    }


def _forget(directory: Path, written: Path, keep: int) -> None:
    others = sorted((number, path) for number, path in _checkpoints(directory).items() if path != written)
    for _, path in others[: max(len(others) - (keep - 1), 0)]:
        # Renamed first: half of it is never taken for a checkpoint.
        shutil.rmtree(path.rename(_aside(path)))


def _aside(path: Path) -> Path:
    """Beside it, a name that none has."""
    return path.with_name(f"{_UNFINISHED}{uuid.uuid4().hex}")


def _write(path: Path, *parts: bytes | memoryview) -> tuple[int, str]:
    """(size, sha256) of the file, which is on the disk."""
    digest = hashlib.sha256()
    with path.open("wb") as file:
        for part in parts:
            digest.update(part)
            file.write(part)
        file.flush()
        os.fsync(file.fileno())
        return file.tell(), digest.hexdigest()


def _sync_folder(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
