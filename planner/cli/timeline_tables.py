"""A measured timeline for people and programs: each stage's shares, and the bubble beside the predicted one."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.text import Text

from planner.cli.documents import to_document
from planner.cli.output import OutputFormat, emit
from planner.cli.quantities import format_seconds
from planner.cli.tables import plain_table

if TYPE_CHECKING:
    from planner.client.timelines import DeploymentTimeline
    from planner.schedule.measured import Summary

Show = Callable[["DeploymentTimeline", "Summary"], None]


def timeline_document(timeline: DeploymentTimeline, summary: Summary) -> dict[str, Any]:
    return {
        "deployment": timeline.deployment_id,
        "generation": timeline.generation,
        "seconds": summary.end_seconds - summary.start_seconds,
        "bubble_share": summary.bubble_share,
        "predicted_bubble_share": timeline.predicted_bubble_share,
        "clock_error_seconds": timeline.measured.error_seconds,
        "stages": summary.stages,
    }


def timeline_table(timeline: DeploymentTimeline, summary: Summary) -> RenderableType:
    """One row per stage; below, the bubble. Percentiles are of a microbatch's seconds of computing."""
    seconds = summary.end_seconds - summary.start_seconds
    table = plain_table(
        "stage", "device", "busy", "receive", "send", "sums", "per second", "p50", "p95", title=timeline.deployment_id
    )
    for column in (*table.columns[:1], *table.columns[2:]):
        column.justify = "right"
    for stage in summary.stages:
        shares = (stage.busy_share, stage.receive_wait_share, stage.send_wait_share, stage.reduce_share)
        table.add_row(
            str(stage.stage),
            stage.device_id,
            *(f"{share:.1%}" for share in shares),
            f"{stage.microbatches_per_second:.1f}",
            format_seconds(stage.p50_seconds),
            format_seconds(stage.p95_seconds),
        )
    measured = "nothing has run" if summary.bubble_share is None else f"{summary.bubble_share:.1%} measured"
    lines = [f"bubble: {measured} in {format_seconds(seconds)}, {timeline.predicted_bubble_share:.1%} predicted"]
    if timeline.measured.error_seconds:
        lines.append(f"clocks of other hosts are known to {format_seconds(timeline.measured.error_seconds)}")
    return Group(table, *map(Text, lines))


@contextmanager
def live_table(output: OutputFormat) -> Iterator[Show]:
    """Redraws the table on a terminal; elsewhere writes one after the other, or a JSON object per line."""
    if output is OutputFormat.JSON:
        yield lambda timeline, summary: _write_line(timeline_document(timeline, summary))
    elif output is OutputFormat.TABLE and sys.stdout.isatty():
        console = Console(markup=False, emoji=False, highlight=False)
        with Live(console=console, auto_refresh=False) as live:
            yield lambda timeline, summary: live.update(timeline_table(timeline, summary), refresh=True)
    else:
        yield lambda timeline, summary: emit(
            [timeline_document(timeline, summary)],
            output,
            lambda: timeline_table(timeline, summary),
        )


def _write_line(document: dict[str, Any]) -> None:
    sys.stdout.write(json.dumps(to_document(document), ensure_ascii=False) + "\n")
    sys.stdout.flush()
