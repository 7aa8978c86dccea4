"""Partitioning as torch.fx counts it: bytes and inputs of single operations, with no storage or liveness known."""
