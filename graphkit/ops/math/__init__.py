"""Numbers, element by element and summed up: arithmetic, functions, comparisons, reductions, randomness."""
