"""Does a device's actions of a training step.

What goes wrong with a microbatch keeps its place in every order, as in inference: its messages carry the failure on,
backward as well, until all devices agree that the step is not to be applied.
"""

from __future__ import annotations

import functools
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from functools import partial

import torch

from stage_daemon.errors import InvalidRequest, StageFailed
from stage_daemon.randomness import drawing
from stage_daemon.runtime.action_loop import ActionLoop
from stage_daemon.runtime.actions import Action, Kind, Lane
from stage_daemon.runtime.choices import Choice, parts_of
from stage_daemon.runtime.environment import Environment, dead_after, reading
from stage_daemon.runtime.failures import raise_if_ruinous, stage_failure
from stage_daemon.runtime.metrics import StageMetrics
from stage_daemon.runtime.stage import Stage
from stage_daemon.runtime.timeline import COMPUTE, ELSEWHERE, TimedAction, timed
from stage_daemon.runtime.training.mail import Mail
from stage_daemon.runtime.training.optimizers import StageOptimizer
from stage_daemon.runtime.training.passes import StagePass, beginning_of, packed
from stage_daemon.runtime.training.passes_ahead import Passes
from stage_daemon.runtime.training.records import OptimizerSettings, Reduction, Step, StepOutcome, TrainingLane
from stage_daemon.runtime.training.stages import accumulating_stages
from stage_daemon.runtime.training.weights import Weight, Weights, gradient_norms
from stage_daemon.transport.edge import Edge
from stage_daemon.transport.header import BadHeader
from stage_daemon.transport.parcel import Item, MicrobatchFailure

ONCE = -1
# What ends a step, behind its passes.
_SUMMING = frozenset({Kind.REDUCE_GRADIENTS, Kind.REDUCE_TIED, Kind.AGREE})
_APPLYING = frozenset({Kind.OPTIMIZER_STEP})
# All devices' items, the first device's first, to what each of them gets.
_Combine = Callable[[Sequence[tuple[Item, ...]]], tuple[Item, ...]]


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainingSurroundings:
    """What a device trains with. `output_ids` are only where the last stage is, `input_ids` where the first is.

    `to_host` brings outputs away from the device.
    """

    lane: TrainingLane
    stages: Mapping[int, Stage]
    metrics: Mapping[int, StageMetrics]
    passes: Passes
    mail: Mail
    input_ids: tuple[int, ...] = ()
    output_ids: tuple[int, ...] = ()
    to_host: Callable[[tuple[Item, ...]], tuple[Item, ...]] = lambda items: items


