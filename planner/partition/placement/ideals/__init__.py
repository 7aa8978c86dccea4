"""Contiguous placement by search over order ideals: sets of items that are closed under predecessors."""
