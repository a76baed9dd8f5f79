"""Operators on tensors of strings: join, split, normalise, match, count."""
