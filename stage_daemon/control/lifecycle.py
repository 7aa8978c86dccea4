"""The life of one deployment on this daemon: a pure state machine.

LOADING ─ LOADED ─▶ LOADED ─ CONNECT ─▶ CONNECTING ─ CONNECTED ─▶ RUNNING ─ DRAIN ─▶ DRAINING
every state but the last two ─ RELEASE ─▶ STOPPED,  ─ FAIL ─▶ FAILED
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from enum import Enum

from stage_daemon.errors import Conflict, DaemonError


class Phase(Enum):
    LOADING = "loading"
    LOADED = "loaded"
    CONNECTING = "connecting"
    RUNNING = "running"
    DRAINING = "draining"
    STOPPED = "stopped"
    FAILED = "failed"

    @property
    def ended(self) -> bool:
        return self in (Phase.STOPPED, Phase.FAILED)


class Trigger(Enum):
    LOADED = "finish loading"
    CONNECT = "connect"
    CONNECTED = "finish connecting"
    DRAIN = "drain"
    RELEASE = "let go"
    FAIL = "fail"


_NEXT = {
    (Phase.LOADING, Trigger.LOADED): Phase.LOADED,
    (Phase.LOADED, Trigger.CONNECT): Phase.CONNECTING,
    (Phase.CONNECTING, Trigger.CONNECTED): Phase.RUNNING,
    (Phase.RUNNING, Trigger.DRAIN): Phase.DRAINING,
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Life:
    """`stages` are the stage indices that the deployment has here; `error` is set once it has FAILED."""

    deployment_id: str
    generation: int
    stages: tuple[int, ...]
    phase: Phase = Phase.LOADING
    error: DaemonError | None = None


def advance(life: Life, trigger: Trigger, error: DaemonError | None = None) -> Life:
    """Raises Conflict where the phase does not allow it. What has ended stays as it ended."""
    if trigger in (Trigger.RELEASE, Trigger.FAIL):
        return life if life.phase.ended else _ended(life, trigger, error)
    phase = _NEXT.get((life.phase, trigger))
    if phase is None:
        needed = next(before.value for before, after in _NEXT if after is trigger)
        raise Conflict(
            f"deployment {life.deployment_id} is {life.phase.value} here; to {trigger.value} it has to be {needed}",
            deployment_id=life.deployment_id,
            phase=life.phase.value,
        )
    return replace(life, phase=phase)


def _ended(life: Life, trigger: Trigger, error: DaemonError | None) -> Life:
    if trigger is Trigger.RELEASE:
        return replace(life, phase=Phase.STOPPED)
    assert error is not None
    return replace(life, phase=Phase.FAILED, error=error)
