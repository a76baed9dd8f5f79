"""Operators that only passes create and files do not contain: fused ones, other layouts, order and guards."""
