"""Random numbers of Python and numpy, which no program draws again."""

from __future__ import annotations

import random
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import numpy as np


@contextmanager
def python_draws() -> Iterator[Callable[[], bool]]:
    """Afterwards the next numbers are those that they were. Until then it can be asked whether any was drawn."""
    python, of_numpy, text = random.getstate(), np.random.get_state(legacy=False), _numpys_state()
    try:
        yield lambda: random.getstate() != python or _numpys_state() != text
    finally:
        random.setstate(python)
        np.random.set_state(of_numpy)


def _numpys_state() -> str:
    """As text, since it holds an array, whatever generator it is of."""
    with np.printoptions(threshold=sys.maxsize):
        return str(np.random.get_state(legacy=False))
