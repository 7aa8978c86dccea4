"""The planner's front door for programs of an event loop."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

from access.files import TlsFiles
from planner.client.asynchronous.methods import AsynchronousResource, awaited, iterated, wrapped
from planner.client.asynchronous.pipeline import AsyncPipeline
from planner.client.asynchronous.plans import AsyncPlanOperation
from planner.client.asynchronous.threads import Threads
from planner.client.asynchronous.trainer import AsyncTrainer
from planner.client.client import DEFAULT_TIMEOUT_SECONDS, PlannerClient
from planner.client.failover import DEFAULT_RESTART_SECONDS, log
from planner.client.pipeline import Pipeline
from planner.client.training.trainer import Trainer


class AsyncPlannerClient(AsynchronousResource[PlannerClient]):
    """PlannerClient with awaited methods, and asynchronous iterators where that gives iterators.

    Each call runs in a thread. A task that is cancelled, by asyncio.timeout too, ends what its call waits for, as
    Ctrl-C does: a plan that is waited for is cancelled on the server. Functions given as `on_progress` and `on_event`
    are called on the event loop, in order. Tasks, and loops, may share a client.
    """

    def __init__(
        self,
        address: str | Sequence[str] | None = None,
        *,
        timeout_seconds: float = DEFAULT_TIMEOUT_SECONDS,
        tls: TlsFiles | None = None,
        token_file: Path | None = None,
        restart_seconds: float = DEFAULT_RESTART_SECONDS,
        awaits_first: bool = False,
        on_away: Callable[[str], None] = log.warning,
    ) -> None:
        client = PlannerClient(
            address,
            timeout_seconds=timeout_seconds,
            tls=tls,
            token_file=token_file,
            restart_seconds=restart_seconds,
            awaits_first=awaits_first,
            on_away=on_away,
        )
        super().__init__(client, Threads())

    @property
    def address(self) -> str:
        return self._synchronous.address

    submit = awaited(PlannerClient.submit)
    attach_weights = awaited(PlannerClient.attach_weights)
    get_graph = awaited(PlannerClient.get_graph)
    list_graphs = iterated(PlannerClient.list_graphs)
    delete_graph = awaited(PlannerClient.delete_graph)
    read_graph = awaited(PlannerClient.read_graph)
    read_blob = iterated(PlannerClient.read_blob)
    read_weights = awaited(PlannerClient.read_weights)
    collect_blobs = awaited(PlannerClient.collect_blobs)

    list_devices = awaited(PlannerClient.list_devices)
    drain_device = awaited(PlannerClient.drain_device)
    create_inventory = awaited(PlannerClient.create_inventory)
    get_inventory = awaited(PlannerClient.get_inventory)
    list_inventories = iterated(PlannerClient.list_inventories)
    delete_inventory = awaited(PlannerClient.delete_inventory)

    create_plan = awaited(PlannerClient.create_plan)
    start_plan = wrapped(PlannerClient.start_plan, AsyncPlanOperation)
    get_plan_operation = wrapped(PlannerClient.get_plan_operation, AsyncPlanOperation)
    get_plan = awaited(PlannerClient.get_plan)
    list_plans = iterated(PlannerClient.list_plans)
    delete_plan = awaited(PlannerClient.delete_plan)

    profile_graph = awaited(PlannerClient.profile_graph)
    import_times = awaited(PlannerClient.import_times)
    get_profile = awaited(PlannerClient.get_profile)
    list_profiles = iterated(PlannerClient.list_profiles)
    delete_profile = awaited(PlannerClient.delete_profile)
    recorded_costs = awaited(PlannerClient.recorded_costs)
    measured_times = awaited(PlannerClient.measured_times)
    fitted_rates = awaited(PlannerClient.fitted_rates)

    deploy = awaited(PlannerClient.deploy)
    get_deployment = awaited(PlannerClient.get_deployment)
    list_deployments = iterated(PlannerClient.list_deployments)
    watch = iterated(PlannerClient.watch)
    stop = awaited(PlannerClient.stop)
    delete_deployment = awaited(PlannerClient.delete_deployment)
    pipeline = wrapped(PlannerClient.pipeline, AsyncPipeline, Pipeline.close)
    train = wrapped(PlannerClient.train, AsyncTrainer, Trainer.close)
    deployment_timeline = awaited(PlannerClient.deployment_timeline)
    timelines = iterated(PlannerClient.timelines)

    create_checkpoint = awaited(PlannerClient.create_checkpoint)
    get_checkpoint = awaited(PlannerClient.get_checkpoint)
    list_checkpoints = iterated(PlannerClient.list_checkpoints)
    latest_checkpoint = awaited(PlannerClient.latest_checkpoint)
    find_checkpoint = awaited(PlannerClient.find_checkpoint)
    delete_checkpoint = awaited(PlannerClient.delete_checkpoint)
    download_checkpoint = awaited(PlannerClient.download_checkpoint)

    create_token = awaited(PlannerClient.create_token)
    list_tokens = iterated(PlannerClient.list_tokens)
    revoke_token = awaited(PlannerClient.revoke_token)
    list_audit = iterated(PlannerClient.list_audit)
