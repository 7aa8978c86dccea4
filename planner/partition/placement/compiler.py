"""Whether numba is installed, told without importing it; and what is said where it is not."""

from __future__ import annotations

import warnings
from importlib.util import find_spec
from multiprocessing import parent_process

HAS_COMPILER = find_spec("numba") is not None
WITHOUT_COMPILER = (
    "numba is not installed, so searches run as plain Python: the same plans in ten to two hundred times the seconds; "
    "pip install 'partition-planner[compiled]'"
)


def warn_without_compiler() -> None:
    """Once in a process, and not in those that another of ours starts, which has said it."""
    if not HAS_COMPILER and parent_process() is None:
        warnings.warn(WITHOUT_COMPILER, stacklevel=1)
