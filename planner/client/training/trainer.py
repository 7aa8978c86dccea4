"""A deployment that trains: batches in, losses out, weights back."""

from __future__ import annotations

import itertools
import math
import time
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, field, replace
from numbers import Real
from types import TracebackType
from typing import Any

from access.files import WatchedCredentials
from access.host import host_identity
from planner.client.batches import flatten_batch
from planner.client.connection import open_channel
from planner.client.lifetime import Lifetime, NotPickled
from planner.client.microbatches import InputEncoder, Item, carried, decode, fill_tensor, kind_of_batch
from planner.client.outputs import by_text, choose_outputs
from planner.client.pipeline import DATA_MESSAGE_BYTES, Pipeline
from planner.client.pytree import flatten_inputs, unflatten_outputs
from planner.client.records import Deployment
from planner.client.tensors import RawTensor, TensorKind, from_raw, loaded_torch, named_to_raw
from planner.client.training.checkpoints import (
    Checkpointing,
    CheckpointStore,
    assembled,
    check_fits,
    check_keep,
    fetch_request,
    forget_older,
    snapshot_requests,
)
from planner.client.training.counted import GraphLoss
from planner.client.training.cutting import cut, loss_output, num_rows
from planner.client.training.learning_rates import Schedule, constant
from planner.client.training.optimizers import LossScaling, Optimizer, optimizer_to_proto
from planner.client.training.streams import Request, StepRequest, TrainingStreams
from planner.errors import (
    Conflict,
    Corrupt,
    DeploymentFailed,
    InvalidArgument,
    MicrobatchFailed,
    NotFound,
    PlannerError,
    PlannerWarning,
    StepNotApplied,
)
from planner.graph.checkpoint import Checkpoint, CheckpointRecord, TrainingProgress, checked_run
from planner.graph.evaluation import called, draws_in_evaluation, trains_as_in_evaluation
from planner.graph.ir import Graph
from planner.graph.state_names import StateNames
from protos.v1 import stage_daemon_pb2

# Of a batch's arguments: what a microbatch of it counts, as the number of its tokens that are not padding.
Count = Callable[..., float]
# Of a step: more takes longer than a small step does.
LARGE_OUTPUT_BYTES = 1 << 24
# In a row, while one request is done. A batch that kills its worker would do so for ever.
MAX_LOSSES = 3
# A request for each daemon, made anew for each generation: its devices may be others.
_Requests = Callable[[], Mapping[str, Request]]


@dataclass(frozen=True, slots=True, kw_only=True)
class StepResult:
    """`loss` is the whole batch's, `losses` are the microbatches', and `outputs` what the module returned for each, or
    a dict of what was chosen, by its text.

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


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchResult:
    """`loss` is the batch's, `outputs` are the leaves that the module returned for each microbatch, None those that
    were not chosen."""

    loss: float
    outputs: tuple[tuple[Any, ...], ...]
    loss_position: int


@dataclass(slots=True, kw_only=True)
class _Pending:
    """What was asked of the next step so far; `loss` is the sum, as each counts. `done` is what was answered last."""

    losses: list[float] = field(default_factory=list)
    loss: float = 0.0
    rate_factor: float | None = None
    gradient_norm: float | None = None
    done: Mapping[str, stage_daemon_pb2.StepDone] = field(default_factory=dict)
    seconds: float = 0.0
    busy_seconds: float = 0.0
    device_seconds: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class _AskedStep:
    number: int
    microbatches: Sequence[Sequence[Item]]
    weights: Sequence[float]
    learning_rates: Sequence[float]
    loss_scale: float
    gradient_factor: float = 1.0
    first_microbatch: int = 0
    is_partial: bool = False
    is_held: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class _Saving:
    """A checkpoint on its way, of what stood after the first `num_logged` of the log's entries."""

    written: Future[CheckpointRecord]
    generation: int
    num_logged: int


