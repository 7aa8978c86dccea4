"""The group that every file here adds its command to."""

from __future__ import annotations

from typing import Annotated

import typer

app = typer.Typer(no_args_is_help=True, help="How a graph is cut over devices.")

PlanArgument = Annotated[str, typer.Argument(metavar="PLAN", help="Plan id, or its first six digits or more.")]
