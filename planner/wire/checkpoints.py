"""Checkpoints on the wire."""

from __future__ import annotations

from datetime import UTC

from planner.graph.checkpoint import Checkpoint, CheckpointRecord, SavedFile, SavedTensor, TrainingProgress
from planner.wire.graph.enumerations import DTYPES
from protos.v1 import planner_pb2


def checkpoint_record_to_proto(record: CheckpointRecord) -> planner_pb2.CheckpointRecord:
    message = planner_pb2.CheckpointRecord(
        id=record.id,
        run=record.run,
        graph_id=record.graph_id,
        optimizer=record.optimizer,
        progress=_progress_to_proto(record.progress),
        files=[
            planner_pb2.SavedFile(sha256=file.sha256, size_bytes=file.size_bytes, is_model=file.is_model)
            for file in record.files
        ],
        size_bytes=record.size_bytes,
    )
    message.created_at.FromDatetime(record.created_at)
    return message


def checkpoint_record_from_proto(message: planner_pb2.CheckpointRecord) -> CheckpointRecord:
    return CheckpointRecord(
        id=message.id,
        run=message.run,
        graph_id=message.graph_id,
        optimizer=message.optimizer,
        progress=_progress_from_proto(message.progress),
        files=tuple(map(saved_file_from_proto, message.files)),
        created_at=message.created_at.ToDatetime(tzinfo=UTC),
    )


def checkpoint_to_proto(checkpoint: Checkpoint) -> planner_pb2.Checkpoint:
    return planner_pb2.Checkpoint(
        record=checkpoint_record_to_proto(checkpoint.record), tensors=map(saved_tensor_to_proto, checkpoint.tensors)
    )


def checkpoint_from_proto(message: planner_pb2.Checkpoint) -> Checkpoint:
    return Checkpoint(
        record=checkpoint_record_from_proto(message.record),
        tensors=tuple(map(saved_tensor_from_proto, message.tensors)),
    )


def saved_file_from_proto(message: planner_pb2.SavedFile) -> SavedFile:
    return SavedFile(sha256=message.sha256, size_bytes=message.size_bytes, is_model=message.is_model)


def saved_tensor_to_proto(tensor: SavedTensor) -> planner_pb2.SavedTensor:
    return planner_pb2.SavedTensor(
        name=tensor.name,
        optimizer_tensor=tensor.optimizer_tensor,
        dtype=DTYPES.number[tensor.dtype],
        dims=tensor.dims,
        file_sha256=tensor.file_sha256,
        offset_bytes=tensor.offset_bytes,
        length_bytes=tensor.length_bytes,
        sha256=tensor.sha256,
    )


def saved_tensor_from_proto(message: planner_pb2.SavedTensor) -> SavedTensor:
    return SavedTensor(
        name=message.name,
        optimizer_tensor=message.optimizer_tensor,
        dtype=DTYPES.member(message.dtype),
        dims=tuple(message.dims),
        file_sha256=message.file_sha256,
        offset_bytes=message.offset_bytes,
        length_bytes=message.length_bytes,
        sha256=message.sha256,
    )


def _progress_to_proto(progress: TrainingProgress) -> planner_pb2.TrainingProgress:
    return planner_pb2.TrainingProgress(
        num_steps=progress.num_steps,
        seed=progress.seed,
        loss_scale=progress.loss_scale,
        num_grown=progress.num_grown,
        learning_rate=progress.learning_rate,
    )


def _progress_from_proto(message: planner_pb2.TrainingProgress) -> TrainingProgress:
    return TrainingProgress(
        num_steps=message.num_steps,
        seed=message.seed,
        loss_scale=message.loss_scale,
        num_grown=message.num_grown,
        learning_rate=message.learning_rate if message.HasField("learning_rate") else None,
    )
