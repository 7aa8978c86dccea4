"""What a rollout does next: a pure function of where it stands and of what happened. It does no I/O and has no clock.

    PENDING ─ Started ─▶ LOADING ─ all Loaded ─▶ CONNECTING ─ RendezvousOpened, all Connected ─▶ READY
    READY ─ StopAsked ─▶ DRAINING ─ all Released ─▶ STOPPED;  anything but DRAINING ─ Broken ─▶ FAILED

One that recovers, and one whose planner died in the middle of it, begins a new generation instead of failing:

    READY ─ Broken ─▶ RECOVERING ─ all Released, Placed ─▶ LOADING
    PENDING, LOADING, CONNECTING ─ TakenUp ─▶ RECOVERING;  any state ─ Leaving ─▶ RECOVERING

A daemon that lost its peer is a witness, not the culprit: its failure is looked into (Diagnose) before it is believed.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from planner.store.deployment_records import Deployment, DeploymentState, Failure, RecoveryPolicy

# Reasons of one that noticed, while the cause is most likely elsewhere: at the other end of an edge, or out of reach.
INDIRECT_REASONS = frozenset({"EDGE_TIMEOUT", "UNAVAILABLE", "DEADLINE_EXCEEDED", "CANCELLED"})

# Generations in a row that broke before they were READY.
MOST_RECOVERIES = 3


def is_indirect(failure: Failure) -> bool:
    return failure.reason in INDIRECT_REASONS or "edge" in failure.metadata


@dataclass(frozen=True, slots=True, kw_only=True)
class Rollout:
    """`waiting_for` holds the devices yet to answer in this phase; `suspicion` a failure that is looked into.

    `recoveries` counts the generations that were begun since it was last READY.
    """

    deployment_id: str
    device_ids: tuple[str, ...]
    state: DeploymentState = DeploymentState.PENDING
    waiting_for: frozenset[str] = frozenset()
    suspicion: Failure | None = None
    failure: Failure | None = None
    recovers: bool = False
    recoveries: int = 0


def rollout_of(deployment: Deployment) -> Rollout:
    return Rollout(
        deployment_id=deployment.id,
        device_ids=deployment.device_ids(),
        state=deployment.state,
        failure=deployment.failure,
        recovers=deployment.recovery is not RecoveryPolicy.MANUAL,
        # How many there were before this one is forgotten with the planner that began it.
        recoveries=int(deployment.generation > 1 and deployment.state is not DeploymentState.READY),
    )


@dataclass(frozen=True, slots=True)
class Started:
    pass


@dataclass(frozen=True, slots=True)
class Loaded:
    device_id: str


@dataclass(frozen=True, slots=True)
class RendezvousOpened:
    address: str


@dataclass(frozen=True, slots=True)
class Connected:
    device_id: str


@dataclass(frozen=True, slots=True)
class Released:
    device_id: str


@dataclass(frozen=True, slots=True)
class Broken:
    """`reported_by` is the device whose part of the deployment has ended; the failure may name another as the cause."""

    failure: Failure
    reported_by: str = ""


@dataclass(frozen=True, slots=True)
class Diagnosed:
    """The cause that was found behind a suspicion, if any."""

    cause: Failure | None


@dataclass(frozen=True, slots=True)
class StopAsked:
    pass


@dataclass(frozen=True, slots=True)
class Leaving:
    """Nothing is to stay on the device; `why` in words."""

    device_id: str
    why: str


@dataclass(frozen=True, slots=True)
class TakenUp:
    """By another planner, or by the same one after a restart: whatever the one before was doing has ended."""


@dataclass(frozen=True, slots=True)
class Placed:
    """The devices of the next generation, in order of their first stage. `reason` says why its plan is another."""

    device_ids: tuple[str, ...]
    reason: str = ""


@dataclass(frozen=True, slots=True)
class Waits:
    """There is no place yet, and why."""

    why: str


@dataclass(frozen=True, slots=True)
class Unplaced:
    """There is no place for the next generation."""

    failure: Failure


Event = (
    Started
    | Loaded
    | RendezvousOpened
    | Connected
    | Released
    | Broken
    | Diagnosed
    | StopAsked
    | Leaving
    | TakenUp
    | Placed
    | Unplaced
    | Waits
)


@dataclass(frozen=True, slots=True)
class Load:
    device_id: str


@dataclass(frozen=True, slots=True)
class OpenRendezvous:
    device_id: str


@dataclass(frozen=True, slots=True)
class Connect:
    device_id: str
    rendezvous_address: str


@dataclass(frozen=True, slots=True)
class Release:
    """With `keep_states` another generation follows."""

    device_id: str
    drain: bool
    keep_states: bool = False


@dataclass(frozen=True, slots=True)
class Diagnose:
    suspicion: Failure


@dataclass(frozen=True, slots=True)
class Place:
    """Find where the next generation runs."""


Command = Load | OpenRendezvous | Connect | Release | Diagnose | Place


@dataclass(frozen=True, slots=True, kw_only=True)
class Step:
    """Where the rollout stands now, what to do, and what to tell; no message where nothing is worth telling."""

    rollout: Rollout
    commands: tuple[Command, ...] = ()
    message: str = ""
    device_id: str = ""


def advance(rollout: Rollout, event: Event) -> Step:
    """Events that come too late for the state are ignored."""
    if rollout.state.ended:
        return Step(rollout=rollout)
    match event:
        case Started():
            return _start(rollout)
        case Loaded(device_id):
            return _loaded(rollout, device_id)
        case RendezvousOpened(address):
            return _rendezvous_opened(rollout, address)
        case Connected(device_id):
            return _connected(rollout, device_id)
        case Released(device_id):
            return _released(rollout, device_id)
        case Broken():
            return _broken(rollout, event)
        case Diagnosed(cause):
            return _diagnosed(rollout, cause)
        case StopAsked():
            return _stop(rollout)
        case Leaving():
            return _leave(rollout, event)
        case TakenUp():
            return _taken_up(rollout)
        case Placed():
            return _placed(rollout, event)
        case Waits(why):
            is_placing = rollout.state is DeploymentState.RECOVERING and not rollout.waiting_for
            return Step(rollout=rollout, message=why if is_placing else "")
        case Unplaced(failure):
            return _fail(rollout, failure) if rollout.state is DeploymentState.RECOVERING else Step(rollout=rollout)


def _start(rollout: Rollout) -> Step:
    if rollout.state is not DeploymentState.PENDING:
        return Step(rollout=rollout)
    started = replace(rollout, state=DeploymentState.LOADING, waiting_for=frozenset(rollout.device_ids))
    return Step(
        rollout=started,
        commands=tuple(Load(device_id) for device_id in rollout.device_ids),
        message=f"loading on {_counted_devices(rollout)}",
    )


def _loaded(rollout: Rollout, device_id: str) -> Step:
    if rollout.state is not DeploymentState.LOADING or device_id not in rollout.waiting_for:
        return Step(rollout=rollout)
    waiting_for = rollout.waiting_for - {device_id}
    if waiting_for or rollout.suspicion is not None:
        return Step(rollout=replace(rollout, waiting_for=waiting_for), message="loaded", device_id=device_id)
    connecting = replace(rollout, state=DeploymentState.CONNECTING, waiting_for=frozenset(rollout.device_ids))
    return Step(
        rollout=connecting,
        commands=(OpenRendezvous(rollout.device_ids[0]),),
        message=f"loaded on {_counted_devices(rollout)}; connecting",
        device_id=device_id,
    )


def _rendezvous_opened(rollout: Rollout, address: str) -> Step:
    if rollout.state is not DeploymentState.CONNECTING:
        return Step(rollout=rollout)
    return Step(rollout=rollout, commands=tuple(Connect(device_id, address) for device_id in rollout.device_ids))


def _connected(rollout: Rollout, device_id: str) -> Step:
    if rollout.state is not DeploymentState.CONNECTING or device_id not in rollout.waiting_for:
        return Step(rollout=rollout)
    waiting_for = rollout.waiting_for - {device_id}
    if waiting_for or rollout.suspicion is not None:
        return Step(rollout=replace(rollout, waiting_for=waiting_for))
    ready = replace(rollout, state=DeploymentState.READY, waiting_for=frozenset(), recoveries=0)
    return Step(rollout=ready, message="ready")


def _leave(rollout: Rollout, event: Leaving) -> Step:
    """One that recovers goes on elsewhere, or there once the daemon is back; nothing that it accepted is dropped."""
    if rollout.state in (DeploymentState.DRAINING, DeploymentState.RECOVERING):
        return Step(rollout=rollout)
    if not rollout.recovers:
        return _stop(rollout, f"{event.why}; ")
    is_ready = rollout.state is DeploymentState.READY
    what_follows = "it moves once what is in flight is finished" if is_ready else "it begins anew"
    return replace(_recover(rollout, f"{event.why}; {what_follows}", drain=is_ready), device_id=event.device_id)


def _stop(rollout: Rollout, why: str = "") -> Step:
    if rollout.state is DeploymentState.DRAINING:
        return Step(rollout=rollout)
    drain = rollout.state is DeploymentState.READY
    message = "finishing what is in flight" if drain else "stopping before it was ready"
    draining = replace(
        rollout, state=DeploymentState.DRAINING, waiting_for=frozenset(rollout.device_ids), suspicion=None
    )
    return Step(
        rollout=draining,
        commands=tuple(Release(device_id, drain) for device_id in rollout.device_ids),
        message=f"{why}{message}",
    )


def _released(rollout: Rollout, device_id: str) -> Step:
    if rollout.state not in (DeploymentState.DRAINING, DeploymentState.RECOVERING):
        return Step(rollout=rollout)
    if device_id not in rollout.waiting_for:
        return Step(rollout=rollout)
    waiting_for = rollout.waiting_for - {device_id}
    if waiting_for:
        return Step(rollout=replace(rollout, waiting_for=waiting_for))
    if rollout.state is DeploymentState.RECOVERING:
        return Step(rollout=replace(rollout, waiting_for=frozenset()), commands=(Place(),))
    return Step(rollout=replace(rollout, state=DeploymentState.STOPPED, waiting_for=frozenset()), message="stopped")


def _broken(rollout: Rollout, event: Broken) -> Step:
    failure = event.failure
    if rollout.state is DeploymentState.DRAINING:
        return _broken_while_draining(rollout, event)
    if rollout.state is DeploymentState.RECOVERING:
        return Step(rollout=rollout)
    if not is_indirect(failure):
        return _recover_or_fail(rollout, failure)
    if rollout.suspicion is not None:
        return Step(rollout=rollout)
    return Step(rollout=replace(rollout, suspicion=failure), commands=(Diagnose(failure),))


def _broken_while_draining(rollout: Rollout, event: Broken) -> Step:
    """It is to end anyway: whoever is left lets go at once, since the broken one keeps nobody's promises."""
    step = _released(rollout, event.reported_by or event.failure.device_id)
    left = sorted(step.rollout.waiting_for)
    message = step.message or f"while draining: {event.failure.message}"
    return replace(step, commands=tuple(Release(device_id, False) for device_id in left), message=message)


