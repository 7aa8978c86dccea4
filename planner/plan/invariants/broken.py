"""The error of a broken invariant."""

from __future__ import annotations

from planner.errors import PlanInvariantError


def broken(invariant: str, what: str, **facts: object) -> PlanInvariantError:
    return PlanInvariantError(f"plan breaks {invariant!r}: {what}", invariant=invariant, **facts)
