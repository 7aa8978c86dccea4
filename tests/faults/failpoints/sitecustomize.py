"""Failpoints for real processes: Python imports this at its start where the folder is on PYTHONPATH.

FAILPOINTS names functions of the services and what is to happen there: "MODULE:NAME WHEN WHAT CHANCE; ...", with WHEN
`before` or `after`, WHAT `crash` (SIGKILL), `stall` (the whole process, for FAILPOINT_STALL_SECONDS) or `raise`, and
CHANCE the share of the calls, or `#3` for the third one of each process. Where FAILPOINT_ONCE names a file, it happens
in one process alone, which makes that file. The services themselves know nothing of it.
"""

from __future__ import annotations

import functools
import importlib.abc
import importlib.machinery
import inspect
import os
import random
import signal
import sys
import time
from collections.abc import Callable, Sequence
from types import ModuleType
from typing import Any


class Failpoint:
    def __init__(self, text: str) -> None:
        self.where, self.when, self.what, chance = text.split()
        self.module, _, self.name = self.where.partition(":")
        self._at_call = int(chance[1:]) if chance.startswith("#") else 0
        self._chance = 0.0 if self._at_call else float(chance)
        self._num_calls = 0
        # Other moments in each process, the same ones for a seed and a process id.
        self._random = random.Random(f"{os.environ.get('FAILPOINT_SEED', '')} {os.getpid()} {text}")

    def install(self, module: ModuleType) -> None:
        *path, last = self.name.split(".")
        holder = functools.reduce(getattr, path, module)
        setattr(holder, last, self._wrapped(getattr(holder, last)))

    def reach(self, when: str) -> None:
        if when != self.when:
            return
        self._num_calls += 1
        if self._num_calls != self._at_call and self._random.random() >= self._chance:
            return
        if not is_first(os.environ.get("FAILPOINT_ONCE", "")):
            return
        sys.stderr.write(f"failpoint: {self.where} {self.when} {self.what}\n")
        sys.stderr.flush()
        if self.what == "crash":
            os.kill(os.getpid(), signal.SIGKILL)
        elif self.what == "stall":
            time.sleep(float(os.environ["FAILPOINT_STALL_SECONDS"]))
        else:
            raise OSError(f"failpoint {self.where}")

    def _wrapped(self, call: Callable[..., Any]) -> Callable[..., Any]:
        if inspect.iscoroutinefunction(call):

            @functools.wraps(call)
            async def awaited(*args: Any, **kwargs: Any) -> Any:
                self.reach("before")
                result = await call(*args, **kwargs)
                self.reach("after")
                return result

            return awaited

        @functools.wraps(call)
        def called(*args: Any, **kwargs: Any) -> Any:
            self.reach("before")
            result = call(*args, **kwargs)
            self.reach("after")
            return result

        return called


def is_first(marker: str) -> bool:
    """Whether nobody has made this file before; without one everybody is."""
    if not marker:
        return True
    try:
        os.close(os.open(marker, os.O_CREAT | os.O_EXCL))
    except FileExistsError:
        return False
    return True


class Installer(importlib.abc.MetaPathFinder):
    """Finds the modules that hold failpoints as Python would, and installs these once a module is there."""

    def __init__(self, failpoints: Sequence[Failpoint]) -> None:
        self._failpoints = failpoints

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        inside = [failpoint for failpoint in self._failpoints if failpoint.module == fullname]
        if not inside:
            return None
        spec = importlib.machinery.PathFinder.find_spec(fullname, path, target)
        if spec is None or spec.loader is None:
            return None
        run = spec.loader.exec_module

        def exec_module(module: ModuleType) -> None:
            run(module)
            for failpoint in inside:
                failpoint.install(module)

        spec.loader.exec_module = exec_module  # type: ignore[method-assign]
        return spec


if os.environ.get("FAILPOINTS"):
    sys.meta_path.insert(0, Installer([Failpoint(text.strip()) for text in os.environ["FAILPOINTS"].split(";")]))
