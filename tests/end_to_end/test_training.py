"""Training through a planner and daemons: what one process gives, whatever the schedule and wherever the stages are."""

from __future__ import annotations

import copy
import json
import math
import os
import shutil
import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import grpc
import pytest
import torch
from safetensors.torch import load_file as read_torch_file
from torch import nn

from access.tickets import TICKET_KEY
from examples.tiny_gpt import batches, build
from planner.cli.__main__ import main
from planner.client import PlannerClient, export
from planner.client.access import TicketHolder
from planner.client.local_cluster import LocalCluster
from planner.client.records import Deployment
from planner.client.training import Trainer, cosine
from planner.errors import Conflict, DeploymentFailed, InvalidArgument, StepNotApplied
from planner.partition.objective import Activations, PipelineSchedule, Training
from planner.plan.options import BalancedMode, PlanOptions
from protos.v1 import stage_daemon_pb2, stage_daemon_pb2_grpc
from tests.stage_daemon.runtime.training.eager import Eager
from tests.stage_daemon.runtime.training.modules import BATCH, Normed, Tied, rows, tokens

pytestmark = [pytest.mark.services, pytest.mark.slow]

SHAPES = ({0: BATCH}, {0: BATCH})


@contextmanager
def deployed(
    client: PlannerClient,
    module: nn.Module,
    args: tuple[Any, ...],
    schedule: PipelineSchedule | None,
    *,
    copies: int = 1,
    num_stages: int = 3,
    activations: Activations = Activations.KEPT,
) -> Iterator[list[Deployment]]:
    graph = client.submit(export(module, args, dynamic_shapes=SHAPES))
    training = Training(schedule=schedule, microbatches=4, activations=activations) if schedule else None
    plan = client.create_plan(graph.id, PlanOptions(mode=BalancedMode(num_stages=num_stages), training=training))
    found = [client.deploy(plan.id) for _ in range(copies)]
    try:
        yield found
    finally:
        for deployment in found:
            client.stop(deployment.id)


def assert_same_weights(trainer: Trainer, module: nn.Module, tolerance: float = 0.0) -> None:
    found, wanted = trainer.state_dict(), module.state_dict()
    assert found.keys() == wanted.keys()
    for name in wanted:
        torch.testing.assert_close(found[name], wanted[name], rtol=tolerance, atol=tolerance)


def tied(rate: float) -> tuple[Tied, Eager]:
    torch.manual_seed(0)
    module = Tied()
    optimizer = torch.optim.AdamW(module.parameters(), lr=rate, weight_decay=0.1)
    return copy.deepcopy(module), Eager(module, optimizer, lambda found: found[0])


def assert_same_step(trainer: Trainer, eager: Eager, seed: int, rate: float) -> None:
    ids, targets = tokens(10, seed)
    sizes = (3, 3, 2, 2)
    result = trainer.step(ids, targets)
    microbatches = list(zip(ids.split(sizes), targets.split(sizes), strict=True))
    losses, norm = eager.step(microbatches, [size / 10 for size in sizes], rate=rate, clip_norm=1.0)
    assert result.losses == pytest.approx(losses, rel=1e-6)
    assert result.loss == pytest.approx(sum(size * loss for size, loss in zip(sizes, losses, strict=True)) / 10)
    assert result.gradient_norm == pytest.approx(norm, rel=1e-6)
    assert (result.learning_rate, result.applied) == (rate, True)
    assert 0.0 <= result.bubble_share < 1.0


