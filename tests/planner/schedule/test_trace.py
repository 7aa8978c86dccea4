"""The trace document of a timeline, entry by entry."""

from __future__ import annotations

from typing import Any

from planner.schedule.timeline import Activity, DeviceTime, Event, LinkTime, Simulation, Transfer
from planner.schedule.trace import chrome_trace


def device(name: str) -> DeviceTime:
    return DeviceTime(device_id=name, busy_seconds=1.0, communication_seconds=0.5, waiting_seconds=0.25)


def link(source: str, target: str) -> LinkTime:
    return LinkTime(source_id=source, target_id=target, busy_seconds=0.5, size_bytes=8)


TIMELINE = Simulation(
    microbatches=3,
    makespan_seconds=1.75,
    bubble_share=0.125,
    devices=(device("a"), device("b")),
    links=(link("a", "b"), link("b", "a")),
    output_seconds=(1.0, 1.25, 1.5),
    events=(
        Event("a", Activity.FORWARD, 4, 2, 0.25, 0.75),
        Event("a", Activity.SEND, 4, 2, 0.75, 1.0),
        Event("b", Activity.REDUCE, 5, -1, 1.5, 1.75),
    ),
    transfers=(Transfer(7, 2, False, "a", "b", 48, 0.75, 1.0), Transfer(7, 1, True, "b", "a", 16, 1.0, 1.5)),
)
ENTRIES: list[dict[str, Any]] = chrome_trace(TIMELINE)["traceEvents"]


def of(phase: str) -> list[dict[str, Any]]:
    return [entry for entry in ENTRIES if entry["ph"] == phase]


def test_processes_are_devices_and_one_more_holds_the_links() -> None:
    assert [(one["name"], one["pid"], one["tid"], one["args"]["name"]) for one in of("M")] == [
        ("process_name", 0, 0, "a"),
        ("thread_name", 0, 0, "compute"),
        ("thread_name", 0, 1, "transfers"),
        ("process_name", 1, 0, "b"),
        ("thread_name", 1, 0, "compute"),
        ("thread_name", 1, 1, "transfers"),
        ("process_name", 2, 0, "links"),
        ("thread_name", 2, 0, "a to b"),
        ("thread_name", 2, 1, "b to a"),
    ]


def test_without_messages_there_is_no_process_for_links() -> None:
    alone = Simulation(
        microbatches=1,
        makespan_seconds=1.0,
        bubble_share=0.0,
        devices=(device("a"),),
        links=(),
        output_seconds=(1.0,),
        events=(),
        transfers=(),
    )
    assert [entry["args"]["name"] for entry in chrome_trace(alone)["traceEvents"]] == ["a", "compute", "transfers"]


def test_events_and_transfers_have_tracks_and_microseconds() -> None:
    spans = [(one["name"], one["cat"], one["pid"], one["tid"], one["ts"], one["dur"], one["args"]) for one in of("X")]
    assert spans == [
        ("forward 2", "forward", 0, 0, 0.25e6, 0.5e6, {"stage": 4, "microbatch": 2}),
        ("send 2", "send", 0, 1, 0.75e6, 0.25e6, {"stage": 4, "microbatch": 2}),
        ("reduce gradients", "reduce gradients", 1, 1, 1.5e6, 0.25e6, {"stage": 5, "microbatch": -1}),
        ("microbatch 2", "transfer", 2, 0, 0.75e6, 0.25e6, {"edge": 7, "bytes": 48}),
        ("gradient 1", "transfer", 2, 1, 1e6, 0.5e6, {"edge": 7, "bytes": 16}),
    ]


def test_arrows_lead_from_the_sender_to_the_receiver() -> None:
    assert [(one["id"], one["pid"], one["tid"], one["ts"]) for one in of("s")] == [(0, 0, 1, 0.75e6), (1, 1, 1, 1e6)]
    assert [(one["id"], one["pid"], one["tid"], one["ts"]) for one in of("f")] == [(0, 1, 1, 1e6), (1, 0, 1, 1.5e6)]
    assert all(one["bp"] == "e" for one in of("f"))


def test_the_document_says_what_it_is_of() -> None:
    document = chrome_trace(TIMELINE)
    assert document["displayTimeUnit"] == "ms"
    assert document["otherData"] == {"microbatches": 3, "makespan_seconds": 1.75, "bubble_share": 0.125}


def test_the_time_between_results_is_that_of_the_second_half() -> None:
    def between(*seconds: float) -> float:
        return Simulation(
            microbatches=len(seconds),
            makespan_seconds=9.0,
            bubble_share=0.0,
            devices=(),
            links=(),
            output_seconds=seconds,
            events=(),
            transfers=(),
        ).seconds_between_outputs

    assert between(3.0) == 0.0
    assert between(1.0, 4.0) == 3.0
    # Copies hand back out of order: by time, 1, 2, 7, 9 and 12.
    assert between(9.0, 1.0, 12.0, 2.0, 7.0) == (12.0 - 7.0) / 2
    assert between(0.0, 10.0, 11.0, 13.0) == (13.0 - 10.0) / 2
