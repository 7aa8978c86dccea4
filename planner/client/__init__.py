"""The planner for Python programs: `from planner.client import PlannerClient, export`.

Importing it loads no torch: `export` does so when it is called.
"""

from planner.client.client import PlannerClient
from planner.client.export import ExportedModel, export, load_exported
from planner.client.pipeline import Batch, Pipeline
from planner.client.tensors import RawTensor

__all__ = ["Batch", "ExportedModel", "Pipeline", "PlannerClient", "RawTensor", "export", "load_exported"]
