"""Random numbers, of torch, and of Python and numpy, which no program draws again: the caller's stay as they were."""

from __future__ import annotations

import random
import sys
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager

import numpy as np
import torch


@contextmanager
def torch_draws(tensors: Iterable[torch.Tensor]) -> Iterator[None]:
    """Afterwards torch's next numbers, on the CPU and where the tensors are, are those that they were."""
    with torch.random.fork_rng({tensor.device for tensor in tensors if tensor.is_cuda}):
        yield


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
