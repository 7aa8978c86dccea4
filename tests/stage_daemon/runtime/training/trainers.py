"""The client's trainer on devices that are threads of this process: every message is what daemons are sent."""

from __future__ import annotations

import threading
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any

import pytest

from planner.client.messages import failure_from_proto
from planner.client.records import Deployment, DeploymentState, StagePlacement
from planner.client.status import error_from_failure
from planner.client.training import Optimizer, Trainer, optimizer_from_text, trainer
from planner.errors import StepNotApplied
from protos.v1 import stage_daemon_pb2
from stage_daemon.worker.training import Training
from tests.stage_daemon.runtime.training.devices import SEED, Cluster
from tests.waiting import WAIT_SECONDS

_Response = stage_daemon_pb2.TrainResponse


class ThreadStreams:
    """As TrainingStreams; `received_bytes` counts the tensors that each device was sent to write."""

    def __init__(self, cluster: Cluster) -> None:
        self._answers: dict[str, list[_Response]] = {}
        self.received_bytes = dict.fromkeys(cluster.told, 0)
        self.devices = {
            device_id: Training(
                told, lambda response, _, device_id=device_id: self._answers[device_id].append(response)
            )
            for device_id, told in cluster.told.items()
        }

    @property
    def device_ids(self) -> tuple[str, ...]:
        return tuple(self.devices)

    def ask(self, requests: Mapping[str, stage_daemon_pb2.TrainRequest]) -> dict[str, list[_Response]]:
        self._answers = {device_id: [] for device_id in requests}
        threads = [
            threading.Thread(target=self.devices[device_id].do, args=(request,), daemon=True)
            for device_id, request in requests.items()
        ]
        for device_id, request in requests.items():
            self.received_bytes[device_id] += sum(len(state.tensor.data) for state in request.write_states.states)
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(WAIT_SECONDS)
        for responses in self._answers.values():
            if responses[-1].WhichOneof("content") == "failure":
                raise error_from_failure(failure_from_proto(responses[-1].failure), otherwise=StepNotApplied)
        return self._answers

    def close(self) -> None:
        pass


def trainer_on(
    cluster: Cluster, optimizer: Optimizer | str, patch: pytest.MonkeyPatch, **options: Any
) -> tuple[Trainer, ThreadStreams]:
    streams = ThreadStreams(cluster)
    patch.setattr(trainer, "TrainingStreams", lambda *_: streams)
    deployment = Deployment(
        id="dep-test",
        plan_id="plan-test",
        graph_id="graph-test",
        state=DeploymentState.READY,
        generation=1,
        failure=None,
        stages=tuple(
            StagePlacement(stage=stage.index, device_id=stage.device_ids[0], daemon_address="localhost:1")
            for stage in cluster.plan.stages
        ),
        input_address="",
        output_address="",
        created_at=datetime.now(UTC),
        ended_at=None,
    )
    made = Trainer(
        graph=cluster.graph,
        deployment=deployment,
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
    )
    assert not options
    return made, streams
