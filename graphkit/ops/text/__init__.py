"""Tensors of strings: joined, split, normalised, matched and counted."""
