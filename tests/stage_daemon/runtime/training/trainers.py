"""The client's trainer on devices that are threads of this process: every message is what daemons are sent."""

from __future__ import annotations

import threading
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from datetime import UTC, datetime
from typing import Any

import pytest
import torch
from safetensors.torch import load

from planner.client.messages import failure_from_proto
from planner.client.records import Deployment, DeploymentState, StagePlacement
from planner.client.status import error_from_failure
from planner.client.tensors import RawTensor, to_raw
from planner.client.training import Optimizer, Trainer, optimizer_from_text, trainer
from planner.client.training.streams import Request, serialized
from planner.errors import NotFound, StepNotApplied, Unavailable
from planner.graph.checkpoint import Checkpoint, CheckpointRecord, check_sound
from planner.graph.ir import Dtype
from planner.graph.state_names import StateNames
from protos.v1 import stage_daemon_pb2
from stage_daemon.worker.training import Training
from stage_daemon.worker.training_wire import read_request
from tests.stage_daemon.runtime.training.devices import SEED, Cluster, MemoryBlobs
from tests.waiting import WAIT_SECONDS

_Response = stage_daemon_pb2.TrainResponse


class SavedHere:
    """What the planner keeps of checkpoints: blobs by their hash, and records, the newest last."""

    def __init__(self) -> None:
        self.blobs: dict[bytes, bytes] = {}
        self.checkpoints: list[Checkpoint] = []
        self.num_made = 0
        self.weights: dict[str, torch.Tensor] = {}

    def create_checkpoint(self, checkpoint: Checkpoint) -> CheckpointRecord:
        check_sound(checkpoint.record, checkpoint.tensors)
        assert all(len(self.blobs[file.sha256]) == file.size_bytes for file in checkpoint.record.files)
        self.num_made += 1
        record = replace(checkpoint.record, id=f"ckpt-{self.num_made}")
        self.checkpoints.append(replace(checkpoint, record=record))
        return record

    def find_checkpoint(self, name: str) -> Checkpoint:
        matches = [one for one in self.checkpoints if name in (one.record.id, one.record.run)]
        if not matches:
            raise NotFound(f"no checkpoint {name}")
        return max(matches, key=lambda one: one.record.progress.num_steps)

    def list_checkpoints(self, *, run: str = "") -> Iterator[CheckpointRecord]:
        return iter([one.record for one in self.checkpoints if one.record.run == run])

    def delete_checkpoint(self, checkpoint_id: str) -> str:
        self.checkpoints = [one for one in self.checkpoints if one.record.id != checkpoint_id]
        return checkpoint_id

    def read_weights(self, graph_id: str, names: StateNames, wanted: Iterable[str]) -> dict[str, RawTensor]:
        """Of what the graph came with, which is in `weights`."""
        tensors = {name: self.weights[name] for name in wanted}
        return {name: to_raw(one, Dtype(str(one.dtype).removeprefix("torch."))) for name, one in tensors.items()}

    def tensors(self, checkpoint_id: str) -> dict[str, torch.Tensor]:
        """As safetensors alone reads the files."""
        tensors: dict[str, torch.Tensor] = {}
        for file in self.find_checkpoint(checkpoint_id).record.files:
            tensors |= load(self.blobs[file.sha256])
        return tensors


class ThreadStreams:
    """As TrainingStreams. From `lost_at` on, counted in requests, no device answers."""

    def __init__(self, cluster: Cluster, saved: SavedHere) -> None:
        self._answers: dict[str, list[_Response]] = {}
        self.lost_at: int | None = None
        self.num_asked = 0
        self.blobs = {device_id: MemoryBlobs(saved.blobs) for device_id in cluster.told}
        self.devices = {
            device_id: Training(
                replace(told, blobs=self.blobs[device_id]),
                lambda response, _, device_id=device_id: self._answers[device_id].append(response),
            )
            for device_id, told in cluster.told.items()
        }

    @property
    def device_ids(self) -> tuple[str, ...]:
        return tuple(self.devices)

    def ask(self, requests: Mapping[str, Request]) -> dict[str, list[_Response]]:
        self.num_asked += 1
        if self.lost_at is not None and self.num_asked >= self.lost_at:
            raise Unavailable("no daemon answers")
        self._answers = {device_id: [] for device_id in requests}
        threads = [
            threading.Thread(target=self.devices[device_id].do, args=read_request(serialized(request)), daemon=True)
            for device_id, request in requests.items()
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(WAIT_SECONDS)
        for responses in self._answers.values():
            if responses[-1].WhichOneof("content") == "failure":
                raise error_from_failure(failure_from_proto(responses[-1].failure), otherwise=StepNotApplied)
        return self._answers

    def save_snapshot(self, deployment_id: str, generation: int) -> list[stage_daemon_pb2.SaveSnapshotResponse]:
        return [device.save_snapshot() for device in self.devices.values()]

    def close(self) -> None:
        pass


def deployment_on(cluster: Cluster, generation: int = 1) -> Deployment:
    return Deployment(
        id="dep-test",
        plan_id="plan-test",
        graph_id="graph-test",
        state=DeploymentState.READY,
        generation=generation,
        failure=None,
        stages=tuple(
            StagePlacement(stage=stage.index, device_id=device_id, daemon_address="localhost:1")
            for stage in cluster.plan.stages
            for device_id in stage.device_ids
        ),
        input_address="",
        output_address="",
        created_at=datetime.now(UTC),
        ended_at=None,
    )


def trainer_on(
    cluster: Cluster,
    optimizer: Optimizer | str,
    patch: pytest.MonkeyPatch,
    *,
    saved: SavedHere | None = None,
    later: Sequence[Cluster] = (),
    **options: Any,
) -> tuple[Trainer, ThreadStreams]:
    """`later`: where the next generations are."""
    saved = saved or SavedHere()
    streams = [ThreadStreams(one, saved) for one in (cluster, *later)]
    opened = iter(streams)
    patch.setattr(trainer, "TrainingStreams", lambda *_: next(opened))
    deployments = [deployment_on(one, generation) for generation, one in enumerate((cluster, *later), start=1)]

    def find_next(_: str, generation: int) -> Deployment | None:
        return deployments[generation] if generation < len(deployments) else None

    built = Trainer(
        graph=cluster.graph,
        deployment=deployments[0],
        microbatches=4,
        optimizer=optimizer_from_text(optimizer) if isinstance(optimizer, str) else optimizer,
        loss=None,
        reduction=options.pop("reduction", "mean"),
        clip_norm=options.pop("clip_norm", None),
        schedule=options.pop("schedule", None),
        loss_scaling=options.pop("loss_scaling", None),
        skip_nonfinite=False,
        seed=options.pop("seed", SEED),
        deadline_seconds=WAIT_SECONDS,
        pipeline=lambda: pytest.fail("nothing is evaluated"),
        why_failed=lambda: None,
        store=saved,
        outputs=options.pop("outputs", None),
        checkpoints=options.pop("checkpoints", None),
        find_next=find_next if later else None,
    )
    assert not options
    return built, streams[0]