class Trainer(NotPickled):
    """Made by PlannerClient.train. One thread at a time. Leaving it lets others train; the weights stay.

    `reduction` says how the module's loss sums up over a batch: "mean" over its rows, or over targets that are not
    ignored or a mask where the graph shows that; "sum", which is meant too where a loss of torch's is one; or a
    function that takes a microbatch's arguments and returns what its loss is a mean over, such as its number of tokens.
    `outputs`: what comes back with each step beside the losses, as in PlannerClient.pipeline; None: all that the module
    returns.
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
        store: CheckpointStore,
        outputs: Sequence[str] | None = None,
        checkpoints: Checkpointing | None = None,
        find_next: Callable[[str, int], Deployment | None] | None = None,
        credentials: WatchedCredentials | None = None,
        ticket: Callable[[], str] = str,
    ) -> None:
        if not callable(reduction) and reduction not in ("mean", "sum"):
            raise InvalidArgument(f"reduction {reduction!r} is not known, needs mean, sum or a function")
        if schedule is not None and not callable(schedule):
            raise InvalidArgument(f"schedule is {schedule!r:.80}, needs a function of the step, as cosine(1000) gives")
        if clip_norm is not None and not (isinstance(clip_norm, Real) and clip_norm > 0):
            raise InvalidArgument(f"clip_norm is {clip_norm!r}, needs a number of more than 0")
        self.graph = graph
        self.deployment_id = deployment.id
        self.microbatches = microbatches
        self._optimizer = optimizer
        self._loss_position, loss_value = loss_output(graph, loss)
        self.chosen = None if outputs is None else choose_outputs(graph, outputs)
        self._has_warned = False
        self._class_weights: RawTensor | None = None
        of_graph = GraphLoss(graph, loss_value)
        self._reduction = "sum" if reduction == "mean" and of_graph.is_sum() else reduction
        # What the loss is a mean over, where the graph says it.
        self.counted = of_graph.counted() if reduction == "mean" else None
        if reduction == "mean" and self.counted is None and of_graph.is_over_some_elements():
            warnings.warn(
                "the loss, or a part of it, is a mean over targets, or what a mask selects, in a way that is not "
                "counted here: microbatches count their rows. Where padding makes them differ, give reduction= a "
                "function that counts (--reduction)",
                PlannerWarning,
                stacklevel=3,
            )
        if (node := trains_as_in_evaluation(graph)) is not None:
            warnings.warn(
                f"the module was exported in eval mode, and {called(node)} is trained so,"
                " without dropout and by running statistics; export module.train(). Models that libraries load with"
                " their weights are in eval mode",
                PlannerWarning,
                stacklevel=3,
            )
        self._clip_norm = clip_norm
        self._schedule = schedule or constant()
        self.has_schedule = schedule is not None
        self._scaling = loss_scaling
        self._scale = loss_scaling.initial if loss_scaling else 1.0
        self._num_grown = 0
        self._skip_nonfinite = skip_nonfinite or loss_scaling is not None
        self._encoder = InputEncoder(graph)
        self._make_pipeline = pipeline
        self._pipeline: Pipeline | None = None
        self._why_failed = why_failed
        self._num_steps = 0
        self._pending = _Pending()
        self._rate_set: float | None = None
        self._names = StateNames(graph)
        self._graph_id = deployment.graph_id
        self._credentials = credentials
        self._ticket = ticket
        self._deadline_seconds = deadline_seconds
        self._store = store
        self._checkpoints = checkpoints
        self._find_next = find_next
        self._writer = ThreadPoolExecutor(max_workers=1, thread_name_prefix="checkpoint")
        self._saving: _Saving | None = None
        # The id of the checkpoint that a loss goes back to, and what has changed states since.
        self._last_checkpoint = ""
        self._log: list[_Requests] = []
        self._lifetime = Lifetime(f"this trainer of {deployment.id}")
        self._connect(deployment)
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
        self._schedule, self.has_schedule = constant(), False

    def step(self, *args: Any, **kwargs: Any) -> StepResult:
        """One batch: its inputs are cut into the plan's microbatches along their first dimension."""
        leaves = flatten_inputs(self.graph, args, kwargs)
        return self._step(cut(self.graph, leaves, self.microbatches))

    def step_microbatches(self, batches: Iterable[Any]) -> StepResult:
        """One step over microbatches that the caller has cut, of any number and sizes: as Pipeline.run takes them."""
        return self._step([flatten_batch(self.graph, batch) for batch in batches])

    def accumulate(self, *args: Any, share: float = 1.0, **kwargs: Any) -> BatchResult:
        """The passes of one batch, whose gradients wait for `apply`; `share` is what its loss counts in the step's. One
        that counts 0 has no loss but 0.

        `step`, `load` and `discard` forget what waits.
        """
        if not share >= 0:
            raise InvalidArgument(f"share is {share}, needs at least 0")
        if self._pending.gradient_norm is not None:
            raise Conflict(
                "the norm of what was accumulated has been asked for: apply or discard it before the next batch"
            )
        parts = [one.text for one in self.chosen or () if not one.is_whole]
        if parts:
            raise InvalidArgument(
                f"output {parts[0]!r} is a part, and gradients are accumulated with whole outputs only"
            )
        microbatches = cut(self.graph, flatten_inputs(self.graph, args, kwargs), self.microbatches)
        weights = [share * one for one in self._weights(microbatches)] if share else [0.0] * len(microbatches)
        before = self._pending.loss
        outputs = self._run(microbatches, weights, is_partial=True)
        return BatchResult(
            loss=(self._pending.loss - before) / (share or 1.0),
            outputs=tuple(map(self._leaves, outputs)),
            loss_position=self._loss_position,
        )

    def gradient_norm(self) -> float:
        """Of what was accumulated, over all stages, which then can be applied or discarded only: no batch is added."""
        if not self._pending.losses:
            raise Conflict("nothing was accumulated since the last step; call accumulate first")
        if self._pending.gradient_norm is None:
            self._run([], [], is_held=True)
            self._pending.gradient_norm = self._last_done.gradient_norm
        return self._pending.gradient_norm

    def apply(self, *, learning_rate: float | None = None, gradient_factor: float = 1.0) -> StepResult:
        """Ends the step whose batches were accumulated. `learning_rate` is this step's, whatever the schedule says;
        groups with a rate of their own keep its ratio to the optimizer's. Gradients are first multiplied by
        `gradient_factor`."""
        if not self._pending.losses:
            raise Conflict("nothing was accumulated since the last step; call accumulate first")
        if not math.isfinite(gradient_factor):
            raise InvalidArgument(f"gradient_factor is {gradient_factor}, needs a finite one")
        if learning_rate is not None:
            whole = self._optimizer.learning_rate
            if not whole:
                raise InvalidArgument("the optimizer's learning rate is 0, and no other has a ratio to it; give it one")
            self._pending.rate_factor = learning_rate / whole
        self._run([], [], gradient_factor=gradient_factor)
        return self._finish_step([])

    def discard(self) -> None:
        """Forgets what was accumulated and not applied."""
        self._pending = _Pending()

    def evaluate(self, *args: Any, **kwargs: Any) -> Any:
        """What the module returns for one batch of at most a microbatch's size, without dropout and the like.

        Warns once of a module that draws random numbers by itself `if self.training`: it does so here too.
        """
        [outputs] = self._evaluated([flatten_inputs(self.graph, args, kwargs)])
        return unflatten_outputs(self.graph, outputs)

    def evaluate_batch(self, *args: Any, **kwargs: Any) -> BatchResult:
        """As evaluate, of a batch of any size, which is cut into microbatches as a step's is."""
        microbatches = cut(self.graph, flatten_inputs(self.graph, args, kwargs), self.microbatches)
        counts, total = self._counts(microbatches)
        outputs = self._evaluated(microbatches)
        losses = (_number(leaves[self._loss_position]) for leaves in outputs)
        return BatchResult(
            # The mean over no targets is no number.
            loss=sum(count * loss for count, loss in zip(counts, losses, strict=True) if count) / (total or math.nan),
            outputs=tuple(map(tuple, outputs)),
            loss_position=self._loss_position,
        )

    def _evaluated(self, microbatches: Sequence[Sequence[object]]) -> list[list[Any]]:
        self._lifetime.check()
        if self._pipeline is None:
            self._pipeline = self._make_pipeline()
            drawing = draws_in_evaluation(self.graph)
            if drawing is not None:
                warnings.warn(
                    f"evaluation draws random numbers: {called(drawing)} does so by itself, and "
                    "was captured in training; to evaluate without, give state_dict() to the module in eval()",
                    PlannerWarning,
                    stacklevel=3,
                )
        if self._find_next is None:
            return _answers(self._pipeline, microbatches)
        # A pipeline goes on by itself where the deployment recovers, on weights as they were uploaded.
        before = self._standing_generation()
        while True:
            outputs = _answers(self._pipeline, microbatches)
            after = self._standing_generation()
            if after == before:
                return outputs
            before = after

    def state_dict(self) -> dict[str, Any]:
        """Parameters and persistent buffers as they are now, under the module's own names.

        What no stage reads is as it came with the graph.
        """
        kind = TensorKind.TORCH if loaded_torch() is not None else TensorKind.NUMPY
        tensors: dict[str, RawTensor] = {}
        for name, raw in self._read():
            tensors.setdefault(self._names.first(name), raw)
        first = {name: self._names.first(name) for name in self._names.saved}
        tensors |= self._store.read_weights(self._graph_id, self._names, set(first.values()) - tensors.keys())
        return {name: from_raw(tensors[first[name]], kind) for name in first}

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
            raw = named_to_raw(name, tensor, declared.dtype, what="state")
            if raw.dims != declared.dims:
                raise InvalidArgument(f"state {name!r} has dims {list(raw.dims)}, needs {list(declared.dims)}")
            for tied in self._names.tied(name):
                if tied == name or tied not in states:
                    fill_tensor(request.write_states.states.add(name=tied).tensor, raw)
        self._do(lambda: self._for_all(request), changes=True)

    def save(self, run: str | None = None, *, keep: int | None = None) -> Future[CheckpointRecord]:
        """A checkpoint of the weights as they are; the future has it once it is written, while steps go on.

        It is there whole or not at all, and can be taken up on any plan: see docs/training.md. `run` and `keep` are
        those of `checkpoints` unless given; a run is called as the deployment where there is neither. Waits for the
        checkpoint before, and raises why it was not written.
        """
        self._lifetime.check()
        check_keep(keep)
        if self._pending.losses:
            raise Conflict("gradients wait to be applied, which no checkpoint has; save after apply, or discard them")
        checkpointing = self._checkpoints
        run = checked_run(run or (checkpointing.run if checkpointing else self.deployment_id))
        keep = keep or (checkpointing.keep if checkpointing else None)
        self._finish_saving()
        progress = TrainingProgress(
            num_steps=self._num_steps,
            seed=self._seed,
            loss_scale=self._scale,
            num_grown=self._num_grown,
            learning_rate=self._rate_set,
        )
        self._do(lambda: snapshot_requests(self._states_by_device, self._names), changes=False)
        future = self._writer.submit(self._write, self._streams, self._generation, run, keep, progress)
        self._saving = _Saving(written=future, generation=self._generation, num_logged=len(self._log))
        return future

    def load(self, name: str) -> None:
        """Goes on from a checkpoint, by its id, or from the latest of a run, whatever plan it was written on.

        Raises NotFound, Corrupt or InvalidArgument, before anything changes, for what is no whole checkpoint of this
        module and optimizer. Seed, learning rate set by hand and scale of the loss become the checkpoint's.
        """
        self._finish_saving()
        checkpoint = self._store.find_checkpoint(name)
        self._restore(checkpoint)
        self.discard()
        self._last_checkpoint, self._log = checkpoint.record.id, []
        progress = checkpoint.record.progress
        self._num_steps = progress.num_steps
        self._num_grown = progress.num_grown
        if self._scaling is not None:
            self._scale = progress.loss_scale
        if progress.learning_rate is not None:
            self.learning_rate = progress.learning_rate

    def close(self) -> None:
        """Waits for the checkpoint that is being written, and raises why it was not. Idempotent. What is asked of it
        later raises Conflict."""
        if not self._lifetime.end():
            return
        try:
            self._finish_saving()
        finally:
            self._disconnect()
            self._writer.shutdown(wait=False)
            if self._pipeline is not None:
                self._pipeline.close()

    def __enter__(self) -> Trainer:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if error is None:
            self.close()
            return
        # What ended the training is what its caller should hear of.
        with suppress(PlannerError):
            self.close()

    def _connect(self, deployment: Deployment) -> None:
        self._generation = deployment.generation
        addresses = {placement.device_id: placement.daemon_address for placement in deployment.stages}
        self._input_devices = deployment.copies_of(0)
        self._output_devices = deployment.copies_of(deployment.num_stages - 1)
        self._channels = {
            device_id: open_channel(address, message_bytes=DATA_MESSAGE_BYTES, credentials=self._credentials)
            for device_id, address in addresses.items()
        }
        self._streams = TrainingStreams(
            self._channels, f"a daemon of {deployment.id} does not answer", self._deadline_seconds, self._ticket
        )

    def _disconnect(self) -> None:
        self._streams.close()
        for channel in self._channels.values():
            channel.close()

    def _open(self, seed: str) -> None:
        self._seed = seed
        opened = stage_daemon_pb2.OpenTraining(
            deployment_id=self.deployment_id,
            optimizer=optimizer_to_proto(self._optimizer),
            loss_value=self._loss_value,
            seed=seed,
            host=host_identity(),
        )
        if self.chosen is not None:
            # The loss comes first.
            opened.outputs.add().index = self._loss_position
            for one in self.chosen:
                one.fill(opened.outputs.add())
        answers = self._ask_all(stage_daemon_pb2.TrainRequest(open=opened))
        # By device: the names of the states that it holds.
        self._states_by_device = {device_id: tuple(replies[-1].opened.states) for device_id, replies in answers.items()}

    def _restore(self, checkpoint: Checkpoint) -> None:
        """Nothing has changed where it raises because of the checkpoint."""
        names = (name for states in self._states_by_device.values() for name in states)
        check_fits(checkpoint, self.graph, self._optimizer.name, names)
        self._ask_all(fetch_request(checkpoint, self._names))
        # Also forgets what the optimizer has kept so far.
        self._open(checkpoint.record.progress.seed)
        self._ask_all(stage_daemon_pb2.TrainRequest(take_fetched=stage_daemon_pb2.TakeFetched()))

    def _write(
        self, streams: TrainingStreams, generation: int, run: str, keep: int | None, progress: TrainingProgress
    ) -> CheckpointRecord:
        """On the writer's thread."""
        parts = streams.save_snapshot(self.deployment_id, generation)
        record = self._store.create_checkpoint(
            assembled(parts, run=run, graph_id=self._graph_id, optimizer=self._optimizer.name, progress=progress)
        )
        if keep is not None:
            forget_older(self._store, record, keep)
        return record

    def _finish_saving(self) -> None:
        """Raises why the checkpoint on its way was not written, unless its generation is lost and another goes on."""
        saving, self._saving = self._saving, None
        if saving is None:
            return
        try:
            record = saving.written.result()
        except PlannerError:
            if saving.generation == self._generation:
                raise
            return
        if self._goes_on:
            self._last_checkpoint = record.id
            del self._log[: saving.num_logged]

    @property
    def _goes_on(self) -> bool:
        """Whether it outlives the loss of a generation."""
        return self._find_next is not None and self._checkpoints is not None

    def _standing_generation(self) -> int:
        """Which one all daemons have answered in just now."""
        request = stage_daemon_pb2.TrainRequest()
        request.write_states.SetInParent()
        self._do(lambda: self._for_all(request), changes=False)
        return self._generation

    def _do(self, make: _Requests, *, changes: bool) -> dict[str, list[stage_daemon_pb2.TrainResponse]]:
        """What daemons answer. Where they are lost, those of the next generation, once it stands where these stood."""
        self._lifetime.check()
        if self._saving is not None and self._saving.written.done() and self._saving.written.exception() is None:
            self._finish_saving()
        for num_losses in itertools.count():
            try:
                answers = self._streams.ask(make())
            except (InvalidArgument, MicrobatchFailed):
                # Buffers may have changed all the same.
                self._remember(make, changes=changes)
                raise
            except PlannerError as error:
                if not self._goes_on or not self._last_checkpoint or num_losses == MAX_LOSSES:
                    raise self._explained(error) from None
                self._go_on_after(error)
            else:
                self._remember(make, changes=changes)
                return answers
        raise AssertionError("unreachable")

    def _remember(self, make: _Requests, *, changes: bool) -> None:
        if changes and self._goes_on:
            self._log.append(make)

    def _go_on_after(self, error: PlannerError) -> None:
        """Goes back to the last checkpoint, and does again what has changed states since. Raises why that cannot be."""
        assert self._find_next is not None
        # The checkpoint on its way may be the last one by now, and have taken the place of the one before.
        with suppress(PlannerError):
            self._finish_saving()
        for _ in range(MAX_LOSSES):
            later = self._find_next(self.deployment_id, self._generation)
            if later is None:
                break
            try:
                self._disconnect()
                self._connect(later)
                self._open(self._seed)
                self._restore(self._store.find_checkpoint(self._last_checkpoint))
                for make in self._log:
                    with suppress(InvalidArgument, MicrobatchFailed):
                        self._streams.ask(make())
                return
            except PlannerError as again:
                error = again
        raise self._explained(error) from None

    def _explained(self, error: PlannerError) -> PlannerError:
        """A broken stream does not say why the deployment failed; what was refused says all.

        Conflict is what the daemons that are left say once they have let go.
        """
        if isinstance(error, (InvalidArgument, MicrobatchFailed, NotFound, Corrupt)):
            return error
        return self._why_failed() or error

    def _read(self) -> Iterator[tuple[str, RawTensor]]:
        """(state, it) of all devices."""
        request = stage_daemon_pb2.TrainRequest(read_states=stage_daemon_pb2.ReadStates())
        for responses in self._do(lambda: dict.fromkeys(self._first_holders(), request), changes=False).values():
            for response in responses[:-1]:
                [raw] = decode([stage_daemon_pb2.Datum(tensor=response.state.tensor)], TensorKind.RAW)
                assert isinstance(raw, RawTensor)
                yield response.state.name, raw

    def _first_holders(self) -> list[str]:
        """Devices that hold a state that none before them holds: not the later copies of stages."""
        holders, seen = [], set[str]()
        for device_id, states in self._states_by_device.items():
            own = set(map(self._names.first, states))
            if own - seen:
                holders.append(device_id)
                seen |= own
        return holders

    def _step(self, microbatches: Sequence[Sequence[object]]) -> StepResult:
        if not microbatches:
            raise InvalidArgument("a step of no microbatch, needs at least 1")
        self.discard()
        outputs = self._run(microbatches, self._weights(microbatches))
        return self._finish_step(outputs)

    def _run(
        self,
        microbatches: Sequence[Sequence[object]],
        weights: Sequence[float],
        *,
        gradient_factor: float = 1.0,
        is_partial: bool = False,
        is_held: bool = False,
    ) -> list[list[Any]]:
        """What the module returns for each microbatch. What of the step was asked for before counts too."""
        encoded = [self._encoder.encode(leaves) for leaves in microbatches]
        step = _AskedStep(
            number=self._num_steps + 1,
            # Whoever gave them may write over them once the step is done.
            microbatches=[list(map(_copied, items)) for items in encoded] if self._goes_on else encoded,
            weights=weights,
            learning_rates=self._optimizer.learning_rates(self._factor()),
            loss_scale=self._scale,
            gradient_factor=gradient_factor,
            first_microbatch=len(self._pending.losses),
            is_partial=is_partial,
            is_held=is_held,
        )
        started = time.monotonic()
        try:
            answers = self._do(lambda: self._requests(step), changes=True)
        except BaseException:
            self.discard()
            raise
        pending = self._pending
        pending.seconds += time.monotonic() - started
        pending.done = {device_id: responses[-1].step for device_id, responses in answers.items()}
        pending.busy_seconds += sum(one.busy_seconds for one in pending.done.values())
        pending.device_seconds += sum(one.seconds for one in pending.done.values())
        if not microbatches:
            return []
        kind, given = kind_of_batch(microbatches[0]), list(self._outputs_of(pending.done))
        self._warn_of_large(given)
        outputs = [decode(output.values, kind) for output in given]
        loss_position = self._loss_position if self.chosen is None else 0
        losses = [_number(output[loss_position]) for output in outputs]
        pending.losses += losses
        pending.loss += sum(weight * loss for weight, loss in zip(weights, losses, strict=True) if weight)
        return outputs

    def _outputs_of(self, done: Mapping[str, stage_daemon_pb2.StepDone]) -> Iterator[stage_daemon_pb2.MicrobatchResult]:
        """Of the microbatches in order, whichever copies of the last stage gave them."""
        of_copies = (zip(done[one].sequences, done[one].outputs, strict=True) for one in self._output_devices)
        by_sequence = dict(itertools.chain.from_iterable(of_copies))
        return (by_sequence[sequence] for sequence in sorted(by_sequence))

    def _as_asked(self, values: Sequence[Any]) -> Any:
        if self.chosen is None:
            return unflatten_outputs(self.graph, list(values))
        return by_text(self.chosen, values[1:])

    def _leaves(self, values: Sequence[Any]) -> tuple[Any, ...]:
        if self.chosen is None:
            return tuple(values)
        leaves: list[Any] = [None] * len(carried(self.graph.outputs))
        for index, value in zip((self._loss_position, *(one.index for one in self.chosen)), values, strict=True):
            leaves[index] = value
        return tuple(leaves)

    def _warn_of_large(self, given: Sequence[stage_daemon_pb2.MicrobatchResult]) -> None:
        """Once, where nothing was chosen."""
        if self.chosen is not None or self._has_warned:
            return
        outputs = carried(self.graph.outputs)
        sizes = [sum(len(one.values[position].tensor.data) for one in given) for position in range(len(outputs))]
        if sum(sizes) < LARGE_OUTPUT_BYTES:
            return
        self._has_warned = True
        largest, _ = outputs[sizes.index(max(sizes))]
        warnings.warn(
            f"each step brings {sum(sizes) / 2**20:,.0f} MiB of outputs back, most of it {largest!r}: give client.train"
            " outputs=[], or those that you read, and the others stay on the devices",
            PlannerWarning,
            stacklevel=5,
        )

    def _factor(self) -> float:
        given = self._pending.rate_factor
        return self._schedule(self._num_steps) if given is None else given

    @property
    def _last_done(self) -> stage_daemon_pb2.StepDone:
        return self._pending.done[self._output_devices[0]]

    def _finish_step(self, outputs: Sequence[Sequence[Any]]) -> StepResult:
        rate = self._optimizer.learning_rates(self._factor())[-1]
        last = self._last_done
        done, self._pending = self._pending, _Pending()
        self._num_steps += 1
        result = StepResult(
            number=self._num_steps,
            loss=done.loss,
            losses=tuple(done.losses),
            outputs=tuple(map(self._as_asked, outputs)),
            gradient_norm=last.gradient_norm,
            applied=last.applied,
            learning_rate=rate,
            seconds=done.seconds,
            bubble_share=1.0 - done.busy_seconds / done.device_seconds if done.device_seconds else 0.0,
        )
        self._adapt_scale(result.applied)
        if self._checkpoints is not None and self._checkpoints.is_due(self._num_steps):
            self.save()
        if not result.applied and not self._skip_nonfinite:
            raise StepNotApplied(
                f"step {result.number}: the loss is {result.loss}, the gradients' norm {result.gradient_norm}; no"
                " weight has changed. Look at the batch, or let such steps be skipped by skip_nonfinite",
                step=result.number,
            )
        return result

    def _weights(self, microbatches: Sequence[Sequence[object]]) -> list[float]:
        """What each microbatch's loss counts in the batch's."""
        counts, total = self._counts(microbatches)
        if not total > 0:
            raise InvalidArgument(f"the microbatches count {counts}, needs a sum above 0 and none below")
        return [count / total for count in counts]

    def _counts(self, microbatches: Sequence[Sequence[object]]) -> tuple[list[float], float]:
        """(of each microbatch, what the sum of their losses is divided by)"""
        if self._reduction == "sum":
            return [1.0] * len(microbatches), 1.0
        if callable(self._reduction):
            counts = [float(self._reduction(*leaves)) for leaves in microbatches]
        elif self.counted is not None:
            weights = self._read_class_weights(self.counted.weights)
            counts = [self.counted.count(leaves, weights) for leaves in microbatches]
        else:
            counts = [float(num_rows(self.graph, leaves)) for leaves in microbatches]
        if min(counts) < 0:
            raise InvalidArgument(f"the microbatches count {counts}, needs a sum above 0 and none below")
        return counts, math.fsum(counts)

    def _read_class_weights(self, name: str) -> RawTensor | None:
        """Read once, as they came with the graph."""
        if name and self._class_weights is None:
            self._class_weights = self._store.read_weights(self._graph_id, self._names, [name])[name]
        return self._class_weights

    def _requests(self, wanted_step: _AskedStep) -> dict[str, Request]:
        microbatches: dict[str, list[tuple[int, Sequence[Item]]]] = {one: [] for one in self._streams.device_ids}
        for index, items in enumerate(wanted_step.microbatches):
            # Copies take turns, and the first begins again in each round of a step that has more than were planned.
            copy = index % self.microbatches % len(self._input_devices)
            microbatches[self._input_devices[copy]].append((index + 1, items))
        step = self._step_message(wanted_step)
        return {device_id: StepRequest(step=step, microbatches=own) for device_id, own in microbatches.items()}

    def _step_message(self, wanted_step: _AskedStep) -> stage_daemon_pb2.TrainingStep:
        """Without its microbatches."""
        return stage_daemon_pb2.TrainingStep(
            number=wanted_step.number,
            weights=wanted_step.weights,
            learning_rates=wanted_step.learning_rates,
            loss_scale=wanted_step.loss_scale,
            clip_norm=self._clip_norm,
            gradient_factor=wanted_step.gradient_factor,
            first_microbatch=wanted_step.first_microbatch,
            is_partial=wanted_step.is_partial,
            is_held=wanted_step.is_held,
        )

    def _adapt_scale(self, applied: bool) -> None:
        if self._scaling is None:
            return
        self._num_grown = self._num_grown + 1 if applied else 0
        if not applied:
            self._scale *= self._scaling.backoff
        elif self._num_grown == self._scaling.growth_steps:
            self._scale, self._num_grown = self._scale * self._scaling.growth, 0

    def _for_all(self, request: stage_daemon_pb2.TrainRequest) -> dict[str, Request]:
        return dict.fromkeys(self._streams.device_ids, request)

    def _ask_all(self, request: stage_daemon_pb2.TrainRequest) -> dict[str, list[stage_daemon_pb2.TrainResponse]]:
        self._lifetime.check()
        try:
            return self._streams.ask(self._for_all(request))
        except Conflict:
            raise
        except PlannerError as error:
            raise self._explained(error) from None


def _answers(pipeline: Pipeline, microbatches: Sequence[Sequence[object]]) -> list[list[Any]]:
    outputs = list[list[Any]]()
    for answer in pipeline.run_leaves(microbatches):
        if isinstance(answer, MicrobatchFailed):
            raise answer
        outputs.append(answer)
    return outputs


def _copied(item: Item) -> Item:
    return replace(item, data=bytes(item.data)) if isinstance(item, RawTensor) else item


def _number(leaf: Any) -> float:
    return float(leaf)
