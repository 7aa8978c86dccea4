"""Random numbers of Python and numpy, which no program draws again."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import numpy as np


@contextmanager
def python_draws() -> Iterator[Callable[[], bool]]:
    """Afterwards the next numbers are those that they were. Until then it can be asked whether any was drawn."""
    python, of_numpy = random.getstate(), np.random.get_state(legacy=False)

    def are_drawn() -> bool:
        # As text, since it holds an array.
        return random.getstate() != python or str(np.random.get_state(legacy=False)) != str(of_numpy)

    try:
        yield are_drawn
    finally:
        random.setstate(python)
        np.random.set_state(of_numpy)
