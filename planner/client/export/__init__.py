"""Makes a graph and its weights from a module, or from a checkpoint. torch is loaded only once it is needed."""

from planner.client.export.checkpoint import ExportedCheckpoint, export_checkpoint
from planner.client.export.export import export
from planner.client.export.exported_model import ExportedModel, load_exported, read_exported

__all__ = [
    "ExportedCheckpoint",
    "ExportedModel",
    "export",
    "export_checkpoint",
    "load_exported",
    "read_exported",
]
