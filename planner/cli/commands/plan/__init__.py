"""`plan …`: one file for each thing to do with plans."""

from planner.cli.commands.plan import create, diff, explain, export, import_, records, simulate, what_if
from planner.cli.commands.plan.group import app

__all__ = ["app", "create", "diff", "explain", "export", "import_", "records", "simulate", "what_if"]
