"""A device's part of a checkpoint: safetensors files of its snapshot, uploaded under the hash of their bytes.

Parameters and persistent buffers are in files of their own, under the names of the module's state_dict. What training
needs besides is called "exp_avg/<name>" and the like, and "buffer/<name>" where a step changes what a state_dict lacks.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterator, Mapping, Sequence

import torch

from protos.v1 import stage_daemon_pb2
from stage_daemon.errors import InvalidRequest
from stage_daemon.runtime.training.snapshot import Snapshot
from stage_daemon.runtime.training.states import TensorKey
from stage_daemon.transport.dtypes import DTYPES
from stage_daemon.worker.wire import wire_dtype

# Uploads that break go on within a file, and planners check one as a whole.
MAX_FILE_BYTES = 1 << 30
_BUFFER = "buffer"
_DTYPES: Mapping[torch.dtype, str] = {
    getattr(torch, name): facts.safetensors for name, facts in DTYPES.items() if facts.safetensors
}

# A file's sha256, and its bytes in pieces.
Upload = Callable[[bytes, Sequence[memoryview]], None]


def save(snapshot: Snapshot, upload: Upload) -> stage_daemon_pb2.SaveSnapshotResponse:
    """Returns once all files are uploaded. Raises InvalidRequest for a dtype that safetensors has not."""
    saved = stage_daemon_pb2.SaveSnapshotResponse()
    model: dict[TensorKey, torch.Tensor] = {}
    training: dict[TensorKey, torch.Tensor] = {}
    for key, tensor in snapshot.tensors().items():
        (training if key.optimizer_tensor or key.state in snapshot.others else model)[key] = tensor
    for tensors in (model, training):
        for shard in _shards(tensors):
            _save_file(shard, snapshot, upload, saved)
            saved.files[-1].is_model = tensors is model
    return saved


def _shards(tensors: Mapping[TensorKey, torch.Tensor]) -> Iterator[dict[TensorKey, torch.Tensor]]:
    """Of at most MAX_FILE_BYTES, or of one tensor."""
    shard: dict[TensorKey, torch.Tensor] = {}
    num_bytes = 0
    for key, tensor in tensors.items():
        if shard and num_bytes + tensor.nbytes > MAX_FILE_BYTES:
            yield shard
            shard, num_bytes = {}, 0
        shard[key] = tensor
        num_bytes += tensor.nbytes
    if shard:
        yield shard


def _save_file(
    shard: Mapping[TensorKey, torch.Tensor],
    snapshot: Snapshot,
    upload: Upload,
    saved: stage_daemon_pb2.SaveSnapshotResponse,
) -> None:
    header = _header({_name(key, snapshot): tensor for key, tensor in shard.items()})
    pieces = [memoryview(header), *map(_bytes, shard.values())]
    digest = hashlib.sha256()
    for piece in pieces:
        digest.update(piece)
    sha256 = digest.digest()
    offset = len(header)
    for (key, tensor), piece in zip(shard.items(), pieces[1:], strict=True):
        saved.tensors.add(
            name=key.state,
            optimizer_tensor=key.optimizer_tensor,
            dtype=wire_dtype(tensor.dtype),
            dims=tensor.shape,
            file_sha256=sha256,
            offset_bytes=offset,
            length_bytes=len(piece),
            sha256=hashlib.sha256(piece).digest(),
        )
        offset += len(piece)
    upload(sha256, pieces)
    saved.files.add(sha256=sha256, size_bytes=offset)


def _name(key: TensorKey, snapshot: Snapshot) -> str:
    kind = key.optimizer_tensor or (_BUFFER if key.state in snapshot.others else "")
    return f"{kind}/{key.state}" if kind else key.state


def _header(tensors: Mapping[str, torch.Tensor]) -> bytes:
    entries, end = {}, 0
    for name, tensor in tensors.items():
        if tensor.dtype not in _DTYPES:
            raise InvalidRequest(f"state {name!r} is {tensor.dtype}: safetensors has no such dtype")
        begin, end = end, end + tensor.nbytes
        entries[name] = {"dtype": _DTYPES[tensor.dtype], "shape": list(tensor.shape), "data_offsets": [begin, end]}
    content = json.dumps(entries).encode()
    # The format aligns what follows to 8 bytes.
    content += b" " * (-len(content) % 8)
    return len(content).to_bytes(8, "little") + content


def _bytes(tensor: torch.Tensor) -> memoryview:
    return tensor.view(-1).view(torch.uint8).numpy().data
