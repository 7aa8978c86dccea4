"""Least single-pass latency: blocks of accelerators and free-running hosts, bounded by mixes of paths."""
