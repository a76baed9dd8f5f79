"""Tensors made, cut, joined, reordered and indexed; shapes as data."""
