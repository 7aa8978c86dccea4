"""How tests are shared among processes, where one of these ends in the middle of a test."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

CONFTEST = """
from tests.sharing import BySharedServices

def pytest_xdist_make_scheduler(config, log):
    config.option.loadscopereorder = False
    return BySharedServices(config, log)
"""
TESTS = """
import os, pathlib, pytest

@pytest.mark.parametrize("number", range(6))
def test_one(number):
    with (pathlib.Path(__file__).parent / "ran").open("a") as ran:
        ran.write(f"{number}\\n")
    if number == 2:
        os._exit(1)
"""


@pytest.mark.services
@pytest.mark.slow
def test_what_a_process_ended_in_is_not_run_again(tmp_path: Path) -> None:
    """It was, by one process after the other, for as long as a hanging one takes each time."""
    (tmp_path / "conftest.py").write_text(CONFTEST)
    (tmp_path / "test_some.py").write_text(TESTS)
    options = ["-n", "2", "-p", "no:randomly", "-p", "no:cacheprovider", "-c", "/dev/null", "--rootdir", "."]
    finished = subprocess.run(
        [sys.executable, "-m", "pytest", *options, "test_some.py"],
        cwd=tmp_path,
        env={"PYTHONPATH": str(Path(__file__).parents[1]), "PATH": "/usr/bin:/bin"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert (tmp_path / "ran").read_text().split() == ["0", "1", "2", "3", "4", "5"]
    assert "1 failed, 5 passed" in finished.stdout
    assert "crashed while running 'test_some.py::test_one[2]'" in finished.stdout