def test_two_trainings_at_once_on_the_same_daemons(client: PlannerClient) -> None:
    """Each is trained, evaluated in between, read back and pushed to as if it were alone."""
    module, _ = tied(0.0)
    # Threads would draw their weights from one generator.
    eagers = {rate: tied(rate)[1] for rate in (0.01, 0.02)}
    errors: list[BaseException] = []

    def train(deployment: Deployment, rate: float) -> None:
        try:
            eager = eagers[rate]
            with client.train(deployment.id, f"adamw:lr={rate},weight_decay=0.1", clip_norm=1.0) as trainer:
                for step in range(3):
                    assert_same_step(trainer, eager, step, rate)
                    ids, targets = tokens(4, 77)
                    with torch.no_grad():
                        torch.testing.assert_close(trainer.evaluate(ids, targets)[1], eager.module(ids, targets)[1])
                assert_same_weights(trainer, eager.module, 1e-6)
                push(trainer, eager, rate)
        except BaseException as error:
            errors.append(error)

    def push(trainer: Trainer, eager: Eager, rate: float) -> None:
        pushed = {name: state * 0.5 for name, state in eager.module.state_dict().items()}
        eager.module.load_state_dict(pushed)
        trainer.load_state_dict({name: pushed[name] for name in pushed if name != "head.weight"})
        assert_same_weights(trainer, eager.module, 0.0)
        trainer.learning_rate = rate / 2
        assert_same_step(trainer, eager, 9, rate / 2)

    with deployed(client, module, tokens(4, 0), PipelineSchedule.ONE_F_ONE_B, copies=2) as (first, second):
        threads = [threading.Thread(target=train, args=told) for told in ((first, 0.01), (second, 0.02))]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        if errors:
            raise errors[0]


