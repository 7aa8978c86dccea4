"""Files of measured times on the command line; planner.cost.times_file says what stands in them."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from planner.cost.measured import MeasuredTimes
from planner.cost.times_file import read_times
from planner.errors import InvalidArgument

TimesOption = Annotated[
    Path | None, typer.Option("--times", metavar="FILE", help="JSON of measured node times to plan with.")
]


def read_times_file(path: Path, graph_id: str = "") -> tuple[MeasuredTimes, ...]:
    """Raises InvalidArgument, naming the file and the entry, also where the times are of another graph."""
    try:
        text = path.read_bytes()
    except OSError as error:
        raise InvalidArgument(f"{path} cannot be read: {error.strerror}") from None
    try:
        tables = read_times(text)
    except InvalidArgument as error:
        raise InvalidArgument(f"{path}: {error.message}") from None
    for times in tables:
        if graph_id and times.graph_id and not graph_id.startswith(times.graph_id):
            raise InvalidArgument(f"{path}: the times are of graph {times.graph_id[:12]}, not of {graph_id[:12]}")
    return tables
