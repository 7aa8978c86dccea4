"""torch.inference_mode in a forward: torch.export captures nothing of it, so that in training gradients would go
through what is frozen so. It is captured as no_grad, which gives the same numbers.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch


@contextmanager
def inference_mode_as_no_grad() -> Iterator[None]:
    before = torch.inference_mode.__enter__, torch.inference_mode.__exit__

    def enter(region: Any) -> None:
        region.grad_enabled_before = torch.is_grad_enabled()
        torch.set_grad_enabled(not region.mode)

    def leave(region: Any, *_: Any) -> None:
        torch.set_grad_enabled(region.grad_enabled_before)

    torch.inference_mode.__enter__, torch.inference_mode.__exit__ = enter, leave  # type: ignore[method-assign]
    try:
        yield
    finally:
        torch.inference_mode.__enter__, torch.inference_mode.__exit__ = before  # type: ignore[method-assign]
