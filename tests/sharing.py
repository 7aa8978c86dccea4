"""Which tests one process runs: those that share services, an export or a database that takes seconds to start."""

from __future__ import annotations

import pytest
from xdist.scheduler import LoadScopeScheduling

# Folders whose tests share what is started once for each process; other tests go by file. The longest first.
SHARING = (
    "tests/end_to_end",
    "tests/contract",
    "tests/planner/client",
    "tests/planner/cli",
    "tests/security",
    "tests/planner/dispatch",
    "tests/planner/store",
)


class BySharedServices(LoadScopeScheduling):  # type: ignore[misc]
    """A folder of SHARING, or a file, as a whole to the next process that is free."""

    def _split_scope(self, nodeid: str) -> str:
        return scope_of(nodeid)


def scope_of(nodeid: str) -> str:
    path = nodeid.partition("::")[0]
    return next((folder for folder in SHARING if path.startswith(f"{folder}/")), path)


def in_order(items: list[pytest.Item]) -> list[pytest.Item]:
    """What takes longest first, so that no process is left with it at the end."""
    places = {folder: place for place, folder in enumerate(SHARING)}
    return sorted(items, key=lambda item: places.get(scope_of(item.nodeid), len(SHARING)))