class StepInterpreter:
    """One client's training: an optimizer of its own, on weights that stay.

    `before_update` is called before an optimizer writes to them, and may block. `choices`: what is given of the
    outputs; none: all of them.
    """

    def __init__(
        self,
        around: TrainingSurroundings,
        weights: Weights,
        optimizer: OptimizerSettings,
        *,
        loss_id: int,
        seed: str,
        before_update: Callable[[], None] = lambda: None,
        choices: tuple[Choice, ...] = (),
    ) -> None:
        self._around = around
        self._passes = around.passes
        self._before_update = before_update
        self._choices = choices
        self._lane = around.lane
        self._stages = accumulating_stages(around.stages, around.lane)
        self._weights = weights
        self._has_doubles = any(weight.parameter.dtype is torch.float64 for weight in weights.all)
        self._loss_id = loss_id
        self._seed = seed
        self._optimizers = {
            index: StageOptimizer(optimizer, weights.stepped_with(index)) for index in sorted(around.stages)
        }
        self._doers = {
            Kind.TAKE_INPUT: self._take_input,
            Kind.RECEIVE: self._receive,
            Kind.FORWARD: self._forward,
            Kind.SEND: self._send,
            Kind.GIVE_OUTPUT: self._give_output,
            Kind.RECEIVE_GRADIENT: self._receive_gradient,
            Kind.BACKWARD: self._backward,
            Kind.BACKWARD_INPUT: self._backward_input,
            Kind.BACKWARD_WEIGHT: self._backward_weight,
            Kind.SEND_GRADIENT: self._send_gradient,
            Kind.REDUCE_GRADIENTS: self._reduce_copies,
            Kind.REDUCE_TIED: self._reduce_tied,
            Kind.AGREE: self._agree,
            Kind.OPTIMIZER_STEP: self._optimizer_step,
        }
        self._reads = reading(
            around.stages, {index: edge.values for index, edge in self._lane.edges.items()}, around.output_ids
        )
        # Values whose gradients come back to each stage.
        self._with_gradient: dict[int, set[int]] = {index: {loss_id} for index in around.stages}
        for edge in self._lane.edges.values():
            self._with_gradient.setdefault(edge.values.source_stage, {loss_id}).update(edge.gradient_ids)
        self._positions = {action: position for position, action in enumerate(self._lane.actions)}
        # When the last step ended: to add a lap up takes as long as a small pass.
        self._computed_seconds = self._compute_seconds()
        self._loops: dict[tuple[int, frozenset[Kind]], tuple[ActionLoop, list[tuple[int, int]]]] = {}
        # Whether a step was begun that was not applied yet; and whether its gradients are summed over devices.
        self._is_begun = self._is_held = False

    def pushed(self, names: Iterable[str]) -> None:
        """States of these names were written from outside."""
        written = frozenset(names)
        for optimizer in self._optimizers.values():
            optimizer.pushed(written)

    def trained(self) -> dict[str, tuple[StageOptimizer, Weight]]:
        """By the first of its names: each weight, and what steps it."""
        return {weight.names[0]: (self._optimizers[weight.stage], weight) for weight in self._weights.all}

    def check(self, step: Step) -> None:
        """Raises InvalidRequest where `run` cannot do it after what was done before."""
        if step.first_microbatch and not self._is_begun:
            raise InvalidRequest(
                f"step {step.number} goes on from microbatch {step.first_microbatch}, and none ran before it"
            )
        if step.first_microbatch and self._is_held and (step.weights or step.is_partial or step.is_held):
            raise InvalidRequest(
                f"step {step.number}: its gradients are summed over devices; they can be applied or forgotten, and no"
                " others added"
            )

    def run(self, step: Step) -> StepOutcome:
        """Of any number of microbatches: those of the plan's step at a time. Raises what ends the worker."""
        started, busy = time.monotonic(), self._computed_seconds
        self._step = step
        self._failure: MicrobatchFailure | None = None
        self._outputs: dict[int, tuple[Item, ...]] = {}
        if step.first_microbatch == 0:
            self._weights.forget_gradients()
            self._losses: list[torch.Tensor] = []
            self._is_begun, self._is_held = True, False
        ends = self._ends(step)
        if not self._is_held:
            self._norm, self._applied = torch.zeros((), dtype=torch.float64), False
        num_all = len(step.weights)
        for num_done in range(0, max(1, num_all), self._lane.microbatches):
            size = min(self._lane.microbatches, num_all - num_done)
            is_last = num_done + size == num_all
            self._run_part(step.first_microbatch + num_done, size, ends if is_last else frozenset())
        self._passes.settle()
        self._is_held = step.is_held
        if ends >= _APPLYING:
            self._weights.forget_gradients()
            self._is_begun = False
        self._computed_seconds = self._compute_seconds()
        outcome = StepOutcome(
            outputs=self._outputs if self._failure is None else {},
            gradient_norm=float(self._norm) * abs(step.gradient_factor),
            applied=self._applied,
            failure=self._failure,
            busy_seconds=self._computed_seconds - busy,
            seconds=time.monotonic() - started,
        )
        # The next step may be long in coming.
        self._step, self._outputs = replace(step, microbatches={}), {}
        return outcome

    def _compute_seconds(self) -> float:
        return sum(timeline.total_seconds(COMPUTE) for timeline in self._passes.timelines)

    def _ends(self, step: Step) -> frozenset[Kind]:
        if step.is_partial:
            return frozenset()
        if step.is_held:
            return _SUMMING
        return _APPLYING if self._is_held else _SUMMING | _APPLYING

    def _run_part(self, first: int, size: int, ends: frozenset[Kind]) -> None:
        """With fewer microbatches it is the plan's step without those that lack: no action waits for anything new."""
        if (size, ends) not in self._loops:
            self._loops[size, ends] = self._loop(size, ends)
        loop, places = self._loops[size, ends]
        loop.run(self._step.number, [StagePass(stage=stage, microbatch=first + index) for stage, index in places])

    def _loop(self, size: int, ends: frozenset[Kind]) -> tuple[ActionLoop, list[tuple[int, int]]]:
        lane: Lane = tuple(
            action
            for action in self._lane.actions
            if (action.kind in ends if action.microbatch is None else action.microbatch < size)
        )
        timed_as = [
            ELSEWHERE if self._passes.times_elsewhere(action.kind) else self._positions[action] for action in lane
        ]
        keys = [
            (_stage_of(self._lane, action), ONCE if action.microbatch is None else action.microbatch) for action in lane
        ]
        places = list(dict.fromkeys(keys))
        at = {key: place for place, key in enumerate(places)}
        of_actions = [at[key] for key in keys]
        dead, timeline = dead_after(lane, of_actions, self._reads), self._passes.timelines[0]
        return ActionLoop(lane, self._doers, of_actions, dead, timeline, timed_as), places

    def _place(self, environment: Environment) -> int:
        """Of its microbatch among those of the request."""
        return environment.microbatch - self._step.first_microbatch

    def _position(self, kind: Kind, index: int, environment: Environment) -> int:
        """Among the plan's actions."""
        return self._positions[Action(kind, index, self._place(environment) % self._lane.microbatches)]

    def _take_input(self, stage: int, environment: Environment) -> None:
        if self._step.refusal is not None:
            self._note(environment, self._step.refusal)
            return
        try:
            inputs = self._step.microbatches.pop(self._place(environment))()
        except Exception as error:
            self._fail(self._stages[stage], environment, error)
        else:
            environment.add(self._around.input_ids, inputs)

    def _receive(self, index: int, environment: Environment) -> None:
        edge = self._lane.edges[index]
        items = self._incoming(edge.values, environment)
        if items is not None:
            value_ids = [value.value_id for value in edge.values.values]
            _pass(environment).receive(value_ids, items, edge.gradient_ids)

    def _forward(self, index: int, environment: Environment) -> None:
        if environment.is_void:
            return
        self._passes.wait_for_room()
        stage, stage_pass = self._stages[index], _pass(environment)
        items = stage_pass.read(stage.input_ids)
        try:
            with self._computing(Kind.FORWARD, index, environment), torch.enable_grad():
                beginning = beginning_of(stage, items) if index in self._lane.recomputing else None
                stage_pass.ran(
                    stage.output_ids, self._run_stage(stage, items, stage_pass.microbatch), self._with_gradient[index]
                )
                if beginning is not None:
                    stage_pass.keep_beginning(beginning)
            self._around.metrics[index].num_microbatches += 1
        except Exception as error:
            self._fail(stage, stage_pass, error)

    def _computing(self, kind: Kind, index: int, environment: Environment) -> AbstractContextManager[None]:
        position = self._position(kind, index, environment)
        return self._passes.computing(self._stages[index], self._step.number, position)

    def _run_stage(self, stage: Stage, items: Sequence[Item], microbatch: int) -> Sequence[Item]:
        if not stage.draws_random:
            return stage.run(*items)
        with drawing(self._seed, f"{self._step.number}.{microbatch}"):
            return stage.run(*items)

    def _run_again(self, stage: Stage, stage_pass: StagePass) -> None:
        """With the gradients' graph on, as the first time, so that no operator chooses another kernel."""
        assert stage_pass.beginning is not None
        assert stage.module is not None
        beginning, stage_pass.beginning = stage_pass.beginning, None
        with torch.enable_grad(), stage.module.standing_in(beginning.written_states):
            outputs = self._run_stage(stage, beginning.inputs, stage_pass.microbatch)
        stage_pass.keep_graph(stage.output_ids, outputs, self._with_gradient[stage.index])

    def _send(self, index: int, environment: Environment) -> None:
        edge = self._lane.edges[index].values
        items = () if environment.failure else environment.read(value.value_id for value in edge.values)
        self._outgoing(Kind.SEND, index, edge, environment, tuple(map(_detached, items)))

    def _give_output(self, stage: int, environment: Environment) -> None:
        if environment.failure is not None:
            return
        outputs = environment.read(self._around.output_ids)
        given = parts_of(outputs, self._choices) if self._choices else outputs
        if isinstance(given, MicrobatchFailure):
            self._note(environment, given)
            return
        loss = environment.values.get(self._loss_id)
        # The mean over no targets is no number, and counts nothing.
        if isinstance(loss, torch.Tensor) and self._step.weights[self._place(environment)]:
            self._losses.append(loss.detach())
        position = self._position(Kind.GIVE_OUTPUT, stage, environment)
        leave = partial(self._keep_outputs, self._place(environment), tuple(map(_by_itself, given)))
        self._passes.hand_on(self._step.number, position, leave)

    def _keep_outputs(self, place: int, outputs: tuple[Item, ...]) -> None:
        self._outputs[place] = self._around.to_host(outputs)

    def _receive_gradient(self, index: int, environment: Environment) -> None:
        edge = self._lane.edges[index].gradients
        assert edge is not None
        items = self._incoming(edge, environment)
        if items is not None:
            value_ids = [value.value_id for value in edge.values]
            _pass(environment).receive_gradients(value_ids, items, edge.source_stage)

    def _backward(self, index: int, environment: Environment) -> None:
        self._differentiate(index, environment, Kind.BACKWARD)

    def _backward_input(self, index: int, environment: Environment) -> None:
        self._differentiate(index, environment, Kind.BACKWARD_INPUT)

    def _backward_weight(self, index: int, environment: Environment) -> None:
        self._differentiate(index, environment, Kind.BACKWARD_WEIGHT)

    def _differentiate(self, index: int, environment: Environment, kind: Kind) -> None:
        if environment.is_void:
            return
        stage_pass = _pass(environment)
        self._passes.wait_for_room()
        try:
            with self._computing(kind, index, environment):
                if kind is Kind.BACKWARD_WEIGHT:
                    stage_pass.backward_weight()
                else:
                    self._differentiate_input(index, stage_pass, kind)
        except Exception as error:
            self._fail(self._stages[index], stage_pass, error)

    def _differentiate_input(self, index: int, stage_pass: StagePass, kind: Kind) -> None:
        if stage_pass.beginning is not None and (stage_pass.root_gradients or index in self._loss_stages()):
            self._run_again(self._stages[index], stage_pass)
        if index in self._loss_stages():
            stage_pass.start(self._loss_id, self._step.weights[self._place(stage_pass)] * self._step.loss_scale)
        if kind is Kind.BACKWARD:
            stage_pass.backward()
        else:
            stage_pass.backward_input(self._weights.of_stage(index))

    def _loss_stages(self) -> tuple[int, ...]:
        """The last stage, where all outputs leave."""
        return (max(self._stages),) if self._around.output_ids else ()

    def _send_gradient(self, index: int, environment: Environment) -> None:
        edge = self._lane.edges[index].gradients
        assert edge is not None
        stage_pass = _pass(environment)
        items = (
            () if stage_pass.failure else tuple(stage_pass.leaf_gradients.pop(value.value_id) for value in edge.values)
        )
        self._outgoing(Kind.SEND_GRADIENT, index, edge, environment, items)

    def _reduce_copies(self, index: int, environment: Environment) -> None:
        self._sum_gradients(self._lane.copies[index], self._weights.copied[index])

    def _reduce_tied(self, index: int, environment: Environment) -> None:
        self._sum_gradients(self._lane.ties[index], (self._weights.tied[index],))

    def _sum_gradients(self, reduction: Reduction, weights: Sequence[Weight]) -> None:
        """Over devices, to which they go in the weight's own precision; one that none of them has stays absent, and its
        weight is not stepped."""
        gradients = ((one.stepped.grad, one.parameter) for one in weights)
        own = tuple(packed(None if sum_ is None else sum_.to(like.dtype), like) for sum_, like in gradients)
        summed = self._reduce(reduction, own, _sums_of_present)
        if summed is None:
            return
        for weight, gradient in zip(weights, summed, strict=True):
            assert isinstance(gradient, torch.Tensor)
            # What has arrived may lie in memory that the sender wants back.
            weight.stepped.grad = gradient[0].to(weight.stepped.dtype, copy=True) if len(gradient) else None

    def _agree(self, index: int, environment: Environment) -> None:
        agreed = self._reduce(self._lane.agreement, self._own_norms(), _total_norm)
        if agreed is None:
            return
        norm, may_be_applied = agreed
        assert isinstance(norm, torch.Tensor)
        # As of gradients: the memory that it has arrived in is the sender's.
        self._norm, self._applied = norm.clone(), bool(may_be_applied)

    def _multiplier(self) -> torch.Tensor | None:
        """What gradients are multiplied by before they are applied: the step's factor, and what clips the products as
        torch.nn.utils.clip_grad_norm_ has it, in the gradients' own precision."""
        factor, clip_norm = self._step.gradient_factor, self._step.clip_norm
        if factor == 1.0 and clip_norm is None:
            return None
        dtype = torch.float64 if self._has_doubles else torch.float32
        clip = torch.ones((), dtype=dtype)
        if clip_norm is not None:
            clip = (clip_norm / (self._norm.to(dtype) * abs(factor) + 1e-6)).clamp(max=1.0)
        return clip * factor

    def _own_norms(self) -> tuple[Item, ...]:
        """(norms, positions, whether some are of float64, whether all losses are finite) of this device."""
        norms, positions = gradient_norms(self._weights.all, self._step.loss_scale)
        finite = all(bool(torch.isfinite(loss).all()) for loss in self._losses)
        return norms, positions, self._has_doubles, finite

    def _optimizer_step(self, index: int, environment: Environment) -> None:
        if self._applied:
            self._before_update()
            self._passes.wait_for_room()
            position = self._positions[Action(Kind.OPTIMIZER_STEP, index)]
            with self._passes.computing(self._stages[index], self._step.number, position):
                self._optimizers[index].step(self._step.learning_rates, self._multiplier())

    def _reduce(self, reduction: Reduction, own: tuple[Item, ...], combine: _Combine) -> tuple[Item, ...] | None:
        """What `combine` makes of all devices' items, in one order; None where one has failed: then all have."""
        self._passes.settle()
        place = StagePass(stage=ONCE, microbatch=ONCE, failure=self._failure)
        mail, number = self._around.mail, self._step.number
        if any(mail.is_sender(edge) for edge in reduction.gather):
            [up], [down] = reduction.gather, reduction.spread
            self._around.mail.send(up, number, ONCE, own, place.failure)
            return self._incoming(down, place)
        parts = [own]
        for edge in reduction.gather:
            items = self._incoming(edge, place)
            parts.append(items or ())
        result = () if place.failure else combine(parts)
        for edge in reduction.spread:
            mail.send(edge, number, ONCE, result, place.failure)
        return None if place.failure else result

    def _incoming(self, edge: Edge, environment: Environment) -> tuple[Item, ...] | None:
        """None of a microbatch that has failed."""
        parcel, num_bytes = self._around.mail.receive(edge, self._step.number, environment.microbatch)
        self._around.metrics[edge.target_stage].received_bytes += num_bytes
        if parcel.failure is not None:
            self._note(environment, parcel.failure)
        return None if environment.is_void else parcel.items

    def _outgoing(self, kind: Kind, index: int, edge: Edge, environment: Environment, items: tuple[Item, ...]) -> None:
        mail, number = self._around.mail, self._step.number
        try:
            put = mail.prepare(edge, number, environment.microbatch, items, environment.failure)
        except BadHeader as error:
            failure = MicrobatchFailure(
                reason=StageFailed.reason,
                message=f"stage {edge.source_stage} gave what {edge} does not declare: {error}",
                stage=edge.source_stage,
                device_id=edge.source_device_id,
            )
            self._note(environment, failure)
            put = mail.prepare(edge, number, environment.microbatch, (), environment.failure)
        if put is not None:
            leave = partial(_put_counted, put, self._around.metrics[edge.source_stage])
            self._passes.hand_on(number, self._position(kind, index, environment), leave)

    def _fail(self, stage: Stage, environment: Environment, error: Exception) -> None:
        raise_if_ruinous(stage, error)
        self._note(environment, stage_failure(stage, error))

    def _note(self, environment: Environment, failure: MicrobatchFailure) -> None:
        environment.fail(failure)
        self._failure = self._failure or failure


