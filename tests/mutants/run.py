"""Puts one bug after the other into a copy of the source, and demands that the tests named with it fail.

Each `*.patch` here begins with a line `What: <the bug>` and a line `Tests: <paths>`, then a diff. A survivor is a bug
that the tests would let through. The copy is first tried without any: where the tests fail anyhow, no mutant says
anything.
"""

from __future__ import annotations

import argparse
import os
import re
import shutil
import subprocess
import sys
import tempfile
import threading
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[2]
FOLDER = Path(__file__).parent
PYTEST = (sys.executable, "-m", "pytest", "-q", "-x", "-p", "no:randomly", "-p", "no:cacheprovider", "--timeout", "240")
PASSED, FAILED = 0, 1
LIMIT_SECONDS = 1800
# In each file with kernels.
KERNELS = b"from planner.partition.placement.compiled import"


class BadMutant(Exception):
    """The patch has no header, names no tests, or does not fit the source any more."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Mutant:
    name: str
    what: str
    tests: tuple[str, ...]
    diff: str

    def files(self) -> list[str]:
        return re.findall(r"^\+\+\+ b/(\S+)", self.diff, flags=re.MULTILINE)


def read_mutant(path: Path) -> Mutant:
    header = re.match(r"What: (?P<what>.+)\nTests: (?P<tests>.+)\n", path.read_text())
    if header is None:
        raise BadMutant(f"{path.name}: begins with neither 'What: ...' nor 'Tests: ...'; see {Path(__file__).name}")
    tests = tuple(header["tests"].split())
    missing = [test for test in tests if not (ROOT / test.split("::")[0]).exists()]
    if missing:
        raise BadMutant(f"{path.name}: {' '.join(missing)} is not there; name the tests that are to fail")
    return Mutant(name=path.stem, what=header["what"], tests=tests, diff=path.read_text()[header.end() :])


def apply_diff(diff: str, folder: Path, *options: str) -> str:
    """What git says against it; nothing where it fits. `--check` changes no file."""
    applied = subprocess.run(
        ["git", "apply", "-C1", "--recount", *options, "-"],
        cwd=folder,
        input=diff,
        # A copy below another checkout would be taken for a part of that one.
        env={**os.environ, "GIT_CEILING_DIRECTORIES": str(folder.parent)},
        capture_output=True,
        text=True,
        check=False,
    )
    return applied.stderr.strip() or "git cannot apply it" if applied.returncode else ""


class Workplace:
    """A copy of the source. Compiled code of one mutant never serves another: each has source times of its own."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._num_applied = 0
        listed = subprocess.run(
            ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"],
            cwd=ROOT,
            capture_output=True,
            check=True,
        )
        for name in filter(None, listed.stdout.decode().split("\0")):
            if (ROOT / name).is_file():
                (folder / name).parent.mkdir(parents=True, exist_ok=True)
                shutil.copy2(ROOT / name, folder / name)

    def run_tests(self, tests: tuple[str, ...], **environment: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [*PYTEST, *tests],
            cwd=self._folder,
            env={**os.environ, "PYTHONPATH": str(self._folder), **environment},
            capture_output=True,
            text=True,
            timeout=LIMIT_SECONDS,
            check=False,
        )

    def try_mutant(self, mutant: Mutant) -> subprocess.CompletedProcess[str]:
        self._num_applied += 1
        before = {name: (self._folder / name).read_bytes() for name in mutant.files()}
        try:
            self._apply(mutant)
            # Machine code is kept by the file it is compiled from, not by those that were inlined into it.
            with tempfile.TemporaryDirectory() as kernels:
                has_kernels = any(KERNELS in content for content in before.values())
                return self.run_tests(mutant.tests, **({"NUMBA_CACHE_DIR": kernels} if has_kernels else {}))
        finally:
            for name, content in before.items():
                (self._folder / name).write_bytes(content)
                self._touch(name, 2 * self._num_applied + 1)

    def _apply(self, mutant: Mutant) -> None:
        misfit = apply_diff(mutant.diff, self._folder)
        if misfit:
            raise BadMutant(f"{mutant.name}: does not fit the source any more, write it anew: {misfit}")
        for name in mutant.files():
            self._touch(name, 2 * self._num_applied)

    def _touch(self, name: str, seconds: int) -> None:
        """Python takes a compiled module for current when its source's second and size are."""
        original = (ROOT / name).stat().st_mtime
        os.utime(self._folder / name, (original + seconds, original + seconds))


class Hunt:
    """All mutants, a thread for each workplace."""

    def __init__(self, mutants: list[Mutant]) -> None:
        self._open = list(reversed(mutants))
        self._lock = threading.Lock()
        self.complaints: list[str] = []

    def work(self, folder: Path) -> None:
        workplace = Workplace(folder)
        while True:
            with self._lock:
                if not self._open:
                    return
                mutant = self._open.pop()
            verdict = self._verdict(workplace, mutant)
            with self._lock:
                print(f"{'ok  ' if verdict is None else 'FAIL'} {mutant.name}: {verdict or 'killed'}", flush=True)
                if verdict is not None:
                    self.complaints.append(f"{mutant.name}: {verdict}\n  {mutant.what}")

    def _verdict(self, workplace: Workplace, mutant: Mutant) -> str | None:
        try:
            ended = workplace.try_mutant(mutant)
        except BadMutant as error:
            return str(error)
        except subprocess.TimeoutExpired:
            return f"{' '.join(mutant.tests)} did not end within {LIMIT_SECONDS} s"
        if ended.returncode == PASSED:
            return f"survives {' '.join(mutant.tests)}"
        if ended.returncode != FAILED:
            return f"pytest ended with {ended.returncode} rather than a failing test:\n{ended.stdout[-2000:]}"
        return None


def run_clean(folder: Path, mutants: list[Mutant], jobs: int) -> None:
    tests = tuple(sorted({test for mutant in mutants for test in mutant.tests}))
    ended = Workplace(folder).run_tests(("-n", str(jobs), *tests))
    if ended.returncode != PASSED:
        raise SystemExit(f"without any mutant the tests fail:\n{ended.stdout[-4000:]}{ended.stderr[-1000:]}")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument("names", nargs="*", help="of patches, as far as unambiguous; all if none")
    options = parser.parse_args()
    paths = [
        path
        for path in sorted(FOLDER.glob("*.patch"))
        if not options.names or path.stem.startswith(tuple(options.names))
    ]
    if not paths:
        raise SystemExit(
            f"no patch in {FOLDER.relative_to(ROOT)} begins with {' or '.join(options.names) or 'anything'}"
        )
    try:
        mutants = [read_mutant(path) for path in paths]
    except BadMutant as error:
        raise SystemExit(str(error)) from None
    with tempfile.TemporaryDirectory(prefix="mutants") as scratch:
        run_clean(Path(scratch, "clean"), mutants, options.jobs)
        hunt = Hunt(mutants)
        with ThreadPoolExecutor(options.jobs) as pool:
            workers = [pool.submit(hunt.work, Path(scratch, str(job))) for job in range(options.jobs)]
        for worker in workers:
            worker.result()
    print(f"{len(mutants) - len(hunt.complaints)} of {len(mutants)} mutants killed")
    print(*hunt.complaints, sep="\n")
    return 1 if hunt.complaints else 0


if __name__ == "__main__":
    sys.exit(main())
