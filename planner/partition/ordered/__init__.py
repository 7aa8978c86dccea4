"""Segments of one linear order: which cuts, and which device takes which segment."""
