"""The phases of a deployment on one daemon, and what may follow what."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stage_daemon.control.lifecycle import Life, Phase, Trigger, advance
from stage_daemon.errors import Conflict, WorkerDied
from tests.random_examples import random_examples

DIED = WorkerDied("stage 1 on node/cpu0: killed", stage=1, device_id="node/cpu0")


def life(phase: Phase = Phase.LOADING) -> Life:
    return Life(deployment_id="dep-1", generation=1, stages=(1,), phase=phase, error=None)


def test_the_way_of_a_deployment_that_goes_well() -> None:
    lives = [life()]
    for trigger in (Trigger.LOADED, Trigger.CONNECT, Trigger.CONNECTED, Trigger.DRAIN, Trigger.RELEASE):
        lives.append(advance(lives[-1], trigger))
    assert [each.phase for each in lives] == [
        Phase.LOADING,
        Phase.LOADED,
        Phase.CONNECTING,
        Phase.RUNNING,
        Phase.DRAINING,
        Phase.STOPPED,
    ]


NEEDED = {
    Trigger.LOADED: Phase.LOADING,
    Trigger.CONNECT: Phase.LOADED,
    Trigger.CONNECTED: Phase.CONNECTING,
    Trigger.DRAIN: Phase.RUNNING,
}


@pytest.mark.parametrize("trigger", NEEDED)
@pytest.mark.parametrize("phase", Phase)
def test_what_comes_out_of_order_is_refused_with_what_is_needed(phase: Phase, trigger: Trigger) -> None:
    if phase is NEEDED[trigger]:
        assert advance(life(phase), trigger).phase is not phase
        return
    words = f"dep-1 is {phase.value} here; to {trigger.value} it has to be {NEEDED[trigger].value}"
    with pytest.raises(Conflict, match=words) as raised:
        advance(life(phase), trigger)
    assert raised.value.metadata == {"deployment_id": "dep-1", "phase": phase.value}


@pytest.mark.parametrize("phase", [phase for phase in Phase if not phase.ended])
def test_whatever_has_not_ended_can_be_let_go_of_and_can_fail(phase: Phase) -> None:
    assert advance(life(phase), Trigger.RELEASE).phase is Phase.STOPPED
    assert advance(life(phase), Trigger.FAIL, DIED).phase is Phase.FAILED


def test_a_failure_keeps_its_error_and_the_first_end_stands() -> None:
    failed = advance(life(Phase.RUNNING), Trigger.FAIL, DIED)
    assert (failed.phase, failed.error) == (Phase.FAILED, DIED)
    assert advance(failed, Trigger.RELEASE) == failed
    stopped = advance(life(Phase.DRAINING), Trigger.RELEASE)
    assert advance(stopped, Trigger.FAIL, DIED) == stopped


@random_examples(100)
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