def _diagnosed(rollout: Rollout, cause: Failure | None) -> Step:
    if rollout.suspicion is None or rollout.state is DeploymentState.DRAINING:
        return Step(rollout=rollout)
    return _recover_or_fail(rollout, cause or rollout.suspicion)


def _taken_up(rollout: Rollout) -> Step:
    """READY goes on by itself; a drain is asked for again; a rollout begins anew, for its answers went to another."""
    if rollout.state is DeploymentState.READY:
        return Step(rollout=rollout)
    if rollout.state is DeploymentState.DRAINING:
        commands = tuple(Release(device_id, True) for device_id in rollout.device_ids)
        return Step(rollout=replace(rollout, waiting_for=frozenset(rollout.device_ids)), commands=commands)
    return _recover(rollout, f"its planner ended while it was {rollout.state.value}; it begins anew")


def _recover_or_fail(rollout: Rollout, failure: Failure) -> Step:
    """A plan that never ran is not tried again, nor one that breaks again and again before it is READY."""
    begun = rollout.state is DeploymentState.READY or 0 < rollout.recoveries < MOST_RECOVERIES
    if not (rollout.recovers and begun):
        return _fail(rollout, failure)
    return replace(_recover(rollout, f"{failure.message}; it recovers"), device_id=failure.device_id)