def timed_actions(lane: TrainingLane) -> tuple[TimedAction, ...]:
    """Of all steps that the lane's device does."""
    stages = [_stage_of(lane, action) for action in lane.actions]
    first = min((stage for stage in stages if stage != ONCE), default=0)
    of_all = [action.index if action.kind is Kind.OPTIMIZER_STEP else first for action in lane.actions]
    return timed(lane.actions, [one if stage == ONCE else stage for stage, one in zip(stages, of_all, strict=True)])


def _stage_of(lane: TrainingLane, action: Action) -> int:
    """Whose microbatch the action is about; ONCE where it is about none."""
    if action.kind in (Kind.SEND, Kind.RECEIVE_GRADIENT):
        return lane.edges[action.index].values.source_stage
    if action.kind in (Kind.RECEIVE, Kind.SEND_GRADIENT):
        return lane.edges[action.index].values.target_stage
    return ONCE if action.microbatch is None else action.index


def _put_counted(put: Callable[[], int], metrics: StageMetrics) -> None:
    metrics.sent_bytes += put()


def _pass(environment: Environment) -> StagePass:
    assert isinstance(environment, StagePass)
    return environment


def _detached(item: Item) -> Item:
    return item.detach() if isinstance(item, torch.Tensor) else item


def _by_itself(item: Item) -> Item:
    """Without the rest of what it is a part of, which would stay as long as it does."""
    if not isinstance(item, torch.Tensor):
        return item
    is_part = item.untyped_storage().nbytes() > item.nbytes
    return item.detach().clone() if is_part else item.detach()


