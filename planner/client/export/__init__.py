"""Makes a graph and its weights from a module, or from a checkpoint. torch is loaded only once it is needed."""

from planner.client.export.checkpoint import ExportedCheckpoint, export_checkpoint
from planner.client.export.export import export
from planner.client.export.exported_model import ExportedModel, load_exported, read_exported
from planner.client.export.operator_costs import OperatorCost, operator_cost

__all__ = [
    "ExportedCheckpoint",
    "ExportedModel",
    "OperatorCost",
    "export",
    "export_checkpoint",
    "load_exported",
    "operator_cost",
    "read_exported",
]
