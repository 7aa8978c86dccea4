"""Profiles of a graph on registered daemons: which daemon is free, what it measured, what went wrong."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Mapping, Sequence
from contextlib import aclosing
from dataclasses import dataclass

from access.files import WatchedCredentials
from planner.cost.measured import Delivery, MeasuredTimes, StateUpdate, symbol_values_of
from planner.dispatch.daemon_client import CallDeadlines, DaemonCallFailed, DaemonClient
from planner.errors import Cancelled, Conflict, GraphError, InvalidArgument, NotFound, PlannerError, Unavailable
from planner.graph.saved import Saved
from planner.store.deployment_records import Daemon, Deployment, Failure
from planner.wire.profiles import delivery_from_proto, saved_from_proto, update_from_proto
from protos.v1 import stage_daemon_pb2

_ERRORS: Mapping[str, type[PlannerError]] = {
    "CONFLICT": Conflict,
    "INVALID_ARGUMENT": InvalidArgument,
    "INVALID_GRAPH": GraphError,
    "UNSUPPORTED_OPERATOR": GraphError,
    "CANCELLED": Cancelled,
    "DAEMON_UNREACHABLE": Unavailable,
    "DEADLINE_EXCEEDED": Unavailable,
    "UNAVAILABLE": Unavailable,
    "WORKER_DIED": Unavailable,
    "NOT_FOUND": NotFound,
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Step:
    """Progress of one profile, in distinct nodes."""

    num_done: int
    num_distinct: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Measured:
    """The last thing that a profile gives. `unmeasured` holds (node, why)."""

    times: MeasuredTimes
    unmeasured: tuple[tuple[int, str], ...]


async def profile(
    daemon: Daemon,
    graph_id: str,
    request: stage_daemon_pb2.ProfileRequest,
    deadlines: CallDeadlines,
    credentials: WatchedCredentials | None = None,
    timeout_seconds: float | None = None,
) -> AsyncGenerator[Step | Measured, None]:
    """Steps, then what was measured. Leaving early ends it on the daemon too, which also ends it by itself once the
    time of whoever asked is over. Raises what kept it from being done.
    """
    client = DaemonClient(daemon.device.id, daemon.address, deadlines, credentials)
    seconds: dict[int, float] = {}
    backward: dict[int, float] = {}
    split: dict[int, tuple[float, float]] = {}
    saved: dict[int, Saved] = {}
    unmeasured: dict[int, str] = {}
    delivery: Delivery | None = None
    update: StateUpdate | None = None
    num_threads = num_neighbours = 0
    try:
        async with aclosing(client.profile(request, timeout_seconds)) as responses:
            async for response in responses:
                for one in response.measured:
                    if one.unmeasured_reason:
                        unmeasured.update(dict.fromkeys(one.nodes, one.unmeasured_reason))
                    else:
                        seconds.update(dict.fromkeys(one.nodes, one.seconds))
                    if one.HasField("backward_seconds"):
                        backward.update(dict.fromkeys(one.nodes, one.backward_seconds))
                    if one.HasField("input_gradient_seconds") and one.HasField("weight_gradient_seconds"):
                        halves = one.input_gradient_seconds, one.weight_gradient_seconds
                        split.update(dict.fromkeys(one.nodes, halves))
                    if (kept := saved_from_proto(one)) is not None:
                        saved.update(dict.fromkeys(one.nodes, kept))
                num_threads = response.num_threads or num_threads
                num_neighbours = response.num_neighbours or num_neighbours
                update = update_from_proto(response) or update
                delivery = delivery_from_proto(response)
                if delivery is None:
                    yield Step(num_done=response.num_done, num_distinct=response.num_distinct)
    except DaemonCallFailed as error:
        raise _error(error.failure) from None
    finally:
        await client.close()
    times = MeasuredTimes(
        graph_id=graph_id,
        device_kind=daemon.device.kind.lower(),
        symbol_values=symbol_values_of(request.symbol_values),
        source=_source(daemon, num_threads, num_neighbours),
        seconds=tuple(sorted(seconds.items())),
        backward_seconds=tuple(sorted(backward.items())),
        split_seconds=tuple((node, *halves) for node, halves in sorted(split.items())),
        saved=tuple((node, saved[node]) for node in sorted(saved)),
        delivery=delivery,
        update=update,
        num_threads=request.num_threads,
    )
    yield Measured(times=times, unmeasured=tuple(sorted(unmeasured.items())))


def _source(daemon: Daemon, num_threads: int, num_neighbours: int) -> str:
    threads = f", {num_threads} thread{'s' * (num_threads > 1)}" if num_threads else ""
    beside = f", beside {num_neighbours} busy neighbour{'s' * (num_neighbours > 1)}" if num_neighbours else ""
    return f"profiled on {daemon.device.id}, torch {daemon.torch_version}{threads}{beside}"[:256]


def usual_neighbours(daemon: Daemon, live: Sequence[Daemon]) -> int:
    """Whoever would be at work beside it in a plan of all devices: the host's others of its kind."""
    device = daemon.device
    alike = (other.device for other in live if other.device.id != device.id)
    return sum((other.host, other.kind.lower()) == (device.host, device.kind.lower()) for other in alike)


