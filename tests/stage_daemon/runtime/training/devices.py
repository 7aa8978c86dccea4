"""Devices of a training deployment as threads of this process, told what the planner tells daemons."""

from __future__ import annotations

import hashlib
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from functools import partial
from typing import Any

import torch
from torch import nn

from planner.client.export import export
from planner.client.export.exported_model import ExportedModel
from planner.dispatch.stage_modules import connect_requests
from planner.graph.ir import Graph
from planner.partition.objective import Activations, PipelineSchedule, Training
from planner.plan.options import Routing
from planner.plan.plan import Plan
from planner.plan.split import stage_graph
from planner.schedule.reschedule import with_training
from planner.store.deployment_records import Deployment, DeploymentState, StagePlacement
from planner.wire.graph import graph_to_bytes
from stage_daemon.errors import NotFound
from stage_daemon.loader.load import StageProgram
from stage_daemon.loader.parse import parse_graph
from stage_daemon.loader.rebuild import rebuild_module
from stage_daemon.runtime.ingress import InputFormat
from stage_daemon.runtime.metrics import StageMetrics
from stage_daemon.runtime.stage import Stage
from stage_daemon.runtime.training.mail import Mail
from stage_daemon.runtime.training.passes_ahead import passes_of
from stage_daemon.runtime.training.records import OptimizerSettings, ParameterGroup, Step, StepOutcome
from stage_daemon.runtime.training.step import StepInterpreter, TrainingSurroundings, timed_actions
from stage_daemon.runtime.training.weights import Weights
from stage_daemon.transport.channel import ReceiveChannel, SendChannel
from stage_daemon.transport.local import local_channel
from stage_daemon.transport.streams import Streams
from stage_daemon.worker import training_wire, wire
from stage_daemon.worker.loading import stage_from_program
from stage_daemon.worker.training import TrainingOf
from tests.builders.plans import plan_of
from tests.waiting import WAIT_SECONDS

SEED = "seed"


class MemoryBlobs:
    """`read_bytes` counts what was read."""

    def __init__(self, contents: dict[bytes, bytes] | None = None) -> None:
        self.contents = {} if contents is None else contents
        self.read_bytes = 0

    def read_range(self, sha256: bytes, offset_bytes: int, length_bytes: int) -> Iterator[bytes]:
        if sha256 not in self.contents:
            raise NotFound(f"blob {sha256.hex()} is not here")
        assert length_bytes > 0
        self.read_bytes += length_bytes
        yield self.contents[sha256][offset_bytes : offset_bytes + length_bytes]

    def upload(self, sha256: bytes, pieces: Sequence[memoryview]) -> None:
        content = b"".join(pieces)
        assert hashlib.sha256(content).digest() == sha256
        self.contents[sha256] = content


SGD = OptimizerSettings(name="sgd", groups=(ParameterGroup(pattern="*", options={"momentum": 0.9}),))


@dataclass
class Cluster:
    """`interpreters` and `weights` by device id; `first` takes inputs and `last` gives outputs."""

    graph: Graph
    plan: Plan
    interpreters: dict[str, StepInterpreter]
    stages: dict[int, Stage]
    weights: dict[str, Weights]
    told: dict[str, TrainingOf]
    first: str
    last: str
    num_steps: int = 0
    outcomes: dict[str, StepOutcome] = field(default_factory=dict)

    def step(
        self,
        microbatches: Sequence[Sequence[Any]],
        weights: Sequence[float] | None = None,
        *,
        rate: float = 0.1,
        rates: Sequence[float] | None = None,
        clip_norm: float | None = None,
        loss_scale: float = 1.0,
    ) -> StepOutcome:
        """What the last device has, which every other agrees with."""
        self.num_steps += 1
        step = Step(
            number=self.num_steps,
            weights=tuple(weights or [1.0 / len(microbatches)] * len(microbatches)),
            learning_rates=tuple(rates or (rate,)),
            microbatches={place: partial(tuple, items) for place, items in enumerate(microbatches)},
            clip_norm=clip_norm,
            loss_scale=loss_scale,
        )
        errors: list[BaseException] = []

        def run(device_id: str) -> None:
            try:
                self.outcomes[device_id] = self.interpreters[device_id].run(step)
            except BaseException as error:
                errors.append(error)

        threads = [threading.Thread(target=run, args=(one,), daemon=True) for one in self.interpreters]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(WAIT_SECONDS if not errors else 1.0)
        if errors:
            raise errors[0]
        assert not any(thread.is_alive() for thread in threads)
        results = {(one.applied, one.gradient_norm, one.failure) for one in self.outcomes.values()}
        assert len({(applied, repr(norm), failure) for applied, norm, failure in results}) == 1, results
        outputs = {place: items for one in self.outcomes.values() for place, items in one.outputs.items()}
        return replace(self.outcomes[self.last], outputs=dict(sorted(outputs.items())))

    def states(self) -> dict[str, torch.Tensor]:
        """Trained states by name; tied ones are asserted to be the same wherever they are."""
        states: dict[str, torch.Tensor] = {}
        for weights in self.weights.values():
            for weight in weights.all:
                for name in weight.names:
                    value = weight.parameter.detach()
                    assert torch.equal(states.setdefault(name, value), value)
        return states


