"""Rolling plans out, following deployments, stopping them, and opening pipelines through them."""

from __future__ import annotations

import time
import warnings
from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import closing, suppress
from datetime import datetime
from typing import TYPE_CHECKING

from planner.client.access import TicketHolder
from planner.client.arguments import checks_arguments
from planner.client.checkpoints import CheckpointCalls
from planner.client.connection import Connection
from planner.client.interruption import pause
from planner.client.messages import (
    deployment_event_from_proto,
    deployment_from_proto,
    deployment_state_to_proto,
    recovery_to_proto,
    stored_plan_from_proto,
    threads_to_proto,
)
from planner.client.records import Deployment, DeploymentEvent, DeploymentState, Failure, RecoveryPolicy, StoredPlan
from planner.client.request_ids import new_request_id
from planner.client.status import error_from_failure
from planner.errors import Conflict, DeploymentFailed, InvalidArgument, PlannerError, PlannerWarning, Unavailable
from protos.v1 import planner_pb2

if TYPE_CHECKING:
    from planner.client.pipeline import Pipeline
    from planner.client.timelines import DeploymentTimeline, TimelineReader
    from planner.client.training.checkpoints import Checkpointing
    from planner.client.training.learning_rates import Schedule
    from planner.client.training.optimizers import LossScaling, Optimizer
    from planner.client.training.trainer import Count, Trainer

# The server drains what is in flight before it answers.
STOP_SECONDS = 120.0
FAILURE_REPORT_SECONDS = 5.0
FAILURE_POLL_SECONDS = 0.2
# A daemon that died without a word is noticed when its lease ends.
RECOVERY_REPORT_SECONDS = 30.0
RECOVERY_POLL_SECONDS = 0.1

OnEvent = Callable[[DeploymentEvent], None]