def _sums_of_present(parts: Sequence[tuple[Item, ...]]) -> tuple[Item, ...]:
    """Of packed gradients: those that are absent add nothing."""
    sums: list[Item] = []
    for gradients in zip(*parts, strict=True):
        present = [gradient for gradient in gradients if isinstance(gradient, torch.Tensor) and len(gradient)]
        sums.append(functools.reduce(torch.add, present) if present else gradients[0])
    return tuple(sums)


def _total_norm(parts: Sequence[tuple[Item, ...]]) -> tuple[Item, ...]:
    """(norm over all, whether the step may be applied): to the bit as of one process's parameters in order."""
    by_position: dict[int, float] = {}
    doubles, finite = False, True
    for norms, positions, has_doubles, losses_are_finite in parts:
        assert isinstance(norms, torch.Tensor)
        assert isinstance(positions, torch.Tensor)
        by_position.update(zip(positions.tolist(), norms.tolist(), strict=True))
        doubles |= bool(has_doubles)
        finite &= bool(losses_are_finite)
    ordered = [by_position[position] for position in sorted(by_position)]
    norm = torch.linalg.vector_norm(torch.tensor(ordered, dtype=torch.float64 if doubles else torch.float32)).double()
    return norm, finite and bool(torch.isfinite(norm))
