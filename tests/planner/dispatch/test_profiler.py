"""Which daemons a profile runs on."""

from __future__ import annotations

from datetime import UTC, datetime

import pytest

from planner.cost.inventory import Device
from planner.dispatch.profiler import choose_daemons
from planner.errors import Conflict, NotFound
from planner.store.deployment_records import Daemon, Deployment, DeploymentState, StagePlacement

NOW = datetime(2026, 1, 1, tzinfo=UTC)


def daemon(device_id: str, kind: str) -> Daemon:
    return Daemon(
        device=Device(id=device_id, kind=kind, host="h", memory_bytes=1),
        address="127.0.0.1:1",
        incarnation_id="i",
        torch_version="2.13",
        lease_expires_at=NOW,
    )


def holding(*device_ids: str) -> Deployment:
    return Deployment(
        id="dep-1",
        plan_id="plan-1",
        graph_id="g",
        state=DeploymentState.READY,
        generation=1,
        stages=tuple(
            StagePlacement(stage=stage, device_id=device_id, daemon_address="", incarnation_id="i")
            for stage, device_id in enumerate(device_ids)
        ),
        created_at=NOW,
    )


LIVE = (daemon("g0", "H200"), daemon("g1", "H200"), daemon("c0", "cpu"))


@pytest.mark.parametrize(
    ("held", "device_ids", "kinds", "chosen"),
    [
        ((), (), (), ["g0", "c0"]),
        ((), ("c0", "g1", "c0"), (), ["c0", "g1"]),
        ((), (), ("h200",), ["g0"]),
        (("g0",), (), ("h200",), ["g1"]),
        (("g0", "g1"), (), (), ["c0"]),
    ],
)
def test_free_ones_are_chosen(
    held: tuple[str, ...], device_ids: tuple[str, ...], kinds: tuple[str, ...], chosen: list[str]
) -> None:
    found = choose_daemons(LIVE, [holding(*held)] if held else [], device_ids, kinds)
    assert [one.device.id for one in found] == chosen


@pytest.mark.parametrize(
    ("live", "held", "device_ids", "kinds", "error", "says"),
    [
        ((), (), (), (), NotFound, "no daemon holds a lease"),
        (LIVE, (), ("g7",), (), NotFound, "'g7' has no daemon.*g0, g1, c0"),
        (LIVE, (), (), ("t4",), NotFound, "kind 't4'.*H200, cpu"),
        (LIVE, ("g0",), ("g0",), (), Conflict, "g0 holds deployment dep-1"),
        (LIVE, ("g0", "g1"), (), ("h200",), Conflict, "every device of kind 'h200'"),
        (LIVE, ("g0", "g1", "c0"), (), (), Conflict, "every device holds a deployment"),
    ],
)
def test_what_is_not_there_or_not_free_is_named(
    live: tuple[Daemon, ...],
    held: tuple[str, ...],
    device_ids: tuple[str, ...],
    kinds: tuple[str, ...],
    error: type[Exception],
    says: str,
) -> None:
    with pytest.raises(error, match=says):
        choose_daemons(live, [holding(*held)] if held else [], device_ids, kinds)