def choose_daemons(
    live: Sequence[Daemon], active: Sequence[Deployment], device_ids: Sequence[str], kinds: Sequence[str]
) -> tuple[Daemon, ...]:
    """Those asked for, else a free one of each kind asked for, else a free one of every kind that is there.

    Raises NotFound for what is not there, and Conflict for what holds a deployment.
    """
    holders = {device_id: deployment.id for deployment in reversed(active) for device_id in deployment.device_ids()}
    if device_ids:
        return tuple(_named(live, device_id, holders) for device_id in dict.fromkeys(device_ids))
    present = dict.fromkeys(daemon.device.kind.lower() for daemon in live)
    requested_kinds = dict.fromkeys(kind.lower() for kind in kinds) or present
    if not requested_kinds:
        raise NotFound("no daemon holds a lease; start a stage-daemon to profile on")
    daemons = [_free(live, kind, holders) for kind in requested_kinds if kinds or _is_free(live, kind, holders)]
    if not daemons:
        raise Conflict("every device holds a deployment; stop one, or start another stage-daemon to profile on")
    return tuple(daemons)


def _named(live: Sequence[Daemon], device_id: str, holders: Mapping[str, str]) -> Daemon:
    named = next((daemon for daemon in live if daemon.device.id == device_id), None)
    if named is None:
        live_ids = ", ".join(daemon.device.id for daemon in live) or "none"
        raise NotFound(f"device {device_id[:80]!r} has no daemon that holds a lease; live now: {live_ids}")
    if device_id in holders:
        raise Conflict(f"device {device_id} holds deployment {holders[device_id]}; profile on one that is free")
    return named


def _free(live: Sequence[Daemon], kind: str, holders: Mapping[str, str]) -> Daemon:
    of_kind = [daemon for daemon in live if daemon.device.kind.lower() == kind]
    if not of_kind:
        kinds = ", ".join(sorted({daemon.device.kind for daemon in live})) or "none"
        raise NotFound(f"no daemon of kind {kind[:80]!r} holds a lease; live now: {kinds}")
    free = next((daemon for daemon in of_kind if daemon.device.id not in holders), None)
    if free is None:
        raise Conflict(f"every device of kind {kind!r} holds a deployment; stop one to profile on it")
    return free


def _is_free(live: Sequence[Daemon], kind: str, holders: Mapping[str, str]) -> bool:
    return any(daemon.device.kind.lower() == kind and daemon.device.id not in holders for daemon in live)


def _error(failure: Failure) -> PlannerError:
    kind = _ERRORS.get(failure.reason, PlannerError)
    return kind(f"{failure.device_id}: {failure.message}", reason=failure.reason, device_id=failure.device_id)
