"""Hot loops, compiled by numba. What it compiles is kept on disk where this process may write, or else made anew.

Without numba they stay what they are, functions of Python.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar, cast

from planner.partition.placement.compiler import HAS_COMPILER, warn_without_compiler

if HAS_COMPILER:
    from numba import njit
else:
    warn_without_compiler()

Kernel = TypeVar("Kernel", bound=Callable[..., Any])
# Every kernel of the modules that have been imported.
KERNELS: list[Any] = []


def compiled(function: Kernel) -> Kernel:
    """numba.njit with a cache beside the module, in NUMBA_CACHE_DIR or in the user's; without one where none can be."""
    kernel: Any = function
    if HAS_COMPILER:
        try:
            kernel = njit(cache=True)(function)
        except RuntimeError:
            kernel = njit(function)
    KERNELS.append(kernel)
    return cast(Kernel, kernel)
