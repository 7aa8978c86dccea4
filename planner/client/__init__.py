"""The planner for Python programs: `from planner.client import PlannerClient, export`.

`export` needs torch and is loaded when it is first asked for; nothing else here imports torch.
"""

from __future__ import annotations

import importlib
import sys
from types import ModuleType
from typing import TYPE_CHECKING, Any

from planner.client.client import PlannerClient
from planner.client.pipeline import Batch, Pipeline
from planner.client.tensors import RawTensor

if TYPE_CHECKING:
    from planner.client.export import ExportedModel, export, load_exported

__all__ = ["Batch", "ExportedModel", "Pipeline", "PlannerClient", "RawTensor", "export", "load_exported"]

_NEEDS_TORCH = frozenset({"ExportedModel", "load_exported"})


def __getattr__(name: str) -> Any:
    if name in _NEEDS_TORCH:
        return getattr(importlib.import_module("planner.client.export"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def _export_function(package: ModuleType) -> Any:
    return importlib.import_module("planner.client.export").export


def _keep_function(package: ModuleType, subpackage: object) -> None:
    """Importing the subpackage would otherwise put it where the function stands."""


class _Package(ModuleType):
    """`export` is the function always, also once the subpackage that it comes from has been imported."""

    export = property(_export_function, _keep_function)


sys.modules[__name__].__class__ = _Package
