"""Cheap nodes that a stage runs again rather than receive what they make."""