@checks_arguments
class DeploymentCalls(CheckpointCalls):
    _connection: Connection

    def deploy(
        self,
        plan_id: str,
        *,
        wait: bool = True,
        on_event: OnEvent | None = None,
        request_id: str | None = None,
        recovery: RecoveryPolicy = RecoveryPolicy.MANUAL,
        num_threads: int | None = None,
        compile: bool = False,
    ) -> Deployment:
        """Rolls a plan out; with `wait`, returns once it is ready. Raises DeploymentFailed naming the stage.

        `num_threads` is how many an operator may use on a CPU in each worker; without it each has its share of its
        host. With `compile` stages are compiled as they are loaded, and outputs equal the module's within a tolerance
        instead of bitwise. See docs/operations.md for both.
        """
        request = planner_pb2.DeployRequest(
            request_id=request_id or new_request_id(),
            plan_id=plan_id,
            recovery=recovery_to_proto(recovery),
            num_threads=threads_to_proto(num_threads),
            compile=compile,
        )
        deployment = deployment_from_proto(self._connection.call(self._connection.stub.Deploy, request))
        return self._wait_until_ready(deployment.id, on_event) if wait else deployment

    def get_deployment(self, deployment_id: str) -> Deployment:
        """As it stands now, with its failure where it has failed. Raises NotFound."""
        request = planner_pb2.GetDeploymentRequest(deployment_id=deployment_id)
        return deployment_from_proto(self._connection.call(self._connection.stub.GetDeployment, request))

    def list_deployments(
        self,
        *,
        plan_id: str = "",
        graph_id: str = "",
        state: DeploymentState | None = None,
        active_only: bool = False,
        owner: str = "",
        created_since: datetime | None = None,
    ) -> Iterator[Deployment]:
        """Newest first, page by page. Empty filters let everything through; `owner` is the holder of a token."""
        request = planner_pb2.ListDeploymentsRequest(plan_id=plan_id, graph_id=graph_id, active_only=active_only)
        if state is not None:
            request.state = deployment_state_to_proto(state)
        stub = self._connection.stub
        for page in self._connection.pages(stub.ListDeployments, request, owner=owner, created_since=created_since):
            yield from map(deployment_from_proto, page.deployments)

    def watch(self, deployment_id: str, after_sequence: int = 0) -> Iterator[DeploymentEvent]:
        """The events so far, then each new one, until the deployment has ended. A lost connection is taken up again."""
        while True:
            num_read = 0
            request = planner_pb2.WatchDeploymentRequest(deployment_id=deployment_id, after_sequence=after_sequence)
            try:
                for message in self._connection.stream(self._connection.stub.WatchDeployment, request):
                    event = deployment_event_from_proto(message)
                    after_sequence = event.sequence
                    num_read += 1
                    yield event
                return
            except Unavailable:
                # Nobody has answered for as long as a restart may take.
                if not num_read:
                    raise

    def stop(self, deployment_id: str) -> Deployment:
        """Finishes what is in flight, then lets go. Idempotent."""
        request = planner_pb2.StopDeploymentRequest(deployment_id=deployment_id)
        stub = self._connection.stub
        return deployment_from_proto(self._connection.call(stub.StopDeployment, request, timeout_seconds=STOP_SECONDS))

    def delete_deployment(self, deployment_id: str) -> str:
        """Forgets one that has ended, with its events; its id. Raises Conflict while it has not ended."""
        request = planner_pb2.DeleteDeploymentRequest(deployment_id=deployment_id)
        return str(self._connection.call(self._connection.stub.DeleteDeployment, request).id)

    def pipeline(self, deployment_id: str, *, outputs: Sequence[str] = (), deadline_seconds: float = 300.0) -> Pipeline:
        """A way through a deployment that is ready, or is again after it has recovered; a wait longer than the deadline
        is an error.

        Through one that recovers, what was not answered is sent again to the next generation. With `outputs`, such as
        "logits", "logits[:, -1]" or "logits[:, -1].argmax(-1)", nothing else leaves the last stage's device, and each
        result is a dict of those. Raises InvalidArgument naming what the graph gives where one is not there.
        """
        from planner.client.outputs import choose_outputs
        from planner.client.pipeline import Pipeline
        from planner.graph.evaluation import answers_as_in_training, called
        from planner.plan.options import PlanOptions
        from planner.plan.written_states import written_states

        deployment = self.get_deployment(deployment_id)
        if deployment.state is DeploymentState.RECOVERING or _is_later_rollout(deployment):
            deployment = self._next_generation(deployment.id, deployment.generation - 1) or deployment
        if deployment.state is not DeploymentState.READY:
            raise _not_ready(deployment)
        graph = self.read_graph(deployment.graph_id)
        in_training = answers_as_in_training(graph)
        is_written = any(state.mutated for state in graph.states)
        options = self._plan_of(deployment).options if in_training is not None or is_written else PlanOptions()
        # Deployments that train evaluate by themselves.
        if in_training is not None and options.training is None:
            warnings.warn(
                f"{deployment.id}: the module was exported in training mode, and {called(in_training)} answers so,"
                " dropping out at random or by each batch's statistics; export module.eval()",
                PlannerWarning,
                stacklevel=2,
            )
        return Pipeline(
            graph=graph,
            written=written_states(graph, options),
            chosen=choose_outputs(graph, outputs),
            deployment_id=deployment.id,
            num_copies=len(deployment.stages),
            input_address=deployment.input_address,
            output_address=deployment.output_address,
            generation=deployment.generation,
            find_next=None if deployment.recovery is RecoveryPolicy.MANUAL else self._next_generation,
            deadline_seconds=deadline_seconds,
            credentials=self._connection.credentials,
            ticket=TicketHolder(self._connection, deployment.id).ticket,
            why_failed=lambda: self._why_failed(deployment.id),
        )

    def _plan_of(self, deployment: Deployment) -> StoredPlan:
        request = planner_pb2.GetPlanRequest(plan_id=deployment.plan_id)
        return stored_plan_from_proto(self._connection.call(self._connection.stub.GetPlan, request))

    def train(
        self,
        deployment_id: str,
        optimizer: Optimizer | str,
        *,
        loss: str | None = None,
        reduction: str | Count = "mean",
        clip_norm: float | None = None,
        schedule: Schedule | None = None,
        loss_scaling: LossScaling | None = None,
        skip_nonfinite: bool = False,
        seed: str | int = "",
        deadline_seconds: float = 300.0,
        outputs: Sequence[str] | None = None,
        checkpoints: Checkpointing | None = None,
        resume: str | None = None,
    ) -> Trainer:
        """Trains a deployment that is ready and was planned with training; see docs/training.md.

        `loss` names the output that is trained on; without it the only floating scalar is. `seed` decides what dropout
        draws; without it the deployment does. `resume` is a checkpoint's id, or a run of which the latest is taken.

        `outputs` says what of the module's outputs comes back with each step beside the losses: names, or parts as in
        `pipeline`; None for all of them. Of a language model that returns logits, these take longer than the step.

        With `checkpoints` it writes them by itself, and outlives the loss of a worker or a daemon where the deployment
        recovers: it goes on from the last checkpoint, and does the steps since then again.

        Raises InvalidArgument for a parameter group of the optimizer that no trained parameter fits.
        """
        from planner.client.training.groups import check_groups
        from planner.client.training.optimizers import Optimizer, optimizer_from_text
        from planner.client.training.trainer import Trainer

        settings = optimizer_from_text(optimizer) if isinstance(optimizer, str) else optimizer
        if not isinstance(settings, Optimizer):
            raise InvalidArgument(
                f"optimizer is a {type(settings).__name__}: each daemon makes its own, needs text as"
                " 'adamw:lr=3e-4,weight_decay=0.1', or a planner.client.training.Optimizer"
            )

        deployment = self.get_deployment(deployment_id)
        if deployment.state is not DeploymentState.READY:
            raise _not_ready(deployment)
        training = self._plan_of(deployment).options.training
        if training is None:
            raise Conflict(
                f"deployment {deployment.id} is of a plan for inference; plan with training, and deploy that",
                deployment_id=deployment.id,
            )
        graph = self.read_graph(deployment.graph_id)
        check_groups(settings.groups, graph)
        trainer = Trainer(
            graph=graph,
            deployment=deployment,
            microbatches=training.microbatches,
            optimizer=settings,
            loss=loss,
            reduction=reduction,
            clip_norm=clip_norm,
            schedule=schedule,
            loss_scaling=loss_scaling,
            skip_nonfinite=skip_nonfinite,
            seed=str(seed),
            outputs=outputs,
            deadline_seconds=deadline_seconds,
            credentials=self._connection.credentials,
            ticket=TicketHolder(self._connection, deployment.id).ticket,
            pipeline=lambda: self.pipeline(deployment.id, deadline_seconds=deadline_seconds),
            why_failed=lambda: self._why_failed(deployment.id),
            find_next=None if deployment.recovery is RecoveryPolicy.MANUAL else self._next_generation,
            store=self,
            checkpoints=checkpoints,
        )
        try:
            if resume is not None:
                trainer.load(resume)
            elif checkpoints is not None:
                # What a loss before the next one goes back to.
                trainer.save().result()
        except BaseException:
            with suppress(PlannerError):
                trainer.close()
            raise
        return trainer

    def deployment_timeline(self, deployment_id: str) -> DeploymentTimeline:
        """What its daemons measured lately, by microbatch and stage, beside what the plan predicts.

        Raises Conflict unless it is ready: daemons keep timelines for as long as a deployment runs.
        """
        with closing(self.timelines(deployment_id)) as readings:
            return next(readings)

    def timelines(self, deployment_id: str, *, every_seconds: float = 2.0) -> Generator[DeploymentTimeline]:
        """One reading after the other until it is stopped, through recoveries too. Raises what it failed of."""
        reader: TimelineReader | None = None
        generation = 0
        try:
            while True:
                deployment = self.get_deployment(deployment_id)
                if deployment.state is DeploymentState.READY:
                    if reader is None or deployment.generation != generation:
                        if reader is not None:
                            reader.close()
                        reader, generation = self._timeline_reader(deployment), deployment.generation
                    timeline = self._read_timeline(reader, deployment)
                    if timeline is not None:
                        yield timeline
                elif reader is not None and deployment.state is DeploymentState.STOPPED:
                    return
                elif reader is None or deployment.state.has_ended:
                    raise _not_ready(deployment)
                pause(every_seconds)
        finally:
            if reader is not None:
                reader.close()

    def _read_timeline(self, reader: TimelineReader, deployment: Deployment) -> DeploymentTimeline | None:
        """None where it broke and goes on in a later generation, or is being stopped."""
        try:
            return reader.read()
        except PlannerError as error:
            state = self.get_deployment(deployment.id).state
            if state in (DeploymentState.DRAINING, DeploymentState.STOPPED):
                return None
            if (
                deployment.recovery is not RecoveryPolicy.MANUAL
                and self._next_generation(deployment.id, deployment.generation) is not None
            ):
                return None
            raise self._why_failed(deployment.id) or error from None

    def _timeline_reader(self, deployment: Deployment) -> TimelineReader:
        from planner.client.timelines import TimelineReader

        request = planner_pb2.GetPlanRequest(plan_id=deployment.plan_id)
        return TimelineReader(
            deployment,
            stored_plan_from_proto(self._connection.call(self._connection.stub.GetPlan, request)),
            ticket=TicketHolder(self._connection, deployment.id).ticket,
            timeout_seconds=self._connection.timeout_seconds,
            credentials=self._connection.credentials,
        )

    def _wait_until_ready(self, deployment_id: str, on_event: OnEvent | None) -> Deployment:
        for event in self.watch(deployment_id):
            if on_event is not None:
                on_event(event)
            if event.state is DeploymentState.READY:
                return self.get_deployment(deployment_id)
        raise _not_ready(self.get_deployment(deployment_id))

    def _next_generation(self, deployment_id: str, generation: int) -> Deployment | None:
        """The deployment once it is ready in a later generation; None where it ends, or nothing was wrong with it."""
        ends_at = time.monotonic() + RECOVERY_REPORT_SECONDS
        while True:
            try:
                deployment = self.get_deployment(deployment_id)
            except Unavailable:
                is_waiting = True
            else:
                if deployment.state.has_ended:
                    return None
                is_waiting = deployment.state is DeploymentState.READY
                if is_waiting and deployment.generation > generation:
                    return deployment
            if is_waiting and time.monotonic() > ends_at:
                return None
            pause(RECOVERY_POLL_SECONDS)

    def _why_failed(self, deployment_id: str) -> DeploymentFailed | None:
        """A client sees a broken stream before the planner has heard why: it is given time to."""
        ends_at = time.monotonic() + FAILURE_REPORT_SECONDS
        while True:
            try:
                deployment = self.get_deployment(deployment_id)
            except PlannerError:
                return None
            if deployment.state is DeploymentState.FAILED:
                return _failed(deployment)
            if deployment.state.has_ended or time.monotonic() > ends_at:
                return None
            pause(FAILURE_POLL_SECONDS)


def _is_later_rollout(deployment: Deployment) -> bool:
    """Whether a generation after the first is being rolled out."""
    return deployment.generation > 1 and deployment.state in (DeploymentState.LOADING, DeploymentState.CONNECTING)


def _not_ready(deployment: Deployment) -> PlannerError:
    if deployment.state is DeploymentState.FAILED:
        return _failed(deployment)
    return Conflict(
        f"deployment {deployment.id} is {deployment.state.value}, needs to be ready; deploy the plan again or wait",
        deployment_id=deployment.id,
        state=deployment.state.value,
    )


def _failed(deployment: Deployment) -> DeploymentFailed:
    failure = deployment.failure or Failure(reason="UNKNOWN", message=f"deployment {deployment.id} failed")
    error = error_from_failure(failure, otherwise=DeploymentFailed)
    failed = DeploymentFailed(f"deployment {deployment.id} failed{failure.place}: {error.message}")
    failed.metadata = {**error.metadata, "deployment_id": deployment.id}
    return failed