def test_the_command_trains_writes_the_weights_and_goes_on(
    cluster: LocalCluster, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    target, checkpoints = tmp_path / "weights.safetensors", tmp_path / "checkpoints"
    command = ["train", "examples.tiny_gpt:build", "--data", "examples.tiny_gpt:batches", "--steps", "6", "--seed", "s"]
    command += ["--optimizer", "adamw:lr=0.003", "--microbatches", "4", "--cosine", "1", "--out", str(target)]
    command += ["--checkpoint", str(checkpoints), "--every", "4"]
    command += ["--server", cluster.planner_address, "-o", "json"]

    def run(*options: str) -> tuple[int | str | None, str, str]:
        with pytest.raises(SystemExit) as ended:
            main([*command, *options])
        return ended.value.code, *capsys.readouterr()

    status, printed, told = run("--stages", "2")
    assert not status, told
    document = json.loads(printed)
    assert (document["steps"], document["num_stages"], len(document["losses"])) == (6, 2, 6)
    assert document["last_loss"] < document["first_loss"]
    assert 0 <= document["predicted_bubble_share"] < 1
    assert document["tokens_per_second"] > 0
    module = build()[0]
    module.load_state_dict(read_torch_file(target))
    with torch.no_grad():
        loss = module(*next(batches()))
    assert loss < document["first_loss"]

    shutil.rmtree(checkpoints / "step-00000006")
    status, printed, told = run("--stages", "3", "--resume", "--keep", "1")
    assert not status, told
    resumed = json.loads(printed)
    assert (resumed["steps"], resumed["num_stages"]) == (2, 3)
    assert resumed["losses"] == pytest.approx(document["losses"][4:], rel=1e-6)
    assert [path.name for path in checkpoints.iterdir()] == ["step-00000006"]


def test_a_checkpoint_goes_on_on_other_stages_and_daemons(client: PlannerClient, tmp_path: Path) -> None:
    """With dropout, whose units are the same wherever their stage is, and where activations are computed again."""
    torch.manual_seed(0)
    module = Normed(dropout=0.5)
    with (
        deployed(client, copy.deepcopy(module), rows(4, 0), PipelineSchedule.ONE_F_ONE_B) as [deployment],
        client.train(deployment.id, "adamw:lr=0.01", schedule=cosine(9)) as trainer,
    ):
        for number in range(2):
            trainer.step(*rows(10, number))
        trainer.save(tmp_path)
        wanted = [trainer.step(*rows(10, number)).losses for number in range(2, 5)]
    schedule, again = PipelineSchedule.GPIPE, Activations.RECOMPUTED
    with deployed(client, copy.deepcopy(module), rows(4, 0), schedule, num_stages=2, activations=again) as [deployment]:
        assert all(stage.recomputes_activations for stage in client.get_plan(deployment.plan_id).stages)
        with pytest.raises(InvalidArgument, match="of adamw, this trainer has sgd"):
            client.train(deployment.id, "sgd:lr=0.01", resume=tmp_path)
        with client.train(deployment.id, "adamw:lr=0.01", schedule=cosine(9), resume=tmp_path) as trainer:
            found = [trainer.step(*rows(10, number)).losses for number in range(2, 5)]
            read = read_torch_file(trainer.save(tmp_path, keep=1) / "model-00001.safetensors")
            assert_same_weights(trainer, restored(module, read))
    assert found == wanted


def restored(module: nn.Module, states: dict[str, torch.Tensor]) -> nn.Module:
    module.load_state_dict(states)
    return module


def test_what_cannot_be_a_step_is_refused_and_changes_nothing(client: PlannerClient) -> None:
    torch.manual_seed(0)
    module = Normed()
    with deployed(client, copy.deepcopy(module), rows(4, 0), PipelineSchedule.ZERO_BUBBLE) as [deployment]:
        with client.train(deployment.id, "sgd:lr=0.1,momentum=0.9") as trainer:
            x, y = rows(8, 1)
            with pytest.raises(InvalidArgument, match="at most 64"):
                trainer.step_microbatches([rows(65, 1)])
            with pytest.raises(InvalidArgument, match="of no microbatch"):
                trainer.step_microbatches([])
            with pytest.raises(Conflict, match="being trained already"):
                client.train(deployment.id, "sgd:lr=0.1")
            with pytest.raises(StepNotApplied, match="the loss is nan"):
                trainer.step(x * math.nan, y)
            parameters = dict(module.named_parameters())
            found = trainer.state_dict()
            assert all(torch.equal(found[name], one) for name, one in parameters.items())
        with pytest.raises(InvalidArgument, match="momentous"):
            client.train(deployment.id, "sgd:lr=0.1,momentous=0.9")
        # Who left lets the next one train.
        with client.train(deployment.id, "sgd:lr=0.1") as trainer:
            assert trainer.step(x, y).number == 1


def test_a_plan_for_inference_does_not_train(client: PlannerClient) -> None:
    with deployed(client, Tied(), tokens(4, 0), None) as [deployment]:
        with pytest.raises(Conflict, match="of a plan for inference"):
            client.train(deployment.id, "sgd:lr=0.1")
        ticket = TicketHolder(client._connection, deployment.id).ticket()
        with grpc.insecure_channel(deployment.stages[0].daemon_address) as channel:
            opened = stage_daemon_pb2.OpenTraining(deployment_id=deployment.id)
            stub = stage_daemon_pb2_grpc.StageDaemonServiceStub(channel)
            with pytest.raises(grpc.RpcError, match="is for inference"):
                list(stub.Train(iter([stage_daemon_pb2.TrainRequest(open=opened)]), metadata=((TICKET_KEY, ticket),)))


def test_a_worker_that_dies_ends_the_step_and_is_named(client: PlannerClient) -> None:
    with (
        deployed(client, Tied(), tokens(4, 0), PipelineSchedule.GPIPE) as [deployment],
        client.train(deployment.id, "sgd:lr=0.1") as trainer,
    ):
        trainer.step(*tokens(8, 0))
        victim = deployment.stages[1]
        with grpc.insecure_channel(victim.daemon_address) as channel:
            status = stage_daemon_pb2_grpc.StageDaemonServiceStub(channel).GetDaemonStatus(
                stage_daemon_pb2.GetDaemonStatusRequest()
            )
        [process_id] = {one.worker_process_id for one in status.stages if one.deployment_id == deployment.id}
        # One that is stopped still counts as alive: the others are in the middle of the step by the time it dies.
        os.kill(process_id, signal.SIGSTOP)
        killing = threading.Timer(2.0, os.kill, (process_id, signal.SIGKILL))
        killing.start()
        with pytest.raises(DeploymentFailed, match=f"stage 1 on device {victim.device_id}.*SIGKILL"):
            trainer.step(*tokens(8, 1))
        killing.join()
