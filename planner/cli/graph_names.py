"""Graphs as people name them: by id, by a prefix of it, or by the name they were submitted under."""

from __future__ import annotations

import re

from planner.client import PlannerClient
from planner.client.records import GraphRecord
from planner.errors import NotFound

_ID_OR_PREFIX = re.compile(r"[0-9a-f]{6,64}")


def find_graph(client: PlannerClient, named: str) -> GraphRecord:
    """Of several with one name, the newest. Raises NotFound."""
    newest = next(client.list_graphs(name=named), None) if named else None
    if newest is not None:
        return newest
    if _ID_OR_PREFIX.fullmatch(named):
        return client.get_graph(named)
    raise NotFound(f"no graph has the name or id {named!r}; `planner-cli graph list` shows those that there are")
