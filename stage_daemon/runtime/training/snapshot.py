"""States as they are between two steps, copied while the next step runs."""

from __future__ import annotations

import threading
from collections.abc import Collection, Mapping

import torch

from stage_daemon.runtime.training.states import TensorKey


class Snapshot:
    """What passes write is copied at once, the rest by a thread: nothing may write over it before `settle` returns.

    `others` are states that a module's state_dict does not have.
    """

    def __init__(
        self,
        tensors: Mapping[TensorKey, torch.Tensor],
        *,
        written_by_passes: Collection[str],
        others: Collection[str] = (),
    ) -> None:
        self.others = frozenset(others)
        self._copies: dict[TensorKey, torch.Tensor] = {}
        self._error: Exception | None = None
        later = {}
        for key, tensor in tensors.items():
            if not key.optimizer_tensor and key.state in written_by_passes:
                self._copies[key] = _copy(tensor)
            else:
                later[key] = tensor
        self._thread = threading.Thread(target=self._copy_all, args=(later,), name="snapshot", daemon=True)
        self._thread.start()

    def settle(self) -> None:
        """Returns once everything is copied, or cannot be."""
        self._thread.join()

    def tensors(self) -> Mapping[TensorKey, torch.Tensor]:
        """On the CPU, contiguous. Raises what kept them from being copied."""
        self.settle()
        if self._error is not None:
            raise self._error
        return self._copies

    def drop(self) -> None:
        """Frees the copies."""
        self.settle()
        self._copies = {}

    def _copy_all(self, tensors: Mapping[TensorKey, torch.Tensor]) -> None:
        try:
            for key, tensor in tensors.items():
                self._copies[key] = _copy(tensor)
        except Exception as error:
            # No memory, as a rule: the checkpoint fails, and training goes on.
            self._error = error


def _copy(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.detach().resolve_conj().resolve_neg().to("cpu", copy=True).contiguous()
