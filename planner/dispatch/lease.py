"""Leases: a daemon is gone once it was silent for a full lease in which this process could hear it and write.

What was heard, and when, is kept here, on the monotonic clock. The database's rows tell others; a database that is away
silences nobody.
"""

from __future__ import annotations

from dataclasses import dataclass

from planner.store.deployment_records import Deployment, Failure

# A daemon whose heartbeats come at a third of its lease may lose two in a row.
CHECKS_PER_LEASE = 8
# Heartbeats come at a third of a lease. One that is this share of it behind was missed.
LATE_SHARE = 0.45
# Checks further apart than this many periods are those of a process that stood still.
PERIODS_UNTIL_STALLED = 2


@dataclass(frozen=True, slots=True, kw_only=True)
class Standing:
    """The daemon that holds a device's lease. `heard_at_seconds` is when it last spoke, or was last given grace."""

    incarnation_id: str
    heard_at_seconds: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Renewal:
    """What the database should say of a device: its daemon's lease ends so many seconds from now."""

    device_id: str
    incarnation_id: str
    remaining_seconds: float


class Leases:
    """Which daemons live. `now` is seconds of one monotonic clock, which the caller reads.

    Each check asks for the `renewals` that are due, writes them, and calls `attend` if that succeeded: a daemon is gone
    from there on. Where checks failed or did not come in time, `attend` gives every daemon its full lease again: until
    then none of them could be heard, or what they said could not be written. There is no other grace than this.
    """

    def __init__(self, lease_seconds: float, now: float) -> None:
        self.lease_seconds = lease_seconds
        self._standings: dict[str, Standing] = {}
        self._unwritten: set[str] = set()
        self._attended_at = now

    @property
    def period_seconds(self) -> float:
        """From one check to the next."""
        return self.lease_seconds / CHECKS_PER_LEASE

    def find(self, device_id: str) -> Standing | None:
        """None where the device's daemon is gone."""
        return self._standings.get(device_id)

    def is_late(self, device_id: str, now: float) -> bool:
        """Whether its daemon has missed a heartbeat, though its lease may last."""
        standing = self._standings.get(device_id)
        return standing is not None and now - standing.heard_at_seconds >= LATE_SHARE * self.lease_seconds

    def hear(self, device_id: str, incarnation_id: str, now: float) -> None:
        self._standings[device_id] = Standing(incarnation_id=incarnation_id, heard_at_seconds=now)
        self._unwritten.add(device_id)

    def renewals(self, now: float) -> tuple[Renewal, ...]:
        """Of the daemons heard since the last check; of all that live after a stall.

        Where nobody was heard it is one daemon's lease as it stands, for only a write shows that writing works.
        """
        if self._stalled(now):
            return tuple(self._renewal(device_id, self.lease_seconds) for device_id in self._standings)
        due = self._unwritten or set(tuple(self._standings)[:1])
        return tuple(
            self._renewal(device_id, self._standings[device_id].heard_at_seconds + self.lease_seconds - now)
            for device_id in sorted(due)
        )

    def attend(self, now: float, written: tuple[Renewal, ...]) -> None:
        """A check whose renewals were written. Those that were silent for longer than their lease are gone."""
        self._unwritten -= {renewal.device_id for renewal in written}
        if self._stalled(now):
            for device_id, standing in self._standings.items():
                self.hear(device_id, standing.incarnation_id, now)
        self._attended_at = now
        silent_since = now - self.lease_seconds
        for device_id in [key for key, one in self._standings.items() if one.heard_at_seconds < silent_since]:
            del self._standings[device_id]
            self._unwritten.discard(device_id)

    def _stalled(self, now: float) -> bool:
        return now - self._attended_at > PERIODS_UNTIL_STALLED * self.period_seconds

    def _renewal(self, device_id: str, remaining_seconds: float) -> Renewal:
        incarnation_id = self._standings[device_id].incarnation_id
        return Renewal(device_id=device_id, incarnation_id=incarnation_id, remaining_seconds=remaining_seconds)


def failure_of(deployment: Deployment, leases: Leases) -> Failure | None:
    """Whether a daemon that the deployment stands on is gone or is another one now; names its first stage."""
    for placement in deployment.stages:
        standing = leases.find(placement.device_id)
        if standing is None:
            return _failure(
                deployment,
                placement.device_id,
                "LEASE_EXPIRED",
                f"the daemon of {placement.device_id} at {placement.daemon_address} was silent and its lease ran out",
            )
        if standing.incarnation_id != placement.incarnation_id:
            message = f"the daemon of {placement.device_id} was started anew"
            return _failure(deployment, placement.device_id, "DAEMON_RESTARTED", message)
    return None


def _failure(deployment: Deployment, device_id: str, reason: str, message: str) -> Failure:
    return Failure(
        reason=reason,
        message=message,
        stage=deployment.stages_on(device_id)[0].stage,
        device_id=device_id,
    )
