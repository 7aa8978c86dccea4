"""The phases of a deployment on one daemon, and what may follow what."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stage_daemon.control.lifecycle import Life, Phase, Trigger, advance
from stage_daemon.errors import Conflict, WorkerDied

DIED = WorkerDied("stage 1 on node/cpu0: killed", stage=1, device_id="node/cpu0")


def life(phase: Phase = Phase.LOADING) -> Life:
    return Life(deployment_id="dep-1", generation=1, stages=(1,), phase=phase, error=None)


def test_the_way_of_a_deployment_that_goes_well() -> None:
    found = [life()]
    for trigger in (Trigger.LOADED, Trigger.CONNECT, Trigger.CONNECTED, Trigger.DRAIN, Trigger.RELEASE):
        found.append(advance(found[-1], trigger))
    assert [each.phase for each in found] == [
        Phase.LOADING,
        Phase.LOADED,
        Phase.CONNECTING,
        Phase.RUNNING,
        Phase.DRAINING,
        Phase.STOPPED,
    ]


@pytest.mark.parametrize("trigger", [Trigger.CONNECTED, Trigger.CONNECT, Trigger.DRAIN])
def test_what_comes_too_early_is_refused_with_what_is_needed(trigger: Trigger) -> None:
    with pytest.raises(Conflict, match=r"dep-1 is loading here; to .* it has to be"):
        advance(life(), trigger)


def test_a_failure_keeps_its_error_and_the_first_end_stands() -> None:
    failed = advance(life(Phase.RUNNING), Trigger.FAIL, DIED)
    assert (failed.phase, failed.error) == (Phase.FAILED, DIED)
    assert advance(failed, Trigger.RELEASE) == failed
    stopped = advance(life(Phase.DRAINING), Trigger.RELEASE)
    assert advance(stopped, Trigger.FAIL, DIED) == stopped


@given(triggers=st.lists(st.sampled_from(Trigger), max_size=12))
def test_nothing_leads_out_of_an_end(triggers: list[Trigger]) -> None:
    current = life()
    for trigger in triggers:
        try:
            following = advance(current, trigger, DIED)
        except Conflict:
            following = current
        if current.phase.ended:
            assert following == current
        assert (following.error is not None) == (following.phase is Phase.FAILED)
        current = following
