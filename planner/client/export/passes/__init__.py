"""Passes that make captured programs alike: each rewrites a torch.fx graph in place and keeps its numbers bitwise."""
