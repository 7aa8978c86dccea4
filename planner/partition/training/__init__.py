"""What a training step does to time and memory: orders of passes, microbatches in flight, the longest path."""
