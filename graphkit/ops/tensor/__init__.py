"""Operators that create, slice, join, reorder and index tensors, or read shapes."""
