"""What a split or a pipeline analysis refuses.

Each is also an error of the kind that torch.fx or Slapo raises there, so that an `except` which waits for theirs still
works.

GraphError
├── PartitionCycle     (RuntimeError)    no order of the partitions keeps what the module computes
├── RegionError        (AssertionError)  an autocast or grad region that no partition can re-open
├── TargetNotFound     (AttributeError)  a node's target that the module does not have
└── PipelineError      (AssertionError, RuntimeError)  a top module that is no pipeline of stages
"""

from __future__ import annotations

from planner.errors import GraphError


class PartitionCycle(GraphError, RuntimeError):
    """`metadata["partitions"]` names the partitions of one cycle, in order."""


class RegionError(GraphError, AssertionError):
    pass


class TargetNotFound(GraphError, AttributeError):
    pass


class PipelineError(GraphError, AssertionError, RuntimeError):
    pass
