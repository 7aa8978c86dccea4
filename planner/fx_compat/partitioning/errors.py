"""What the partitioner refuses. Each is also a RuntimeError, which is what torch.fx's raises."""

from __future__ import annotations

from planner.errors import GraphError, Infeasible, InventoryError, OptionsError


class NoDevices(InventoryError, RuntimeError):
    """None, two of one logical id, or one without a usable number of bytes."""


class NothingToPartition(GraphError, RuntimeError):
    """No operations, sizes that are not known, or latencies that are no times."""


class BadMapping(OptionsError, RuntimeError):
    """A given partition or transfer rate that cannot be carried out."""


class UnknownMode(OptionsError, RuntimeError):
    """A mode that is neither ours nor torch.fx's."""


class DevicesTooSmall(Infeasible, RuntimeError):
    """No placement exists; `metadata` has the bytes."""