def deployment_of(plan: Plan) -> Deployment:
    return Deployment(
        id="dep-test",
        plan_id="plan-test",
        graph_id="graph-test",
        state=DeploymentState.LOADING,
        generation=1,
        stages=tuple(
            StagePlacement(stage=stage.index, device_id=device_id, daemon_address="", incarnation_id="")
            for stage in plan.stages
            for device_id in stage.device_ids
        ),
        created_at=datetime.now(UTC),
    )


def train_on_threads(
    module: nn.Module,
    args: tuple[Any, ...],
    *,
    stage_of_node: Any,
    devices: Sequence[int],
    replicas: Sequence[Sequence[int]] = (),
    schedule: PipelineSchedule = PipelineSchedule.ONE_F_ONE_B,
    microbatches: int = 4,
    routing: Routing = Routing.DIRECT,
    dynamic_shapes: Any = None,
    kwargs: Mapping[str, Any] | None = None,
    optimizer: OptimizerSettings = SGD,
    loss: str = "output",
    activations: Activations = Activations.KEPT,
    exported: ExportedModel | None = None,
    streams: Callable[[], Streams | None] = lambda: None,
) -> Cluster:
    """`stage_of_node` takes the graph; the output called `loss` is trained on, or the only one.

    `exported` saves exporting the module again. `streams` gives each device its own, where it computes by itself.
    """
    exported = exported or export(module, args, kwargs, dynamic_shapes=dynamic_shapes)
    graph = exported.graph
    # The best order is searched on what a plan for another schedule says.
    planned = PipelineSchedule.ONE_F_ONE_B if schedule is PipelineSchedule.BEST else schedule
    training = Training(schedule=planned, microbatches=microbatches, activations=activations)
    plan = plan_of(graph, stage_of_node(graph), routing, devices, replicas=replicas, training=training)
    plan = with_training(plan, replace(training, schedule=schedule))
    requests = connect_requests(deployment_of(plan), plan, graph, edge_seconds=WAIT_SECONDS)
    outputs = {output.name: output.content.value_id for output in graph.outputs}  # type: ignore[union-attr]
    loss_id = outputs.get(loss, next(iter(outputs.values())))
    senders: dict[str, dict[int, SendChannel]] = {device_id: {} for device_id in requests}
    receivers: dict[str, dict[int, ReceiveChannel]] = {device_id: {} for device_id in requests}
    lanes = {}
    for device_id, request in requests.items():
        symbols = wire.symbols_from_proto(request.symbols)
        lanes[device_id] = training_wire.training_from_proto(request.training, "dep-test", 1, symbols)
        for edge in training_wire.edges_to_connect(lanes[device_id]):
            if edge.source_device_id == device_id:
                ends = local_channel(edge, edge.in_flight)
                senders[device_id][edge.id], receivers[edge.target_device_id][edge.id] = ends
    interpreters, weights, told = {}, {}, {}
    all_stages: dict[int, Stage] = {}
    tensors = {**exported.tensors, **_state_tensors(module)}
    for device_id, request in requests.items():
        stages = {
            stage.index: stage_from_program(stage.index, _program(graph, plan, stage.index, tensors), device_id)
            for stage in plan.stages
            if device_id in stage.device_ids
        }
        all_stages.update(stages)
        lane = lanes[device_id]
        weights[device_id] = Weights(stages, lane.trained, lane.ties, lane.copies)
        around = TrainingSurroundings(
            lane=lane,
            stages=stages,
            metrics={index: StageMetrics() for index in stages},
            passes=passes_of(timed_actions(lane), streams()),
            mail=Mail(senders[device_id], receivers[device_id]),
            input_ids=tuple(value.value for value in request.inputs),
            output_ids=tuple(value.value for value in request.outputs),
        )
        inputs = InputFormat(
            values=wire.declared_from_proto(request.inputs),
            symbols=wire.symbols_from_proto(request.symbols),
        )
        for name, run in around.passes.threads().items():
            threading.Thread(target=run, name=name, daemon=True).start()
        told[device_id] = TrainingOf(
            deployment_id="dep-test",
            around=around,
            weights=weights[device_id],
            inputs=inputs,
            blobs=MemoryBlobs(),
        )
        interpreters[device_id] = StepInterpreter(
            around,
            weights[device_id],
            optimizer,
            loss_id=loss_id,
            seed=SEED,
        )
    return Cluster(
        graph=graph,
        plan=plan,
        interpreters=interpreters,
        stages=all_stages,
        weights=weights,
        told=told,
        first=plan.stages[0].device_ids[0],
        last=plan.stages[-1].device_ids[0],
    )


def _state_tensors(module: nn.Module) -> Mapping[str, torch.Tensor]:
    return {
        **dict(module.named_buffers(remove_duplicate=False)),
        **dict(module.named_parameters(remove_duplicate=False)),
    }


def _program(graph: Graph, plan: Plan, stage: int, tensors: Mapping[str, torch.Tensor]) -> StageProgram:
    part = parse_graph(graph_to_bytes(stage_graph(graph, plan, stage)))
    module = rebuild_module(part, torch.device("cpu"))
    copies: dict[int, torch.Tensor] = {}
    for name in module.state_names:
        copies.setdefault(tensors[name].data_ptr() or id(tensors[name]), tensors[name].detach().clone())
    module.set_states({name: copies[tensors[name].data_ptr() or id(tensors[name])] for name in module.state_names})
    return StageProgram(
        module=module,
        input_ids=tuple(one.value for one in part.inputs if one.WhichOneof("content") == "value"),
        output_ids=tuple(one.value for one in part.outputs if one.WhichOneof("content") == "value"),
        graph=part,
    )
