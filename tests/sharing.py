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

    def remove_node(self, node: object) -> str | None:
        """The test that its process ended in, which would end the next one too: only those after it are run again."""
        units = self.assigned_work.pop(node)
        ended_in = next((test for unit in units.values() for test, is_done in unit.items() if not is_done), None)
        for scope, unit in units.items():
            if ended_in in unit:
                unit[ended_in] = True
            if not all(unit.values()):
                self.workqueue[scope] = unit
        for other in self.assigned_work:
            self._reschedule(other)
        return ended_in


def scope_of(nodeid: str) -> str:
    path = nodeid.partition("::")[0]
    return next((folder for folder in SHARING if path.startswith(f"{folder}/")), path)


def in_order(items: list[pytest.Item]) -> list[pytest.Item]:
    """What takes longest first, so that no process is left with it at the end."""
    places = {folder: place for place, folder in enumerate(SHARING)}
    return sorted(items, key=lambda item: places.get(scope_of(item.nodeid), len(SHARING)))
