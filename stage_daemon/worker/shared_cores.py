"""Who divides a host's CPU cores among the workers there. Imports no torch, for the supervisor asks it too."""

from __future__ import annotations

import os

# Whoever sets one of these has shared the cores out.
SHARED_OUT_BY = ("OMP_NUM_THREADS", "MKL_NUM_THREADS")


def workers_share_cores() -> bool:
    """Whether each worker takes its share by itself, as no environment variable says what it may use."""
    return not any(name in os.environ for name in SHARED_OUT_BY)
