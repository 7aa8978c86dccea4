"""The Partitioner's steps and records."""
