"""Slapo's pipeline analyses: stages, liveness, ties."""
