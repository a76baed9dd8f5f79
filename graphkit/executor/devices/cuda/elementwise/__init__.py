"""Kernels whose elements are independent of each other: pointwise regions, fills, random numbers, guards."""
