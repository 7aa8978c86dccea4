"""What the forkserver does once, so that a forked computation need not: it imports the planner."""

from __future__ import annotations

import gc


def preload() -> None:
    """Without garbage collections, a sixth of the time that the imports take; nor do computations look through them."""
    gc.disable()
    try:
        # What each plan's process would import for itself: numpy.unique asks for the first.
        import numpy.ma  # noqa: F401

        from planner import planning  # noqa: F401
        from planner.api import computing, tasks  # noqa: F401
        from planner.graph.operators import load_facts
        from planner.partition.modes import balanced, cut, optimal  # noqa: F401

        load_facts()
        gc.freeze()
    finally:
        gc.enable()


preload()
