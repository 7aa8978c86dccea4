"""A simulated timeline as a Chrome trace document, which chrome://tracing and ui.perfetto.dev open.

One process per device, in plan order: track 0 is what it computes, track 1 what it sends and receives. One more process
holds a track for each link. Arrows lead from a message's pass to its transfer's end. Times are microseconds.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from planner.schedule.timeline import Event, Simulation, Transfer

COMPUTE_TRACK = 0
MESSAGE_TRACK = 1


def chrome_trace(simulation: Simulation) -> dict[str, Any]:
    """A JSON document. Linear in the events."""
    process = {device.device_id: index for index, device in enumerate(simulation.devices)}
    links = {(link.source_id, link.target_id): index for index, link in enumerate(simulation.links)}
    return {
        "traceEvents": [
            *_names(simulation),
            *(_event(event, process[event.device_id]) for event in simulation.events),
            *(_transfer(transfer, len(process), links) for transfer in simulation.transfers),
            *(
                arrow
                for index, transfer in enumerate(simulation.transfers)
                for arrow in _arrow(transfer, index, process)
            ),
        ],
        "displayTimeUnit": "ms",
        "otherData": {
            "microbatches": simulation.microbatches,
            "makespan_seconds": simulation.makespan_seconds,
            "bubble_share": simulation.bubble_share,
        },
    }


def _names(simulation: Simulation) -> Iterator[dict[str, Any]]:
    for index, device in enumerate(simulation.devices):
        yield name_entry("process_name", index, device.device_id)
        yield name_entry("thread_name", index, "compute", COMPUTE_TRACK)
        yield name_entry("thread_name", index, "transfers", MESSAGE_TRACK)
    if simulation.links:
        yield name_entry("process_name", len(simulation.devices), "links")
    for index, link in enumerate(simulation.links):
        yield name_entry("thread_name", len(simulation.devices), f"{link.source_id} to {link.target_id}", index)


def name_entry(kind: str, process: int, name: str, track: int = 0) -> dict[str, Any]:
    return {"ph": "M", "name": kind, "pid": process, "tid": track, "args": {"name": name}}


def _event(event: Event, process: int) -> dict[str, Any]:
    of = f" {event.microbatch}" if event.microbatch >= 0 else ""
    return {
        "ph": "X",
        "name": f"{event.activity.value}{of}",
        "cat": event.activity.value,
        "pid": process,
        "tid": COMPUTE_TRACK if event.activity.is_compute else MESSAGE_TRACK,
        **span_times(event.start_seconds, event.end_seconds),
        "args": {"stage": event.stage, "microbatch": event.microbatch},
    }


def _transfer(transfer: Transfer, process: int, links: dict[tuple[str, str], int]) -> dict[str, Any]:
    what = "gradient" if transfer.is_gradient else "microbatch"
    return {
        "ph": "X",
        "name": f"{what} {transfer.microbatch}",
        "cat": "transfer",
        "pid": process,
        "tid": links[transfer.source_id, transfer.target_id],
        **span_times(transfer.start_seconds, transfer.end_seconds),
        "args": {"edge": transfer.edge_index, "bytes": transfer.size_bytes},
    }


def _arrow(transfer: Transfer, index: int, process: dict[str, int]) -> Iterator[dict[str, Any]]:
    shared = {"name": "message", "cat": "message", "id": index, "tid": MESSAGE_TRACK}
    yield {**shared, "ph": "s", "pid": process[transfer.source_id], "ts": transfer.start_seconds * 1e6}
    yield {**shared, "ph": "f", "bp": "e", "pid": process[transfer.target_id], "ts": transfer.end_seconds * 1e6}


def span_times(start_seconds: float, end_seconds: float) -> dict[str, float]:
    return {"ts": start_seconds * 1e6, "dur": (end_seconds - start_seconds) * 1e6}
