"""torch.fx's and Slapo's ways to split a model, by the same names and signatures, on this planner's terms.

Existing code changes one import:

    from torch.fx.passes.split_module import split_module      ->  from planner.fx_compat import split_module
    ...accelerator_partitioner, ...partitioner_utils           ->  from planner.fx_compat import Partitioner, ...
    from slapo.pipeline import analyze_pipeline_module, ...    ->  from planner.fx_compat import analyze_pipeline_module

The meaning is theirs except where theirs gives wrong numbers or refuses what can be done; each module's docstring says
where. Importing this package loads torch, which nothing else in the planner does but the client's export.
"""

from planner.fx_compat.partitioner import (
    DAG,
    DAGNode,
    Device,
    NodeLatency,
    Partition,
    Partitioner,
    PartitionerConfig,
    PartitionLatency,
    PartitionMode,
    PartitionResult,
    check_dependency,
    combine_two_partitions,
    get_bfs_level_partition,
    get_comm_latency_between,
    get_device_partition_stats,
    get_device_to_partitions_mapping,
    get_extra_size_of,
    get_latency_of_one_partition,
    get_latency_of_partitioned_graph,
    get_logical_id_to_device,
    get_node_to_partition_mapping,
    get_partition_to_latency_mapping,
    get_size_of_all_nodes,
    reorganize_partitions,
    reset_partition_device,
    set_parents_and_children,
)
from planner.fx_compat.pipeline.liveness import analyze_pipeline_module
from planner.fx_compat.pipeline.propagate import generate_pipeline_partition, propagate_partition
from planner.fx_compat.pipeline.stage import PipelineStage, pipeline_stages
from planner.fx_compat.pipeline.staged_module import StagedModule
from planner.fx_compat.pipeline.ties import analyze_tie_weights
from planner.fx_compat.split_module import split_module, split_module_simple

__all__ = [
    "DAG",
    "DAGNode",
    "Device",
    "NodeLatency",
    "Partition",
    "PartitionLatency",
    "PartitionMode",
    "PartitionResult",
    "Partitioner",
    "PartitionerConfig",
    "PipelineStage",
    "StagedModule",
    "analyze_pipeline_module",
    "analyze_tie_weights",
    "check_dependency",
    "combine_two_partitions",
    "generate_pipeline_partition",
    "get_bfs_level_partition",
    "get_comm_latency_between",
    "get_device_partition_stats",
    "get_device_to_partitions_mapping",
    "get_extra_size_of",
    "get_latency_of_one_partition",
    "get_latency_of_partitioned_graph",
    "get_logical_id_to_device",
    "get_node_to_partition_mapping",
    "get_partition_to_latency_mapping",
    "get_size_of_all_nodes",
    "pipeline_stages",
    "propagate_partition",
    "reorganize_partitions",
    "reset_partition_device",
    "set_parents_and_children",
    "split_module",
    "split_module_simple",
]
