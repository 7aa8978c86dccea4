"""A deployment that trains: batches in, losses out, weights back."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from types import TracebackType
from typing import Any

from access.files import WatchedCredentials
from planner.client.connection import open_channel
from planner.client.microbatches import InputEncoder, Item, decode, fill, fill_tensor, kind_of_batch
from planner.client.pipeline import DATA_MESSAGE_BYTES, Batch, Pipeline
from planner.client.pytree import flatten_inputs, unflatten_outputs
from planner.client.records import Deployment
from planner.client.tensors import RawTensor, TensorKind, from_raw, loaded_torch, to_raw
from planner.client.training.checkpoints import (
    CheckpointWriter,
    Progress,
    check_fits,
    manifest_of,
    read_checkpoint,
)
from planner.client.training.cutting import cut, loss_output, num_rows
from planner.client.training.learning_rates import Schedule, constant
from planner.client.training.optimizers import LossScaling, Optimizer, optimizer_to_proto
from planner.client.training.state_names import StateNames
from planner.client.training.streams import TrainingStreams
from planner.client.training.transfer import Transfer
from planner.errors import Conflict, DeploymentFailed, InvalidArgument, MicrobatchFailed, PlannerError, StepNotApplied
from planner.graph.ir import Graph
from protos.v1 import stage_daemon_pb2

# Of a batch's arguments: what a microbatch of it counts, as the number of its tokens that are not padding.
Count = Callable[..., float]


@dataclass(frozen=True, slots=True, kw_only=True)
class StepResult:
    """`loss` is the whole batch's, `losses` are the microbatches', and `outputs` what the module returned for each.

    `gradient_norm` is over all stages, before clipping. `bubble_share` is the share of all devices' time that none of
    them spent in passes. Not `applied`: the loss or the norm was not finite, and no weight has changed.
    """

    number: int
    loss: float
    losses: tuple[float, ...]
    outputs: tuple[Any, ...]
    gradient_norm: float
    applied: bool
    learning_rate: float
    seconds: float
    bubble_share: float


class Trainer:
    """Made by PlannerClient.train. One thread at a time. Leaving it lets others train; the weights stay.

    `reduction` says how the module's loss sums up over a batch: "mean" over its rows, "sum", or a function that takes a
    microbatch's arguments and returns what its loss is a mean over, such as its number of tokens.
    """

    def __init__(
        self,
        *,
        graph: Graph,
        deployment: Deployment,
        microbatches: int,
        optimizer: Optimizer,
        loss: str | None,
        reduction: str | Count,
        clip_norm: float | None,
        schedule: Schedule | None,
        loss_scaling: LossScaling | None,
        skip_nonfinite: bool,
        seed: str,
        deadline_seconds: float,
        pipeline: Callable[[], Pipeline],
        why_failed: Callable[[], DeploymentFailed | None],
        credentials: WatchedCredentials | None = None,
        ticket: Callable[[], str] = str,
    ) -> None:
        if not callable(reduction) and reduction not in ("mean", "sum"):
            raise InvalidArgument(f"reduction {reduction!r} is not known, needs mean, sum or a function")
        if clip_norm is not None and not clip_norm > 0:
            raise InvalidArgument(f"clip_norm is {clip_norm}, needs more than 0")
        self.graph = graph
        self.deployment_id = deployment.id
        self.microbatches = microbatches
        self._optimizer = optimizer
        self._loss_position, loss_value = loss_output(graph, loss)
        self._reduction = reduction
        self._clip_norm = clip_norm
        self._schedule = schedule or constant()
        self._scaling = loss_scaling
        self._scale = loss_scaling.initial if loss_scaling else 1.0
        self._num_grown = 0
        self._skip_nonfinite = skip_nonfinite or loss_scaling is not None
        self._encoder = InputEncoder(graph)
        self._make_pipeline = pipeline
        self._pipeline: Pipeline | None = None
        self._why_failed = why_failed
        self._num_steps = 0
        self._rate_set: float | None = None
        self._names = StateNames(graph)
        self._graph_id = deployment.graph_id
        addresses = {placement.device_id: placement.daemon_address for placement in deployment.stages}
        self._input_device = deployment.stages[0].device_id
        self._output_device = deployment.stages[-1].device_id
        self._channels = {
            device_id: open_channel(address, message_bytes=DATA_MESSAGE_BYTES, credentials=credentials)
            for device_id, address in addresses.items()
        }
        self._streams = TrainingStreams(
            self._channels, f"a daemon of {deployment.id} does not answer", deadline_seconds, ticket()
        )
        self._loss_value = loss_value
        try:
            # The deployment's id would be another one after a checkpoint.
            self._open(seed or deployment.id)
        except BaseException:
            self.close()
            raise

    @property
    def num_steps(self) -> int:
        """Asked for so far, by those too from whose checkpoint this one goes on."""
        return self._num_steps

    @property
    def learning_rate(self) -> float:
        """Of the next step, for parameters that are in no group."""
        return self._optimizer.learning_rates(self._schedule(self._num_steps))[-1]

    @learning_rate.setter
    def learning_rate(self, rate: float) -> None:
        """From now on, whatever the schedule says; groups with a rate of their own keep it."""
        self._rate_set = rate
        self._optimizer = replace(self._optimizer, learning_rate=rate)
        self._schedule = constant()

    def step(self, *args: Any, **kwargs: Any) -> StepResult:
        """One batch: its inputs are cut into the plan's microbatches along their first dimension."""
        leaves = flatten_inputs(self.graph, args, kwargs)
        return self._step(cut(self.graph, leaves, self.microbatches))

    def step_microbatches(self, batches: Iterable[Any]) -> StepResult:
        """One step over microbatches that the caller has cut, of any number and sizes: as Pipeline.run takes them."""
        return self._step([self._flatten(batch) for batch in batches])

    def evaluate(self, *args: Any, **kwargs: Any) -> Any:
        """What the module returns for one batch of at most a microbatch's size, without dropout and the like."""
        if self._pipeline is None:
            self._pipeline = self._make_pipeline()
        return self._pipeline(*args, **kwargs)

    def state_dict(self) -> dict[str, Any]:
        """Parameters and persistent buffers as they are now, under the module's own names."""
        kind = TensorKind.TORCH if loaded_torch() is not None else TensorKind.NUMPY
        held = {
            self._names.first(name): raw
            for device_id in self._streams.device_ids
            for name, _, raw in self._read(device_id, with_optimizer=False)
        }
        first = {name: self._names.first(name) for name in self._names.saved}
        return {name: from_raw(held[first[name]], kind) for name in first if first[name] in held}

    def load_state_dict(self, states: Mapping[str, Any]) -> None:
        """Puts these in the places of the states of those names; others stay. The optimizer's own state stays too."""
        values = self.graph.values_by_id()
        value_ids = {state.name: state.value_id for state in self.graph.states}
        request = stage_daemon_pb2.TrainRequest()
        request.write_states.SetInParent()
        for name, tensor in states.items():
            if name not in self._names:
                raise InvalidArgument(f"no state of the graph is called {name!r}")
            declared = values[value_ids[name]]
            assert declared.dtype is not None
            raw = to_raw(tensor, declared.dtype)
            if raw.dims != declared.dims:
                raise InvalidArgument(
                    f"state {name!r} has dims {list(raw.dims)}, needs {list(map(str, declared.dims))}"
                )
            for tied in self._names.tied(name):
                if tied == name or tied not in states:
                    fill_tensor(request.write_states.states.add(name=tied).tensor, raw)
        self._ask_all(request)

    def save(self, directory: Path | str, *, keep: int | None = None) -> Path:
        """Writes a checkpoint into a folder of its own in `directory`, and returns that. With `keep`, so many stay.

        It is there whole or not at all. See docs/training.md for what it has; it can be taken up on any plan.
        """
        if keep is not None and keep < 1:
            raise InvalidArgument(f"keep is {keep}, needs at least 1")
        progress = Progress(
            num_steps=self._num_steps,
            seed=self._seed,
            loss_scale=self._scale,
            num_grown=self._num_grown,
            learning_rate=self._rate_set,
        )
        with CheckpointWriter(directory, self.graph) as writer:
            for device_id in self._streams.device_ids:
                for name, optimizer_tensor, raw in self._read(device_id, with_optimizer=True):
                    writer.add(name, optimizer_tensor, raw)
            return writer.finish(manifest_of(self.graph, self._graph_id, self._optimizer.name, progress), keep)

    def load(self, path: Path | str) -> None:
        """Goes on from a checkpoint, or from the latest in a folder of several, whatever plan it was written on.

        Raises NotFound, Corrupt or InvalidArgument, before anything changes, for what is no whole checkpoint of this
        module and optimizer. Seed, learning rate set by hand and scale of the loss become the checkpoint's.
        """
        checkpoint = read_checkpoint(path)
        check_fits(checkpoint.manifest, self.graph, self._optimizer.name)
        transfer = Transfer(checkpoint, self._names)
        here = self._ask_all(transfer.check())
        progress = checkpoint.manifest.progress
        # Also forgets what the optimizer has kept so far.
        self._open(progress.seed)
        for device_id, answers in here.items():
            for request in transfer.writes(answers[:-1]):
                self._ask({device_id: request})
        self._num_steps = progress.num_steps
        self._num_grown = progress.num_grown
        if self._scaling is not None:
            self._scale = progress.loss_scale
        if progress.learning_rate is not None:
            self.learning_rate = progress.learning_rate

    def close(self) -> None:
        """Idempotent."""
        self._streams.close()
        if self._pipeline is not None:
            self._pipeline.close()
        for channel in self._channels.values():
            channel.close()

    def __enter__(self) -> Trainer:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()

    def _open(self, seed: str) -> None:
        self._seed = seed
        opened = stage_daemon_pb2.OpenTraining(
            deployment_id=self.deployment_id,
            optimizer=optimizer_to_proto(self._optimizer),
            loss_value=self._loss_value,
            seed=seed,
        )
        self._ask_all(stage_daemon_pb2.TrainRequest(open=opened))

    def _read(self, device_id: str, *, with_optimizer: bool) -> Iterator[tuple[str, str, RawTensor]]:
        """(state, the optimizer's tensor or empty, it) of all that the device has."""
        asked = stage_daemon_pb2.ReadStates(with_optimizer=with_optimizer)
        for response in self._ask({device_id: stage_daemon_pb2.TrainRequest(read_states=asked)})[device_id][:-1]:
            state = response.state
            [raw] = decode([stage_daemon_pb2.Datum(tensor=state.tensor)], TensorKind.RAW)
            assert isinstance(raw, RawTensor)
            yield state.name, state.optimizer_tensor, raw

    def _flatten(self, batch: Any) -> list[object]:
        if isinstance(batch, Batch):
            return flatten_inputs(self.graph, batch.args, dict(batch.kwargs))
        if isinstance(batch, dict):
            return flatten_inputs(self.graph, (), batch)
        return flatten_inputs(self.graph, batch if isinstance(batch, tuple) else (batch,), {})

    def _step(self, microbatches: Sequence[Sequence[object]]) -> StepResult:
        if not microbatches:
            raise InvalidArgument("a step of no microbatch, needs at least 1")
        encoded = [self._encoder.encode(leaves) for leaves in microbatches]
        weights = self._weights(microbatches)
        rates = self._optimizer.learning_rates(self._schedule(self._num_steps))
        started = time.monotonic()
        answers = self._ask(self._requests(encoded, weights, rates))
        seconds = time.monotonic() - started
        self._num_steps += 1
        done = {device_id: responses[-1].step for device_id, responses in answers.items()}
        result = self._result(done, weights, rates[-1], seconds, kind_of_batch(microbatches[0]))
        self._adapt_scale(result.applied)
        if not result.applied and not self._skip_nonfinite:
            raise StepNotApplied(
                f"step {result.number}: the loss is {result.loss}, the gradients' norm {result.gradient_norm}; no"
                " weight has changed. Look at the batch, or let such steps be skipped by skip_nonfinite",
                step=result.number,
            )
        return result

    def _weights(self, microbatches: Sequence[Sequence[object]]) -> list[float]:
        """What each microbatch's loss counts in the batch's."""
        if self._reduction == "sum":
            return [1.0] * len(microbatches)
        if callable(self._reduction):
            counts = [float(self._reduction(*leaves)) for leaves in microbatches]
        else:
            counts = [float(num_rows(self.graph, leaves)) for leaves in microbatches]
        total = math.fsum(counts)
        if not total > 0 or min(counts) < 0:
            raise InvalidArgument(f"the microbatches count {counts}, needs a sum above 0 and none below")
        return [count / total for count in counts]

    def _requests(
        self, encoded: Sequence[Sequence[Item]], weights: Sequence[float], rates: Sequence[float]
    ) -> dict[str, stage_daemon_pb2.TrainRequest]:
        requests = {}
        for device_id in self._streams.device_ids:
            request = requests[device_id] = stage_daemon_pb2.TrainRequest()
            step = request.step
            step.number = self._num_steps + 1
            step.weights.extend(weights)
            step.learning_rates.extend(rates)
            step.loss_scale = self._scale
            if self._clip_norm is not None:
                step.clip_norm = self._clip_norm
            if device_id == self._input_device:
                for index, items in enumerate(encoded):
                    fill(step.microbatches.add(sequence=index + 1).values, items)
        return requests

    def _result(
        self,
        done: Mapping[str, stage_daemon_pb2.StepDone],
        weights: Sequence[float],
        rate: float,
        seconds: float,
        kind: TensorKind,
    ) -> StepResult:
        last = done[self._output_device]
        outputs = [decode(output.values, kind) for output in last.outputs]
        losses = [_number(output[self._loss_position]) for output in outputs]
        spent = sum(one.seconds for one in done.values())
        return StepResult(
            number=self._num_steps,
            loss=sum(weight * loss for weight, loss in zip(weights, losses, strict=True)),
            losses=tuple(losses),
            outputs=tuple(unflatten_outputs(self.graph, output) for output in outputs),
            gradient_norm=last.gradient_norm,
            applied=last.applied,
            learning_rate=rate,
            seconds=seconds,
            bubble_share=1.0 - sum(one.busy_seconds for one in done.values()) / spent if spent else 0.0,
        )

    def _adapt_scale(self, applied: bool) -> None:
        if self._scaling is None:
            return
        self._num_grown = self._num_grown + 1 if applied else 0
        if not applied:
            self._scale *= self._scaling.backoff
        elif self._num_grown == self._scaling.growth_steps:
            self._scale, self._num_grown = self._scale * self._scaling.growth, 0

    def _ask_all(self, request: stage_daemon_pb2.TrainRequest) -> dict[str, list[stage_daemon_pb2.TrainResponse]]:
        return self._ask(dict.fromkeys(self._streams.device_ids, request))

    def _ask(
        self, requests: Mapping[str, stage_daemon_pb2.TrainRequest]
    ) -> dict[str, list[stage_daemon_pb2.TrainResponse]]:
        try:
            return self._streams.ask(requests)
        except (InvalidArgument, Conflict, MicrobatchFailed):
            raise
        except PlannerError as error:
            raise self._why_failed() or error from None


def _number(leaf: Any) -> float:
    return float(leaf)
