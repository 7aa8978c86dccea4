"""What must hold of every plan, derived from the graph anew: nothing here calls what builds plans."""
