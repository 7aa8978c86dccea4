"""Partitioning as torch.fx's accelerator partitioner counts it, for its modes.

The program           operation_graph; grouping (groups of operations as a graph of their own)
Sizes                 size_groups: first_fit (torch's), device_map (groups on devices), exhaustive_packing
Embeddings            sparse_groups
Latency               critical_path (torch's), transfer_problem (as arrays, and what devices hold), least_latency:
                      edge_zeroing, then path_search
From operations back  group_operations
Copies                saturate (on idle devices)
"""
