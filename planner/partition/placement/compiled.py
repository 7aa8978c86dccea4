"""Hot loops, compiled by numba. What it compiles is kept on disk where this process may write, or else made anew.

Without numba they stay what they are, functions of Python. Whether it is installed is told without importing it.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable
from functools import cache
from importlib.util import find_spec
from multiprocessing import parent_process
from typing import Any, TypeVar, cast

HAS_COMPILER = find_spec("numba") is not None
WITHOUT_COMPILER = (
    "numba is not installed, so searches run as plain Python: the same plans in ten to two hundred times the seconds; "
    "pip install 'partition-planner[compiled]'"
)
Kernel = TypeVar("Kernel", bound=Callable[..., Any])
# Every kernel of the modules that have been imported.
KERNELS: list[Any] = []


def compiled(function: Kernel) -> Kernel:
    """numba.njit with a cache beside the module, in NUMBA_CACHE_DIR or in the user's; without one where none can be."""
    warn_without_compiler()
    kernel: Any = function
    if HAS_COMPILER:
        from numba import njit

        try:
            kernel = njit(cache=True)(function)
        except RuntimeError:
            kernel = njit(function)
    KERNELS.append(kernel)
    return cast(Kernel, kernel)


@cache
def warn_without_compiler() -> None:
    """Once in a process, and not in those that another of ours starts, which has said it."""
    if not HAS_COMPILER and parent_process() is None:
        warnings.warn(WITHOUT_COMPILER, stacklevel=1)
