"""The planner for Python programs: `from planner.client import PlannerClient, export`, or AsyncPlannerClient.

Importing it loads no torch, and what runs batches (which needs numpy) only once it is named: a command that asks the
server one thing does not wait for either.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from planner.client.client import PlannerClient
from planner.client.export import (
    CacheSize,
    ExportedCheckpoint,
    ExportedModel,
    OperatorCost,
    export,
    export_checkpoint,
    load_exported,
    operator_cost,
)
from planner.client.records import RecoveryPolicy

if TYPE_CHECKING:
    from planner.client.asynchronous import AsyncPipeline, AsyncPlannerClient, AsyncTrainer
    from planner.client.batches import Batch
    from planner.client.export.cached_model import CachedModel
    from planner.client.pipeline import Pipeline
    from planner.client.tensors import RawTensor

__all__ = [
    "AsyncPipeline",
    "AsyncPlannerClient",
    "AsyncTrainer",
    "Batch",
    "CacheSize",
    "CachedModel",
    "ExportedCheckpoint",
    "ExportedModel",
    "OperatorCost",
    "Pipeline",
    "PlannerClient",
    "RawTensor",
    "RecoveryPolicy",
    "export",
    "export_checkpoint",
    "load_exported",
    "operator_cost",
]

_IMPORTED_WHEN_NAMED = {
    "AsyncPipeline": "asynchronous",
    "AsyncPlannerClient": "asynchronous",
    "AsyncTrainer": "asynchronous",
    "Batch": "batches",
    "CachedModel": "export.cached_model",
    "Pipeline": "pipeline",
    "RawTensor": "tensors",
}


def __getattr__(name: str) -> Any:
    if name not in _IMPORTED_WHEN_NAMED:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_IMPORTED_WHEN_NAMED[name]}"), name)
