"""Partitioning in the bytes and paths that torch.fx's accelerator partitioner counts; numbers only.

The program           operation_graph; grouping (groups of operations as a graph of their own)
Sizes                 size_groups: first_fit (torch's), device_map (groups on devices), exhaustive_packing
Embeddings            sparse_groups
Latency               critical_path (torch's), transfer_problem (as arrays, and what devices hold), least_latency:
                      edge_zeroing, then path_search
From operations back  group_operations, slack_groups (as few groups as no path gets longer for)
"""
