"""The rollout's decisions, without processes: every order of events, and what must never come of it."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from planner.dispatch.rollout import (
    MOST_RECOVERIES,
    Broken,
    Command,
    Connect,
    Connected,
    Diagnose,
    Diagnosed,
    Event,
    Leaving,
    Load,
    Loaded,
    OpenRendezvous,
    Place,
    Placed,
    Release,
    Released,
    RendezvousOpened,
    Rollout,
    Started,
    Step,
    StopAsked,
    TakenUp,
    Unplaced,
    Waits,
    advance,
    is_indirect,
    rollout_of,
)
from planner.store.deployment_records import DeploymentState, Failure
from tests.planner.store.records import deployment, placement
from tests.random_examples import random_examples

DEVICES = ("a", "b", "c")
DEAD_WORKER = Failure(reason="WORKER_DIED", message="stage 1 on b: killed", stage=1, device_id="b")
LEAVING = Leaving("b", "b is drained")
LOST_PEER = Failure(reason="EDGE_TIMEOUT", message="stage 0 on a: edge 0 lost stage 1", stage=0, device_id="a")


def fresh() -> Rollout:
    return Rollout(deployment_id="dep-1", device_ids=DEVICES)


def play(rollout: Rollout, events: Iterable[Event]) -> Step:
    step = Step(rollout=rollout)
    for event in events:
        step = advance(step.rollout, event)
    return step


def to_ready() -> list[Event]:
    loaded: list[Event] = [Loaded(device) for device in DEVICES]
    connected: list[Event] = [Connected(device) for device in DEVICES]
    return [Started(), *loaded, RendezvousOpened("a:1"), *connected]


def anew(devices: tuple[str, ...] = DEVICES) -> list[Event]:
    """From RECOVERING to READY."""
    return [*(Released(device) for device in DEVICES), Placed(devices), *to_ready()[1:]]


def test_all_load_then_all_connect_then_ready() -> None:
    rollout = fresh()
    step = advance(rollout, Started())
    assert step.commands == tuple(Load(device) for device in DEVICES)
    step = play(step.rollout, [Loaded("c"), Loaded("a")])
    assert (step.rollout.state, step.commands) == (DeploymentState.LOADING, ())
    step = advance(step.rollout, Loaded("b"))
    assert step.rollout.state is DeploymentState.CONNECTING
    assert step.commands == (OpenRendezvous("a"),)
    step = advance(step.rollout, RendezvousOpened("host:1"))
    assert step.commands == tuple(Connect(device, "host:1") for device in DEVICES)
    step = play(step.rollout, [Connected(device) for device in DEVICES])
    assert step.rollout.state is DeploymentState.READY


def test_one_device_loading_twice_does_not_count_for_two() -> None:
    step = play(fresh(), [Started(), Loaded("a"), Loaded("a"), Loaded("a")])
    assert step.rollout.state is DeploymentState.LOADING
    assert step.rollout.waiting_for == {"b", "c"}


def test_a_dead_worker_fails_the_deployment_and_everyone_lets_go() -> None:
    step = advance(play(fresh(), to_ready()).rollout, Broken(DEAD_WORKER))
    assert step.rollout.state is DeploymentState.FAILED
    assert step.rollout.failure == DEAD_WORKER
    assert step.commands == tuple(Release(device, False) for device in DEVICES)


def test_a_lost_peer_is_looked_into_before_it_is_believed() -> None:
    step = advance(play(fresh(), to_ready()).rollout, Broken(LOST_PEER))
    assert step.rollout.state is DeploymentState.READY
    assert step.commands == (Diagnose(LOST_PEER),)
    assert advance(step.rollout, Diagnosed(DEAD_WORKER)).rollout.failure == DEAD_WORKER
    assert advance(step.rollout, Diagnosed(None)).rollout.failure == LOST_PEER
    assert advance(step.rollout, Broken(DEAD_WORKER)).rollout.failure == DEAD_WORKER


def test_the_first_failure_stands() -> None:
    other = Failure(reason="WORKER_DIED", message="stage 0 on a: killed", stage=0, device_id="a")
    step = play(fresh(), [Started(), Broken(DEAD_WORKER), Broken(other), Diagnosed(other), StopAsked()])
    assert step.rollout.failure == DEAD_WORKER
    assert step.commands == ()


def test_stop_drains_and_then_it_is_stopped() -> None:
    step = advance(play(fresh(), to_ready()).rollout, StopAsked())
    assert step.rollout.state is DeploymentState.DRAINING
    assert step.commands == tuple(Release(device, True) for device in DEVICES)
    assert advance(step.rollout, StopAsked()).commands == ()
    step = play(step.rollout, [Released("b"), Released("a"), Released("c")])
    assert step.rollout.state is DeploymentState.STOPPED


def test_stop_before_ready_drops_what_is_there() -> None:
    step = play(fresh(), [Started(), Loaded("a"), StopAsked()])
    assert step.commands == tuple(Release(device, False) for device in DEVICES)


def test_a_worker_that_dies_while_draining_ends_the_waiting() -> None:
    step = play(fresh(), [*to_ready(), StopAsked(), Released("a"), Broken(DEAD_WORKER)])
    assert step.rollout.state is DeploymentState.DRAINING
    assert step.commands == (Release("c", False),)
    assert advance(step.rollout, Released("c")).rollout.state is DeploymentState.STOPPED


def test_what_is_taken_up_goes_on_is_drained_or_begins_anew() -> None:
    assert advance(play(fresh(), to_ready()).rollout, TakenUp()).rollout.state is DeploymentState.READY
    draining = advance(play(fresh(), [*to_ready(), StopAsked()]).rollout, TakenUp())
    assert draining.commands == tuple(Release(device, True) for device in DEVICES)
    for events in ([], [Started()], to_ready()[:4]):
        step = advance(play(fresh(), events).rollout, TakenUp())
        assert step.rollout.state is DeploymentState.RECOVERING
        assert step.commands == tuple(Release(device, False, keep_states=True) for device in DEVICES)
        assert play(step.rollout, anew()).rollout.state is DeploymentState.READY


failures = st.sampled_from([DEAD_WORKER, LOST_PEER])
devices = st.sampled_from(DEVICES)
events = st.one_of(
    st.just(Started()),
    st.builds(Loaded, devices),
    st.builds(RendezvousOpened, st.just("a:1")),
    st.builds(Connected, devices),
    st.builds(Released, devices),
    st.builds(Broken, failures),
    st.builds(Diagnosed, st.none() | failures),
    st.just(StopAsked()),
    st.just(TakenUp()),
    st.just(Placed(DEVICES)),
    st.just(Unplaced(DEAD_WORKER)),
    st.just(Waits("nothing fits")),
    st.just(LEAVING),
)


@random_examples(100)
@given(before=st.integers(0, 8), noise=st.lists(events, max_size=20))
def test_a_broken_rollout_never_becomes_ready(before: int, noise: list[Event]) -> None:
    """However far it had come, and whatever arrives after."""
    rollout = play(fresh(), to_ready()[:before]).rollout
    was_ready = rollout.state is DeploymentState.READY
    rollout = advance(rollout, Broken(DEAD_WORKER)).rollout
    for event in [*noise, *to_ready()]:
        rollout = advance(rollout, event).rollout
        assert rollout.state is DeploymentState.FAILED, was_ready


@random_examples(200)
@given(sequence=st.lists(events, max_size=40))
def test_every_order_of_events_keeps_the_rules(sequence: list[Event]) -> None:
    rollout = fresh()
    commands: list[Command] = []
    suspected = False
    for event in sequence:
        step = advance(rollout, event)
        commands.extend(step.commands)
        suspected = suspected or step.rollout.suspicion is not None
        became_ready = step.rollout.state is DeploymentState.READY and rollout.state is not DeploymentState.READY
        if step.rollout.state is DeploymentState.RECOVERING:
            commands, suspected = [], False
        if became_ready:
            assert not suspected
            assert {command.device_id for command in commands if isinstance(command, Connect)} == set(DEVICES)
        if rollout.state.ended:
            assert step == Step(rollout=rollout)
        if step.rollout.state is DeploymentState.FAILED and not rollout.state.ended:
            assert step.rollout.failure is not None
            assert step.commands == tuple(Release(device, False) for device in DEVICES)
        if step.rollout.state is DeploymentState.LOADING and rollout.state is DeploymentState.RECOVERING:
            assert not rollout.waiting_for
        if step.rollout.state is not rollout.state:
            assert step.message
        rollout = step.rollout


PENDING, LOADING, CONNECTING, READY, DRAINING, STOPPED, FAILED, RECOVERING = DeploymentState


def at(state: DeploymentState) -> Rollout:
    """A rollout that has come to the state, as it stands there first."""
    paths: dict[DeploymentState, list[Event]] = {
        PENDING: [],
        LOADING: to_ready()[:1],
        CONNECTING: to_ready()[:4],
        READY: to_ready(),
        DRAINING: [*to_ready(), StopAsked()],
        STOPPED: [*to_ready(), StopAsked(), *(Released(device) for device in DEVICES)],
        FAILED: [Broken(DEAD_WORKER)],
        RECOVERING: [Started(), TakenUp()],
    }
    rollout = play(fresh(), paths[state]).rollout
    assert rollout.state is state
    return rollout


# Which state each event leads to from each other; from where nothing is named, nothing happens at all.
MOVES: dict[DeploymentState, list[tuple[Event, DeploymentState]]] = {
    PENDING: [
        (Started(), LOADING),
        (StopAsked(), DRAINING),
        (LEAVING, DRAINING),
        (Broken(DEAD_WORKER), FAILED),
        (Broken(LOST_PEER), PENDING),
        (TakenUp(), RECOVERING),
    ],
    LOADING: [
        (Loaded("a"), LOADING),
        (StopAsked(), DRAINING),
        (LEAVING, DRAINING),
        (Broken(DEAD_WORKER), FAILED),
        (Broken(LOST_PEER), LOADING),
        (TakenUp(), RECOVERING),
    ],
    CONNECTING: [
        (RendezvousOpened("a:1"), CONNECTING),
        (Connected("a"), CONNECTING),
        (StopAsked(), DRAINING),
        (LEAVING, DRAINING),
        (Broken(DEAD_WORKER), FAILED),
        (Broken(LOST_PEER), CONNECTING),
        (TakenUp(), RECOVERING),
    ],
    READY: [
        (StopAsked(), DRAINING),
        (LEAVING, DRAINING),
        (Broken(DEAD_WORKER), FAILED),
        (Broken(LOST_PEER), READY),
    ],
    DRAINING: [
        (Released("a"), DRAINING),
        (Broken(DEAD_WORKER), DRAINING),
        (Broken(LOST_PEER), DRAINING),
        (TakenUp(), DRAINING),
    ],
    RECOVERING: [
        (Released("a"), RECOVERING),
        (StopAsked(), DRAINING),
        (TakenUp(), RECOVERING),
        (Unplaced(DEAD_WORKER), FAILED),
    ],
    STOPPED: [],
    FAILED: [],
}
ALL_EVENTS: tuple[Event, ...] = (
    Started(),
    Loaded("a"),
    RendezvousOpened("a:1"),
    Connected("a"),
    Released("a"),
    Broken(DEAD_WORKER),
    Broken(LOST_PEER),
    Diagnosed(DEAD_WORKER),
    Diagnosed(None),
    StopAsked(),
    LEAVING,
    TakenUp(),
    Placed(DEVICES),
    Unplaced(DEAD_WORKER),
    Waits("nothing fits"),
)


@pytest.mark.parametrize("event", ALL_EVENTS, ids=str)
@pytest.mark.parametrize("state", DeploymentState, ids=lambda state: state.name)
def test_every_event_in_every_state(state: DeploymentState, event: Event) -> None:
    rollout = at(state)
    step = advance(rollout, event)
    targets = [target for moving, target in MOVES[state] if moving == event]
    if not targets:
        assert step == Step(rollout=rollout)
        return
    assert step.rollout.state is targets[0]
    assert step != Step(rollout=rollout)


def test_a_deployment_is_taken_up_where_it_stands() -> None:
    stages = (placement(0, "b"), placement(1, "a"), placement(2, "b"))
    taken = rollout_of(deployment(state=READY, stages=stages, failure=DEAD_WORKER))
    assert taken == Rollout(deployment_id="dep-1", device_ids=("b", "a"), state=READY, failure=DEAD_WORKER)


@pytest.mark.parametrize(("generation", "state", "recoveries"), [(1, LOADING, 0), (2, READY, 0), (3, LOADING, 1)])
def test_one_that_is_taken_up_while_it_recovers_has_begun_to(
    generation: int, state: DeploymentState, recoveries: int
) -> None:
    assert rollout_of(deployment(state=state, generation=generation)).recoveries == recoveries


@pytest.mark.parametrize(
    ("failure", "indirect"),
    [
        (Failure(reason="EDGE_TIMEOUT", message=""), True),
        (Failure(reason="UNAVAILABLE", message=""), True),
        (Failure(reason="DEADLINE_EXCEEDED", message=""), True),
        (Failure(reason="CANCELLED", message=""), True),
        (Failure(reason="ANYTHING", message="", metadata={"edge": ""}), True),
        (Failure(reason="WORKER_DIED", message="", metadata={"stage": "1"}), False),
        (Failure(reason="DAEMON_UNREACHABLE", message=""), False),
        (Failure(reason="LEASE_EXPIRED", message=""), False),
        (Failure(reason="STAGE_LOST", message=""), False),
    ],
)
def test_who_only_noticed(failure: Failure, indirect: bool) -> None:
    assert is_indirect(failure) is indirect


def test_a_rollout_under_suspicion_goes_no_further_until_it_is_cleared_up() -> None:
    loading = play(fresh(), [Started(), Loaded("a"), Broken(LOST_PEER), Loaded("b")])
    step = advance(loading.rollout, Loaded("c"))
    assert (step.rollout.state, step.commands, step.message, step.device_id) == (LOADING, (), "loaded", "c")
    connecting = play(fresh(), [*to_ready()[:-1], Broken(LOST_PEER)])
    step = advance(connecting.rollout, Connected("c"))
    assert (step.rollout.state, step.commands) == (CONNECTING, ())
    assert advance(step.rollout, Diagnosed(None)).rollout.state is FAILED


def recovering() -> Rollout:
    """READY, and one that recovers."""
    return play(replace(fresh(), recovers=True), to_ready()).rollout


def test_one_that_recovers_begins_a_new_generation_once_all_let_go() -> None:
    step = advance(recovering(), Broken(DEAD_WORKER))
    assert step.rollout.state is RECOVERING
    assert step.commands == tuple(Release(device, False, keep_states=True) for device in DEVICES)
    assert advance(step.rollout, Placed(DEVICES)) == Step(rollout=step.rollout)
    step = play(step.rollout, [Released("c"), Released("c"), Released("a")])
    assert step.commands == ()
    step = advance(step.rollout, Released("b"))
    assert step.commands == (Place(),)
    step = advance(step.rollout, Placed(("a", "d")))
    assert step.commands == (Load("a"), Load("d"))
    assert step.rollout.device_ids == ("a", "d")


def test_one_that_recovers_moves_off_a_daemon_that_leaves_and_drops_nothing() -> None:
    step = advance(recovering(), LEAVING)
    assert step.rollout.state is RECOVERING
    assert step.commands == tuple(Release(device, True, keep_states=True) for device in DEVICES)
    assert advance(step.rollout, LEAVING) == Step(rollout=step.rollout)
    step = play(step.rollout, [*(Released(device) for device in DEVICES), Placed(DEVICES), Loaded("a")])
    again = advance(step.rollout, LEAVING)
    assert again.rollout.state is RECOVERING
    assert again.commands == tuple(Release(device, False, keep_states=True) for device in DEVICES)
    begun_anew = play(replace(fresh(), recovers=True), [Started(), LEAVING])
    assert begun_anew.rollout.state is RECOVERING
    assert begun_anew.commands == tuple(Release(device, False, keep_states=True) for device in DEVICES)


def test_a_witness_is_looked_into_before_one_recovers() -> None:
    step = advance(recovering(), Broken(LOST_PEER))
    assert (step.rollout.state, step.commands) == (READY, (Diagnose(LOST_PEER),))
    assert advance(step.rollout, Diagnosed(DEAD_WORKER)).rollout.state is RECOVERING


def test_a_plan_that_never_ran_is_not_tried_again() -> None:
    for events in ([Started()], to_ready()[:4]):
        step = advance(play(replace(fresh(), recovers=True), events).rollout, Broken(DEAD_WORKER))
        assert step.rollout.state is FAILED


def test_generations_that_break_before_they_are_ready_are_given_up() -> None:
    rollout = recovering()
    for _ in range(MOST_RECOVERIES - 1):
        rollout = advance(play(rollout, [Broken(DEAD_WORKER), *anew()[:5]]).rollout, Broken(DEAD_WORKER)).rollout
        assert rollout.state is RECOVERING
    assert play(rollout, [*anew()[:5], Broken(DEAD_WORKER)]).rollout.state is FAILED
    rollout = recovering()
    for _ in range(2 * MOST_RECOVERIES):
        rollout = play(rollout, [Broken(DEAD_WORKER), *anew()]).rollout
        assert (rollout.state, rollout.recoveries) == (READY, 0)


def test_a_second_witness_is_not_asked_for_a_second_diagnosis() -> None:
    step = advance(at(READY), Broken(LOST_PEER))
    again = advance(step.rollout, Broken(Failure(reason="EDGE_TIMEOUT", message="the other end", device_id="b")))
    assert (again.commands, again.rollout.suspicion) == ((), LOST_PEER)


def test_stopping_clears_a_suspicion() -> None:
    step = play(fresh(), [*to_ready(), Broken(LOST_PEER), StopAsked()])
    assert step.rollout.suspicion is None
    assert advance(step.rollout, Diagnosed(DEAD_WORKER)) == Step(rollout=step.rollout)


def test_what_is_told() -> None:
    one = Rollout(deployment_id="dep-1", device_ids=("a",))
    assert advance(one, Started()).message == "loading on 1 device"
    step = advance(fresh(), Started())
    assert step.message == "loading on 3 devices"
    step = advance(step.rollout, Loaded("b"))
    assert (step.message, step.device_id) == ("loaded", "b")
    step = advance(advance(step.rollout, Loaded("a")).rollout, Loaded("c"))
    assert (step.message, step.device_id) == ("loaded on 3 devices; connecting", "c")
    assert advance(step.rollout, RendezvousOpened("a:1")).message == ""
    step = advance(at(CONNECTING), Connected("a"))
    assert step.message == ""
    assert play(step.rollout, [Connected("b"), Connected("c")]).message == "ready"
    assert advance(at(READY), StopAsked()).message == "finishing what is in flight"
    assert advance(at(LOADING), StopAsked()).message == "stopping before it was ready"
    leaves = "b is drained; "
    assert advance(at(READY), LEAVING).message == f"{leaves}finishing what is in flight"
    step = advance(recovering(), LEAVING)
    assert (step.message, step.device_id) == (f"{leaves}it moves once what is in flight is finished", "b")
    assert play(at(DRAINING), [Released("a"), Released("b"), Released("c")]).message == "stopped"
    step = advance(at(READY), Broken(DEAD_WORKER))
    assert (step.message, step.device_id) == (DEAD_WORKER.message, "b")
    assert advance(at(LOADING), TakenUp()).message == "its planner ended while it was loading; it begins anew"
    step = advance(recovering(), Broken(DEAD_WORKER))
    assert (step.message, step.device_id) == (f"{DEAD_WORKER.message}; it recovers", "b")
    step = play(step.rollout, [Released(device) for device in DEVICES])
    assert advance(step.rollout, Waits("nothing fits")) == Step(rollout=step.rollout, message="nothing fits")
    assert advance(step.rollout, Placed(("a",))).message == "loading on 1 device"
    assert advance(step.rollout, Placed(("a",), "without b")).message == "without b; loading on 1 device"


def test_of_what_broke_while_draining_nothing_is_waited_for() -> None:
    step = advance(at(DRAINING), Broken(DEAD_WORKER))
    assert step.commands == (Release("a", False), Release("c", False))
    assert step.rollout.waiting_for == {"a", "c"}
    assert step.message == f"while draining: {DEAD_WORKER.message}"
    assert step.rollout.failure is None
    witness = advance(at(DRAINING), Broken(DEAD_WORKER, reported_by="a"))
    assert witness.rollout.waiting_for == {"b", "c"}
    last = play(at(DRAINING), [Released("a"), Released("c"), Broken(DEAD_WORKER)])
    assert (last.rollout.state, last.message, last.commands) == (STOPPED, "stopped", ())


def test_a_drain_that_is_asked_for_again_waits_for_every_device() -> None:
    halfway = play(at(DRAINING), [Released("a"), TakenUp()])
    assert halfway.rollout.waiting_for == set(DEVICES)
    assert halfway.message == ""
