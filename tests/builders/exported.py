"""Families that tests of one process share as exported, since torch takes seconds for each."""

from __future__ import annotations

from functools import cache

from planner.client.export import ExportedModel, export
from tests.builders.registry import FAMILIES


@cache
def exported(family: str) -> ExportedModel:
    """For evaluation, in its builder's own size."""
    case = FAMILIES[family]()
    return export(case.module, case.args, dict(case.kwargs), dynamic_shapes=case.dynamic_shapes, name=family)