def _recover(rollout: Rollout, message: str, *, drain: bool = False) -> Step:
    recovering = replace(
        rollout,
        state=DeploymentState.RECOVERING,
        waiting_for=frozenset(rollout.device_ids),
        suspicion=None,
        recoveries=rollout.recoveries + 1,
    )
    commands = tuple(Release(device_id, drain, keep_states=True) for device_id in rollout.device_ids)
    return Step(rollout=recovering, commands=commands, message=message)


def _placed(rollout: Rollout, event: Placed) -> Step:
    if rollout.state is not DeploymentState.RECOVERING or rollout.waiting_for:
        return Step(rollout=rollout)
    step = _start(replace(rollout, state=DeploymentState.PENDING, device_ids=event.device_ids))
    return replace(step, message=f"{event.reason}; {step.message}") if event.reason else step


def _fail(rollout: Rollout, failure: Failure) -> Step:
    failed = replace(rollout, state=DeploymentState.FAILED, failure=failure, suspicion=None, waiting_for=frozenset())
    return Step(
        rollout=failed,
        commands=tuple(Release(device_id, False) for device_id in rollout.device_ids),
        message=failure.message,
        device_id=failure.device_id,
    )


def _counted_devices(rollout: Rollout) -> str:
    count = len(rollout.device_ids)
    return "1 device" if count == 1 else f"{count} devices"
