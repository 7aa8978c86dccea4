"""The rollout's decisions, without processes: every order of events, and what must never come of it."""

from __future__ import annotations

from collections.abc import Iterable

from hypothesis import given
from hypothesis import strategies as st

from planner.dispatch.rollout import (
    Broken,
    Command,
    Connect,
    Connected,
    Diagnose,
    Diagnosed,
    Event,
    Load,
    Loaded,
    OpenRendezvous,
    PlannerRestarted,
    Release,
    Released,
    RendezvousOpened,
    Rollout,
    Started,
    Step,
    StopAsked,
    advance,
)
from planner.store.deployment_records import DeploymentState, Failure

DEVICES = ("a", "b", "c")
DEAD_WORKER = Failure(reason="WORKER_DIED", message="stage 1 on b: killed", stage=1, device_id="b")
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


def test_restart_keeps_ready_ends_draining_and_fails_the_rest() -> None:
    assert advance(play(fresh(), to_ready()).rollout, PlannerRestarted()).rollout.state is DeploymentState.READY
    draining = advance(play(fresh(), [*to_ready(), StopAsked()]).rollout, PlannerRestarted())
    assert draining.commands == tuple(Release(device, True) for device in DEVICES)
    for events in ([], [Started()], to_ready()[:4]):
        step = advance(play(fresh(), events).rollout, PlannerRestarted())
        assert step.rollout.failure is not None
        assert step.rollout.failure.reason == "PLANNER_RESTARTED"
        assert len(step.commands) == len(DEVICES)


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
    st.just(PlannerRestarted()),
)


@given(before=st.integers(0, 8), noise=st.lists(events, max_size=20))
def test_a_broken_rollout_never_becomes_ready(before: int, noise: list[Event]) -> None:
    """However far it had come, and whatever arrives after."""
    rollout = play(fresh(), to_ready()[:before]).rollout
    was_ready = rollout.state is DeploymentState.READY
    rollout = advance(rollout, Broken(DEAD_WORKER)).rollout
    for event in [*noise, *to_ready()]:
        rollout = advance(rollout, event).rollout
        assert rollout.state is DeploymentState.FAILED, was_ready


@given(sequence=st.lists(events, max_size=40))
def test_every_order_of_events_keeps_the_rules(sequence: list[Event]) -> None:
    rollout = fresh()
    told: list[Command] = []
    suspected = False
    for event in sequence:
        step = advance(rollout, event)
        told.extend(step.commands)
        suspected = suspected or step.rollout.suspicion is not None
        became_ready = step.rollout.state is DeploymentState.READY and rollout.state is not DeploymentState.READY
        if became_ready:
            assert not suspected
            assert {command.device_id for command in told if isinstance(command, Connect)} == set(DEVICES)
        if rollout.state.ended:
            assert step == Step(rollout=rollout)
        if step.rollout.state is DeploymentState.FAILED and not rollout.state.ended:
            assert step.rollout.failure is not None
            assert step.commands == tuple(Release(device, False) for device in DEVICES)
        if step.rollout.state is not rollout.state:
            assert step.message
        rollout = step.rollout
