"""Runs the tests that draw random examples on ones that `make test` never draws, until its minutes are over.

Round by round, each with a seed of its own, each file in a process of its own. For every failing test it prints the
command that repeats it; what is found is mended and kept as an example that `make test` runs.
"""

from __future__ import annotations

import argparse
import os
import re
import subprocess
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from itertools import count
from pathlib import Path

ROOT = Path(__file__).parents[1]
# Examples of one round, over those of `make test`: 25 rounds are a hundred times as many.
FACTOR = 4
PYTEST = (
    sys.executable,
    "-m",
    "pytest",
    "-c",
    "pyproject.toml",
    "-m",
    "fuzz",
    "-p",
    "no:randomly",
    "-p",
    "no:cacheprovider",
)
# What pytest ends with: all passed, some failed, none found.
PASSED, FAILED, NONE_FOUND = 0, 1, 5


@dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    """One file with one seed. `output` is None where the time was over before it ended."""

    file: str
    seed: int
    exit_status: int = PASSED
    output: str | None = None

    @property
    def failed(self) -> bool:
        return self.output is not None and self.exit_status not in (PASSED, NONE_FOUND)

    def failing_tests(self) -> list[str]:
        """Their node ids; the file where not even a test was reached."""
        failures = re.findall(r"^(?:FAILED|ERROR) (\S+?(?:\[.*?\])?)(?: - .*)?$", self.output or "", flags=re.MULTILINE)
        return failures or [self.file]


def fuzz_files(paths: list[str]) -> list[str]:
    """Files below `paths` that have tests marked `fuzz`."""
    listed = subprocess.run([*PYTEST, "--collect-only", *paths], cwd=ROOT, capture_output=True, text=True, check=False)
    if listed.returncode not in (PASSED, NONE_FOUND):
        raise SystemExit(f"the tests cannot be collected:\n{listed.stdout}{listed.stderr}")
    return sorted({line.split("::")[0] for line in listed.stdout.splitlines() if "::" in line})


def run_file(file: str, seed: int, deadline_seconds: float) -> Run:
    left = deadline_seconds - time.monotonic()
    if left <= 0:
        return Run(file=file, seed=seed)
    environment = {**os.environ, "PLANNER_FUZZ_SEED": str(seed), "PLANNER_FUZZ_FACTOR": str(FACTOR)}
    try:
        ended = subprocess.run(
            [*PYTEST, "-rfE", "--timeout", "0", file],
            cwd=ROOT,
            env=environment,
            capture_output=True,
            text=True,
            timeout=left,
            check=False,
        )
    except subprocess.TimeoutExpired:
        return Run(file=file, seed=seed)
    return Run(file=file, seed=seed, exit_status=ended.returncode, output=ended.stdout + ended.stderr)


def command_of(test: str, seed: int) -> str:
    """What to type to see `test` fail again."""
    python = os.path.relpath(sys.executable, ROOT) if ROOT in Path(sys.executable).parents else sys.executable
    return f"PLANNER_FUZZ_SEED={seed} PLANNER_FUZZ_FACTOR={FACTOR} {python} -m pytest -p no:randomly -m fuzz '{test}'"


class Rounds:
    """Every file with a seed, then every file with the next, until the deadline; threads take turns."""

    def __init__(self, files: list[str], first_seed: int, deadline_seconds: float) -> None:
        self._jobs = ((file, seed) for seed in count(first_seed) for file in files)
        self._deadline_seconds = deadline_seconds
        self._lock = threading.Lock()
        self.num_ended = 0
        self.commands: list[str] = []

    def work(self) -> None:
        while time.monotonic() < self._deadline_seconds:
            with self._lock:
                file, seed = next(self._jobs)
            ended = run_file(file, seed, self._deadline_seconds)
            with self._lock:
                self._note(ended)

    def _note(self, ended: Run) -> None:
        self.num_ended += ended.output is not None
        if ended.failed:
            print(ended.output, flush=True)
            self.commands += [command_of(test, ended.seed) for test in ended.failing_tests()]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--minutes", type=float, default=10.0)
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument("--seed", type=int, default=int(time.time()), help="of the first round")
    parser.add_argument("paths", nargs="*", default=["tests"])
    options = parser.parse_args()
    deadline_seconds = time.monotonic() + 60 * options.minutes
    files = fuzz_files(options.paths)
    if not files:
        raise SystemExit(f"no test below {' '.join(options.paths)} is marked fuzz")
    print(f"{len(files)} files for {options.minutes:g} minutes, first seed {options.seed}", flush=True)
    rounds = Rounds(files, options.seed, deadline_seconds)
    with ThreadPoolExecutor(options.jobs) as pool:
        workers = [pool.submit(rounds.work) for _ in range(options.jobs)]
    for worker in workers:
        worker.result()
    print(f"{rounds.num_ended} runs of a file ended, {len(rounds.commands)} tests failed")
    print(*rounds.commands, sep="\n")
    return 1 if rounds.commands else 0


if __name__ == "__main__":
    sys.exit(main())
