"""Hot loops, compiled by numba. What it compiles is kept on disk where this process may write, or else made anew."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar, cast

from numba import njit

Kernel = TypeVar("Kernel", bound=Callable[..., Any])
# Every kernel of the modules that have been imported.
KERNELS: list[Any] = []


def compiled(function: Kernel) -> Kernel:
    """numba.njit with a cache beside the module, in NUMBA_CACHE_DIR or in the user's; without one where none can be."""
    try:
        kernel = njit(cache=True)(function)
    except RuntimeError:
        kernel = njit(function)
    KERNELS.append(kernel)
    return cast(Kernel, kernel)
