"""What the forkserver of the tests imports besides what either service preloads: all that a service itself imports."""

from __future__ import annotations

import gc
import os

gc.disable()
# As the planner has it, before gRPC is imported.
os.environ.setdefault("GRPC_ENABLE_FORK_SUPPORT", "0")
try:
    # What the planner's main imports once it is called.
    import planner.api.garbage
    import planner.api.logs
    import planner.api.server  # noqa: F401
    import stage_daemon.__main__  # noqa: F401

    gc.freeze()
finally:
    gc.enable()
