"""Operators that passes make and files do not have: fused ones, other layouts, order and guards."""
