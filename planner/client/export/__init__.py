"""Makes a graph and its weights from a module. torch is loaded only once something is exported or loaded."""

from planner.client.export.export import export
from planner.client.export.exported_model import ExportedModel, load_exported, read_exported

__all__ = ["ExportedModel", "export", "load_exported", "read_exported"]
