"""What `make test-fast` leaves out is what the mark says, and nothing else starts a process."""

from __future__ import annotations

import sqlite3
import subprocess
import sys

import pytest

from tests.without_torch import ROOT, needs_torch


def test_a_test_without_the_mark_starts_no_process() -> None:
    with pytest.raises(AssertionError, match=r"mark it @pytest\.mark\.services"):
        subprocess.run([sys.executable, "-c", ""], check=False)


def test_a_test_without_the_mark_opens_no_database() -> None:
    with pytest.raises(AssertionError, match="sqlite3"):
        sqlite3.connect(":memory:")


@pytest.mark.services
def test_a_test_with_the_mark_does() -> None:
    assert subprocess.run([sys.executable, "-c", ""], check=False).returncode == 0


@pytest.mark.parametrize(
    ("file", "expected"),
    [
        ("tests/planner/partition/test_evaluate.py", False),
        ("tests/planner/client/export/test_states.py", True),  # by its own import
        ("tests/planner/partition/modes/test_cut.py", True),  # through tests.builders
        ("tests/stage_daemon/control/test_lifecycle.py", True),
    ],
)
def test_what_reaches_torch_is_known_without_it(file: str, expected: bool) -> None:
    assert needs_torch(ROOT / file) is expected
