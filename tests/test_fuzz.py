"""What `make fuzz` says of a failing file: the command that fails again."""

from __future__ import annotations

import shutil
import subprocess
import time
from pathlib import Path

import pytest

from tests import fuzz
from tests.fuzz import FAILED, Run, command_of, fuzz_files, run_file

OUTPUT = """
F.
=========================== short test summary info ============================
FAILED tests/planner/test_a.py::test_one[2 - 3] - AssertionError: 1 - 2
ERROR tests/planner/test_a.py::test_two
1 failed, 1 error
"""


def test_failing_tests_are_named() -> None:
    run = Run(file="tests/planner/test_a.py", seed=3, exit_status=FAILED, output=OUTPUT)
    assert run.failed
    assert run.failing_tests() == ["tests/planner/test_a.py::test_one[2 - 3]", "tests/planner/test_a.py::test_two"]


def test_a_file_that_reaches_no_test_is_named_itself() -> None:
    run = Run(file="tests/planner/test_a.py", seed=3, exit_status=2, output="SyntaxError")
    assert run.failed
    assert run.failing_tests() == ["tests/planner/test_a.py"]


def test_what_the_time_was_over_for_has_not_failed() -> None:
    assert not Run(file="tests/planner/test_a.py", seed=3).failed


@pytest.mark.services
def test_a_failure_is_found_and_its_command_repeats_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "test_never_large.py").write_text(
        "from hypothesis import given, strategies as st\n"
        "from tests.random_examples import random_examples\n"
        "@random_examples(100)\n"
        "@given(number=st.integers(0, 10))\n"
        "def test_small(number): assert number < 9\n"
        "def test_not_random(): assert False\n"
    )
    shutil.copy(fuzz.ROOT / "pyproject.toml", tmp_path)
    monkeypatch.setenv("PYTHONPATH", str(fuzz.ROOT))
    monkeypatch.setattr(fuzz, "ROOT", tmp_path)
    (file,) = fuzz_files(["."])
    ended = run_file(file, 7, time.monotonic() + 300)
    (test,) = ended.failing_tests()
    assert test == "test_never_large.py::test_small"
    again = subprocess.run(command_of(test, 7), cwd=tmp_path, shell=True, capture_output=True, text=True, check=False)
    assert again.returncode == FAILED
    assert "number=9" in again.stdout
