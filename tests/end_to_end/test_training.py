"""Training through a planner and daemons: what one process gives, whatever the schedule and wherever the stages are."""

from __future__ import annotations

import copy
import json
import math
import os
import signal
import threading
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import grpc
import pytest
import torch
from safetensors.torch import load_file as read_torch_file
from torch import fx, nn

from access.tickets import TICKET_KEY
from examples.tiny_gpt import batches, build
from planner.cli import exit_codes
from planner.cli.__main__ import main
from planner.client import PlannerClient, export
from planner.client.access import TicketHolder
from planner.client.local_cluster import LocalCluster
from planner.client.records import Deployment, DeploymentState, RecoveryPolicy
from planner.client.training import Checkpointing, Optimizer, ParameterGroup, Trainer, cosine
from planner.client.training.torch_loop import PipelinedModule
from planner.errors import Conflict, DeploymentFailed, InvalidArgument, PlannerWarning, StepNotApplied
from planner.fx_compat import StagedModule, analyze_pipeline_module, split_module
from planner.partition.objective import Activations, PipelineSchedule, Training
from planner.plan.options import BalancedMode, CutMode, PlanOptions
from protos.v1 import stage_daemon_pb2, stage_daemon_pb2_grpc
from tests.nightly import nightly
from tests.stage_daemon.runtime.training.eager import Eager
from tests.stage_daemon.runtime.training.modules import BATCH, Normed, Tied, rows, tokens
from tests.waiting import WAIT_SECONDS, wait_for
from tests.worker_processes import worker_at

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
    recovery: RecoveryPolicy = RecoveryPolicy.MANUAL,
) -> Iterator[list[Deployment]]:
    graph = client.submit(export(module, args, dynamic_shapes=SHAPES))
    training = Training(schedule=schedule, microbatches=4, activations=activations) if schedule else None
    plan = client.create_plan(graph.id, PlanOptions(mode=BalancedMode(num_stages=num_stages), training=training))
    deployments = [client.deploy(plan.id, recovery=recovery) for _ in range(copies)]
    try:
        yield deployments
    finally:
        for deployment in deployments:
            client.stop(deployment.id)


def assert_same_weights(trainer: Trainer, module: nn.Module, tolerance: float = 0.0) -> None:
    states, expected = trainer.state_dict(), module.state_dict()
    assert states.keys() == expected.keys()
    for name in expected:
        torch.testing.assert_close(states[name], expected[name], rtol=tolerance, atol=tolerance)


def tied(rate: float) -> tuple[Tied, Eager]:
    torch.manual_seed(0)
    module = Tied()
    optimizer = torch.optim.AdamW(module.parameters(), lr=rate, weight_decay=0.1)
    return copy.deepcopy(module), Eager(module, optimizer, lambda outputs: outputs[0])


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
        threads = [threading.Thread(target=train, args=arguments) for arguments in ((first, 0.01), (second, 0.02))]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        if errors:
            raise errors[0]


