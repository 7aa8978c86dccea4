"""A plan's cuts in the words of other systems, which cut between layers or modules only.

Where a plan cuts elsewhere, the error names the layer and says how to get a plan that fits.
"""
