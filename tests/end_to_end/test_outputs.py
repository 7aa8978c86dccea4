"""Outputs that a session chooses, over real daemons: by their workers' doors, and by the streams of gRPC."""

from __future__ import annotations

import errno
from collections.abc import Iterator
from unittest.mock import Mock

import pytest
import torch
from torch import nn

from planner.client import PlannerClient, export
from planner.client.local_cluster import LocalCluster
from planner.client.outputs import ChosenOutput
from planner.client.records import Deployment
from planner.errors import InvalidArgument, MicrobatchFailed, ResourceExhausted
from planner.plan.options import CutMode, SingleMode
from tests.waiting import WAIT_SECONDS

pytestmark = pytest.mark.services
SEQUENCE = torch.export.Dim("sequence", min=2, max=16)
LAST, GREATEST = "logits[:, -1]", "logits[:, -1].argmax(-1)"


class Model(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embed, self.head = nn.Embedding(11, 4), nn.Linear(4, 11)

    def forward(self, ids: torch.Tensor) -> dict[str, torch.Tensor]:
        hidden = self.embed(ids)
        return {"logits": self.head(hidden), "hidden": hidden}


@pytest.fixture(scope="module")
def module() -> Model:
    torch.manual_seed(0)
    return Model().eval()


@pytest.fixture(scope="module")
def deployment(cluster: LocalCluster, module: Model) -> Iterator[Deployment]:
    model = export(module, (batch(5),), dynamic_shapes={"ids": {1: SEQUENCE}})
    with PlannerClient(cluster.planner_address, timeout_seconds=WAIT_SECONDS) as client:
        plan = client.create_plan(client.submit(model).id, CutMode(module_paths=("embed",)))
        deployed = client.deploy(plan.id)
        yield deployed
        client.stop(deployed.id)


def batch(length: int) -> torch.Tensor:
    return torch.arange(2 * length).reshape(2, length) % 11


def test_results_hold_what_a_session_chose(
    client: PlannerClient, deployment: Deployment, module: Model, monkeypatch: pytest.MonkeyPatch
) -> None:
    batches = [batch(length) for length in (2, 7, 5)]
    with torch.no_grad():
        logits = [module(one)["logits"] for one in batches]
    for host in (None, ""):
        if host is not None:
            # A client that cannot tell its host takes no short cut.
            monkeypatch.setattr("planner.client.session.host_identity", lambda: "")
        with (
            client.pipeline(deployment.id, outputs=[GREATEST, LAST]) as selecting,
            client.pipeline(deployment.id) as every,
        ):
            whole = every.run(batches)
            for outputs, beside, expected in zip(selecting.run(batches), whole, logits, strict=True):
                assert list(outputs) == [GREATEST, LAST]
                assert torch.equal(outputs[LAST], expected[:, -1])
                assert torch.equal(outputs[GREATEST], expected[:, -1].argmax(-1))
                assert list(beside) == ["logits", "hidden"]
                assert torch.equal(beside["logits"], expected)


def test_a_part_that_one_batch_does_not_have_fails_that_batch(client: PlannerClient, deployment: Deployment) -> None:
    with client.pipeline(deployment.id, outputs=["hidden[:, 4]"]) as pipeline:
        first, second = pipeline.run([batch(3), batch(5)], raise_failures=False)
    assert isinstance(first, MicrobatchFailed)
    assert "index 4 is out of bounds" in first.message
    assert second["hidden[:, 4]"].shape == (2, 4)


def test_outputs_that_are_not_there_are_refused_by_client_and_daemon(
    client: PlannerClient, deployment: Deployment
) -> None:
    with pytest.raises(InvalidArgument, match="'loss' is none of the graph's; it gives logits, hidden"):
        client.pipeline(deployment.id, outputs=["loss"])
    with client.pipeline(deployment.id) as pipeline:
        pipeline.chosen = (ChosenOutput(text="other", index=2, dtype=None),)
        with pytest.raises(InvalidArgument, match="output 2 of a graph that gives 2"):
            pipeline(batch(3))


class Large(nn.Module):
    def forward(self, features: torch.Tensor) -> torch.Tensor:
        return features.repeat(64, 1)


def test_a_client_without_room_for_the_results_memory_is_told(
    client: PlannerClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    batch, full = torch.ones(2, 1024), OSError(errno.ENOMEM, "no room")
    deployed = client.deploy(client.create_plan(client.submit(export(Large(), (batch,))).id, SingleMode()).id)
    with client.pipeline(deployed.id) as pipeline:
        with monkeypatch.context() as without_room:
            without_room.setattr("access.ring._Mapping", Mock(side_effect=full))
            with pytest.raises(
                ResourceExhausted, match=r"memory for results: the worker shares \d+ slots .* raise its"
            ):
                list(pipeline.run([batch]))
        [result] = pipeline.run([batch])
        assert torch.equal(result, Large()(batch))
    client.stop(deployed.id)
