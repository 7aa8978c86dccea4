"""Free placement: colocated nodes as cells, tensors as nets over them; annealing, exchanges and integer programmes."""