def test_the_command_trains_writes_the_weights_and_goes_on(
    cluster: LocalCluster, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("examples.tiny_gpt.LAYERS", 1)
    target = tmp_path / "weights.safetensors"
    command = ["train", "examples.tiny_gpt:build", "--data", "examples.tiny_gpt:batches", "--steps", "6", "--seed", "s"]
    command += ["--optimizer", "adamw:lr=0.003,amsgrad=true", "--master-weights", "--microbatches", "4"]
    command += ["--cosine", "1", "--out", str(target)]
    command += ["--run", "command", "--every", "4", "--reduction", "tests.builders.tokens:num_tokens"]

    def call(*arguments: str) -> tuple[int | str | None, str, str]:
        with pytest.raises(SystemExit) as ended:
            main([*arguments, "--server", cluster.planner_address, "-o", "json"])
        return ended.value.code, *capsys.readouterr()

    status, printed, messages = call(*command, "--stages", "2")
    assert not status, messages
    document = json.loads(printed)
    assert (document["steps"], document["num_stages"], len(document["losses"])) == (6, 2, 6)
    assert document["last_loss"] < document["first_loss"]
    assert 0 <= document["predicted_bubble_share"] < 1
    assert document["tokens_per_second"] > 0
    with PlannerClient(cluster.planner_address) as client:
        training = client.get_plan(document["plan_id"]).options.training
    # Three of float32 for each parameter; none has fewer bits than its master would.
    assert training is not None
    assert training.optimizer_bytes_per_parameter == 12.0
    module = build()[0]
    module.load_state_dict(read_torch_file(target))
    with torch.no_grad():
        loss = module(*next(batches()))
    assert loss < document["first_loss"]

    status, printed, _ = call("checkpoint", "list", "--run", "command")
    last, before = json.loads(printed)
    assert [one["progress"]["num_steps"] for one in (last, before)] == [6, 4]
    status, _, messages = call(*command, "--resume")
    assert status == exit_codes.INVALID_INPUT
    assert "has 6 steps, --steps 6 asks for no more" in " ".join(messages.split())
    status, printed, _ = call("checkpoint", "delete", last["id"])
    assert json.loads(printed)["deleted"]
    status, printed, messages = call(*command, "--stages", "3", "--resume", "--keep", "1")
    assert not status, messages
    resumed = json.loads(printed)
    assert (resumed["steps"], resumed["num_stages"], resumed["resumed_from"]) == (2, 3, before["id"])
    assert resumed["losses"] == pytest.approx(document["losses"][4:], rel=1e-6)
    status, printed, _ = call("checkpoint", "get", "command")
    assert json.loads(printed)["progress"]["num_steps"] == 6
    folder = tmp_path / "downloaded"
    status, _, messages = call("checkpoint", "download", "command", str(folder))
    assert not status, messages
    places = json.loads((folder / "model.safetensors.index.json").read_text())["weight_map"]
    module.load_state_dict({name: read_torch_file(folder / file)[name] for name, file in places.items()})
    with torch.no_grad():
        assert module(*next(batches())) == pytest.approx(float(loss), rel=1e-5)
    assert torch.equal(module.head.weight, module.tokens.weight)
    # A folder that is there is somebody's.
    assert call("checkpoint", "download", "command", str(folder))[0] == exit_codes.CONFLICT


def test_a_checkpoint_goes_on_on_other_stages_and_daemons(client: PlannerClient, tmp_path: Path) -> None:
    """With dropout, whose units are the same wherever their stage is, and where activations are computed again."""
    torch.manual_seed(0)
    module = Normed(dropout=0.5)
    # No stage reads it, and each state_dict has it.
    module.pooler = nn.Linear(3, 2)
    with (
        deployed(client, copy.deepcopy(module), rows(4, 0), PipelineSchedule.ONE_F_ONE_B) as [deployment],
        client.train(deployment.id, "adamw:lr=0.01", schedule=cosine(9)) as trainer,
    ):
        for number in range(2):
            trainer.step(*rows(10, number))
        trainer.save("elsewhere")
        expected = [trainer.step(*rows(10, number)).losses for number in range(2, 5)]
    schedule, again = PipelineSchedule.GPIPE, Activations.RECOMPUTED
    with deployed(client, copy.deepcopy(module), rows(4, 0), schedule, num_stages=2, activations=again) as [deployment]:
        assert all(stage.recomputes_activations for stage in client.get_plan(deployment.plan_id).stages)
        with pytest.raises(InvalidArgument, match="of adamw, this trainer has sgd"):
            client.train(deployment.id, "sgd:lr=0.01", resume="elsewhere")
        with client.train(deployment.id, "adamw:lr=0.01", schedule=cosine(9), resume="elsewhere") as trainer:
            losses = [trainer.step(*rows(10, number)).losses for number in range(2, 5)]
            record = trainer.save("elsewhere", keep=1).result()
            assert list(client.list_checkpoints(run="elsewhere")) == [record]
            states = trainer.state_dict()
            client.download_checkpoint(record.id, tmp_path / "downloaded")
    assert losses == expected
    assert torch.equal(states["pooler.weight"], module.pooler.weight)
    module.load_state_dict(states)
    places = json.loads((tmp_path / "downloaded" / "model.safetensors.index.json").read_text())["weight_map"]
    read = {name: read_torch_file(tmp_path / "downloaded" / file)[name] for name, file in places.items()}
    assert read.keys() == states.keys()
    assert all(torch.equal(read[name], states[name]) for name in states)


@dataclass(frozen=True, slots=True, kw_only=True)
class Trained:
    losses: list[tuple[float, ...]]
    weights: dict[str, torch.Tensor]
    evaluated: torch.Tensor


@pytest.fixture(scope="module")
def undisturbed(cluster: LocalCluster) -> Trained:
    with PlannerClient(cluster.planner_address, timeout_seconds=WAIT_SECONDS) as client:
        return five_steps(client, RecoveryPolicy.RESTART, is_disturbed=False)


@pytest.mark.parametrize("policy", [RecoveryPolicy.REPLAN, *nightly([RecoveryPolicy.RESTART])])
def test_a_training_outlives_its_workers(policy: RecoveryPolicy, client: PlannerClient, undisturbed: Trained) -> None:
    """One is killed between two steps, another stopped in the middle of one: losses and weights are as without."""
    disturbed = five_steps(client, policy, is_disturbed=True)
    assert disturbed.losses == undisturbed.losses
    assert torch.equal(disturbed.evaluated, undisturbed.evaluated)
    for name, expected in undisturbed.weights.items():
        assert torch.equal(disturbed.weights[name], expected)


def five_steps(client: PlannerClient, policy: RecoveryPolicy, is_disturbed: bool) -> Trained:
    torch.manual_seed(0)
    module = Normed(dropout=0.5)
    checkpoints = Checkpointing(run=f"outlives-{policy.value}-{is_disturbed}", every=2, keep=1)
    schedule = PipelineSchedule.ONE_F_ONE_B

    def worker_of_stage(stage: int) -> int:
        """Where the deployment runs it now."""
        return worker_at(client.get_deployment(deployment.id).stages[stage].daemon_address, deployment.id)

    with (
        deployed(client, module, rows(4, 0), schedule, recovery=policy) as [deployment],
        client.train(deployment.id, "adamw:lr=0.01", clip_norm=1.0, seed="seed", checkpoints=checkpoints) as trainer,
    ):
        losses = []
        for number in range(5):
            if is_disturbed and number == 1:
                os.kill(worker_of_stage(0), signal.SIGKILL)
            if is_disturbed and number == 3:
                process_id = worker_of_stage(2)
                # One that is stopped still counts as alive: the others are in the middle of the step when it dies.
                os.kill(process_id, signal.SIGSTOP)
                killing = threading.Timer(1.0, os.kill, (process_id, signal.SIGKILL))
                killing.start()
            losses.append(trainer.step(*rows(10, number)).losses)
        weights = trainer.state_dict()
        if is_disturbed:
            killing.join()
            os.kill(worker_of_stage(1), signal.SIGKILL)
        evaluated = trainer.evaluate(*rows(4, 9))
        if is_disturbed:
            assert client.get_deployment(deployment.id).generation > 2
    return Trained(losses=losses, weights=weights, evaluated=evaluated)


def test_copies_of_a_stage_train_as_one_process_and_their_checkpoint_goes_on_without_copies(
    client: PlannerClient,
) -> None:
    module, eager = tied(0.01)
    graph = client.submit(export(module, tokens(4, 0), dynamic_shapes=SHAPES))
    training = Training(microbatches=4)
    wide = PlanOptions(mode=BalancedMode(num_stages=1), saturate_host=True, training=training)
    deep = PlanOptions(mode=BalancedMode(num_stages=3), training=training)
    plans = [client.create_plan(graph.id, options) for options in (wide, deep)]
    assert [len(plan.stages[0].device_ids) for plan in plans] == [3, 1]
    for number, plan in enumerate(plans):
        deployment = client.deploy(plan.id)
        try:
            with client.train(
                deployment.id,
                "adamw:lr=0.01,weight_decay=0.1",
                clip_norm=1.0,
                checkpoints=Checkpointing(run="copies"),
                resume="copies" if number else None,
            ) as trainer:
                for step in range(3):
                    assert_same_step(trainer, eager, 3 * number + step, 0.01)
                ids, targets = tokens(4, 77)
                with torch.no_grad():
                    expected = eager.module(ids, targets)[1]
                torch.testing.assert_close(trainer.evaluate(ids, targets)[1], expected, rtol=1e-4, atol=1e-5)
                # In its module's place it takes batches of any size: more than a microbatch has.
                in_its_place = PipelinedModule(trainer).eval()
                with torch.no_grad():
                    evaluated, expected = in_its_place(*tokens(10, 78)), eager.module(*tokens(10, 78))
                torch.testing.assert_close(evaluated, expected, rtol=1e-4, atol=1e-5)
                assert_same_weights(trainer, eager.module, 1e-5)
                trainer.save().result()
        finally:
            client.stop(deployment.id)


def test_what_was_split_in_slapos_dialect_trains_as_it_was_split(client: PlannerClient) -> None:
    """The plan's stages are those of the split module, a tensor goes by the stage between, and a tie spans two."""
    torch.manual_seed(0)
    module = Tied()
    traced = fx.symbolic_trace(module)
    stage, ids = 0, {}
    for node in traced.graph.nodes:
        ids[node] = stage
        stage += node.name in ("table", "add")
    top = split_module(traced, None, ids.__getitem__, keep_original_order=True)
    _, stages, liveness = analyze_pipeline_module(top)
    staged = StagedModule(copy.deepcopy(top)).train()
    graph = client.submit(export(staged, tokens(4, 0), dynamic_shapes=(SHAPES,)))
    plan = client.create_plan(
        graph.id,
        PlanOptions(mode=CutMode(module_paths=staged.cuts), training=Training(microbatches=4)),
    )
    assert [len(one.liveness) for one in plan.stages] == [len(liveness[one]) for one in stages]
    deployment = client.deploy(plan.id)
    eager = Eager(module, torch.optim.AdamW(module.parameters(), lr=0.01, weight_decay=0.1), lambda outputs: outputs[0])
    with client.train(deployment.id, "adamw:lr=0.01,weight_decay=0.1", clip_norm=1.0) as trainer:
        for number in range(3):
            assert_same_step(trainer, eager, number, 0.01)
        staged.load_state_dict(trainer.state_dict())
    client.stop(deployment.id)
    torch.testing.assert_close(staged(*tokens(4, 9)), module(*tokens(4, 9)), rtol=1e-5, atol=1e-6)


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
            states = trainer.state_dict()
            assert all(torch.equal(states[name], one) for name, one in parameters.items())
        with pytest.raises(InvalidArgument, match="momentous"):
            client.train(deployment.id, "sgd:lr=0.1,momentous=0.9")
        misspelt = Optimizer(name="sgd", learning_rate=0.1, groups=(ParameterGroup(pattern="*.biass"),))
        with pytest.raises(InvalidArgument, match="fits none of the"):
            client.train(deployment.id, misspelt)
        # Who left lets the next one train.
        with client.train(deployment.id, "sgd:lr=0.1") as trainer:
            assert trainer.step(x, y).number == 1


def test_a_plan_for_inference_does_not_train(client: PlannerClient) -> None:
    """And a module in training mode answers so through it; through a plan for training it evaluates."""
    with (
        deployed(client, Normed(dropout=0.5), rows(4, 0), PipelineSchedule.GPIPE) as [deployment],
        warnings.catch_warnings(),
    ):
        warnings.simplefilter("error", PlannerWarning)
        client.pipeline(deployment.id).close()
    with deployed(client, Normed(dropout=0.5), rows(4, 0), None) as [deployment]:
        with pytest.warns(PlannerWarning, match=r"'norms\.0' \(aten::batch_norm\.default\) answers so"):
            client.pipeline(deployment.id).close()
        with pytest.raises(Conflict, match="of a plan for inference"):
            client.train(deployment.id, "sgd:lr=0.1")
        ticket = TicketHolder(client._connection, deployment.id).ticket()
        with grpc.insecure_channel(deployment.stages[0].daemon_address) as channel:
            opened = stage_daemon_pb2.OpenTraining(deployment_id=deployment.id)
            stub = stage_daemon_pb2_grpc.StageDaemonServiceStub(channel)
            with pytest.raises(grpc.RpcError, match="is for inference"):
                list(stub.Train(iter([stage_daemon_pb2.TrainRequest(open=opened)]), metadata=((TICKET_KEY, ticket),)))


def test_steps_on_one_host_go_past_the_daemons(client: PlannerClient, cluster: LocalCluster) -> None:
    with (
        deployed(client, Tied(), tokens(4, 0), PipelineSchedule.GPIPE) as [deployment],
        client.train(deployment.id, "sgd:lr=0.1") as trainer,
    ):
        daemons = [cluster.daemons[placement.device_id].process_id for placement in deployment.stages]
        for process_id in daemons:
            os.kill(process_id, signal.SIGSTOP)
        try:
            assert trainer.step(*tokens(8, 0)).applied
        finally:
            for process_id in daemons:
                os.kill(process_id, signal.SIGCONT)
        assert trainer.step(*tokens(8, 1)).number == 2
        assert trainer.state_dict()


def test_a_worker_that_dies_ends_the_step_and_is_named(client: PlannerClient) -> None:
    with (
        deployed(client, Tied(), tokens(4, 0), PipelineSchedule.GPIPE) as [deployment],
        client.train(deployment.id, "sgd:lr=0.1") as trainer,
    ):
        trainer.step(*tokens(8, 0))
        victim = deployment.stages[1]
        process_id = worker_at(victim.daemon_address, deployment.id)
        # One that is stopped still counts as alive: the others are in the middle of the step by the time it dies.
        os.kill(process_id, signal.SIGSTOP)
        killing = threading.Timer(2.0, os.kill, (process_id, signal.SIGKILL))
        killing.start()
        with pytest.raises(DeploymentFailed, match=f"stage 1 on device {victim.device_id}.*SIGKILL"):
            trainer.step(*tokens(8, 1))
        killing.join()


def test_a_worker_that_died_between_two_steps_is_named_too(client: PlannerClient) -> None:
    """The other daemons have let go by then, and say that the deployment was stopped."""
    with (
        deployed(client, Tied(), tokens(4, 0), PipelineSchedule.GPIPE) as [deployment],
        client.train(deployment.id, "sgd:lr=0.1") as trainer,
    ):
        os.kill(worker_at(deployment.stages[2].daemon_address, deployment.id), signal.SIGKILL)
        wait_for(lambda: client.get_deployment(deployment.id).state is DeploymentState.FAILED)
        with pytest.raises(DeploymentFailed, match=r"stage 2 on device .*SIGKILL"):
            trainer.step(*tokens(8, 1))


def test_a_later_message_beyond_its_bound_reaches_no_worker(client: PlannerClient) -> None:
    with deployed(client, Tied(), tokens(4, 0), PipelineSchedule.GPIPE) as [deployment]:
        ticket = TicketHolder(client._connection, deployment.id).ticket()
        worker = worker_at(deployment.stages[0].daemon_address, deployment.id)
        peak_before_bytes = peak_bytes(worker)
        opened = stage_daemon_pb2.OpenTraining(deployment_id=deployment.id, optimizer={"name": "sgd", "groups": [{}]})
        begin = stage_daemon_pb2.TrainRequest(open=opened).SerializeToString()
        # A step with a field that nobody knows: of 192 MiB, where one with all microbatches takes far less.
        too_large = stage_daemon_pb2.TrainRequest(step={"number": 1}).SerializeToString() + bytes.fromhex("fa06")
        too_large += bytes.fromhex("80808060") + bytes(192 << 20)
        options = [("grpc.max_send_message_length", 1 << 30)]
        with grpc.insecure_channel(deployment.stages[0].daemon_address, options) as channel:
            train = channel.stream_stream("/partition_planner.v1.StageDaemonService/Train")
            for _ in range(3):
                answers = train(iter([begin, too_large]), metadata=((TICKET_KEY, ticket),), timeout=WAIT_SECONDS)
                assert stage_daemon_pb2.TrainResponse.FromString(next(answers)).HasField("opened")
                with pytest.raises(grpc.RpcError, match=r"a message of 201,32\d,\d+ bytes came, and at most"):
                    next(answers)
        assert peak_bytes(worker) - peak_before_bytes < 64 << 20
        with client.train(deployment.id, "sgd:lr=0.1") as trainer:
            trainer.step(*tokens(8, 0))


def peak_bytes(process_id: int) -> int:
    """Of memory that the process had at a time."""
    facts = dict(line.split(":", 1) for line in Path(f"/proc/{process_id}/status").read_text().splitlines())
    return int(facts["VmHWM"].split()[0]) << 10
