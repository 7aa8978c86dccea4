"""split_module's steps: effects and their order, regions, partitions, names."""
