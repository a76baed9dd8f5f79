"""Operators on numbers: arithmetic, elementary functions, comparisons, reductions, random numbers."""
